"""A run's record as a Markdown table, for docs/results: mean loss and step times by range of steps.

python -m tests.bench.run_record RUN [RANGE_END ...]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

ENDS = (25, 50, 100, 150, 200)


def table(records: Sequence[dict], ends: Sequence[int]) -> list[str]:
    """A row for each range of steps that ends at one of `ends`, as far as the run went."""
    rows = ["| steps | mean loss | median step | slowest step | median update wait |", "|---|---|---|---|---|"]
    begin = 1
    for end in ends:
        part = [record for record in records if begin <= record["step"] <= end]
        if part:
            losses, secs = [r["loss"] for r in part], [r["step_secs"] for r in part]
            waits = statistics.median(r["update_wait_secs"] for r in part)
            rows.append(
                f"| {begin}-{part[-1]['step']} | {statistics.mean(losses):.3f} | {statistics.median(secs):.2f} s"
                f" | {max(secs):.2f} s | {waits:.3f} s |"
            )
        begin = end + 1
    return rows


def main(run: str, ends: Sequence[str]) -> None:
    lines = (Path(run) / "steps.jsonl").read_text().splitlines()
    print("\n".join(table([json.loads(line) for line in lines], [int(end) for end in ends] or ENDS)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
