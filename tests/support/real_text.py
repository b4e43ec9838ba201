"""Real English text that every Python has: the language reference's topics, as `help()` shows them (465 KB).

python -m tests.support.real_text FILE
"""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data import topics


def write_text(path: Path) -> Path:
    """All topics, in the order of their names, as plain text."""
    path.write_text("\n\n".join(topics.topics[name] for name in sorted(topics.topics)))
    return path


if __name__ == "__main__":
    print(write_text(Path(sys.argv[1])))
