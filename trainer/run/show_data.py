"""What `python -m trainer data` prints."""

from __future__ import annotations

import json
import os
import sys

from trainer.data.look import Look
from trainer.data.view import as_text
from trainer.record.say import data_lines


def show_look(found: Look, seq: int, *, as_json: bool) -> None:
    """Documents first, then the numbers of all of them; or one JSON object."""
    if as_json:
        print(json.dumps(found.as_json(), indent=2, sort_keys=True))
        return
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for view in found.shown:
        print(as_text(view, colour=colour))
    for line in data_lines(found.facts, seq):
        print(line)
    if found.without_labels:
        print(f"data     {found.without_labels:,} documents in which nothing counts: no answer, or all masked")
    if found.empty_lines:
        more = ", ..." if found.facts.empty_documents > len(found.empty_lines) else ""
        print(f"data     empty documents: lines {', '.join(map(str, found.empty_lines))}{more}")
