"""The lines of a graph's source, operator by operator: noted while torch exports, named when a compiler refuses one.

torch by itself notes only frames of functions called `forward`, which of a graph is one line of ours. The lines reach
the compiler with the program, and neither the program's digest nor the compiled bytes (tests/compiler, both releases).
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx import Node
from torch.fx.proxy import TracerBase

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')


@contextmanager
def noted(entry: str) -> Iterator[None]:
    """Makes torch note the innermost line that is not its own, below the `forward` of the file `entry`.

    By the method that torch leaves open for it; were it gone, errors would name the line of `entry`.
    """
    before = TracerBase._filter_traceback_frames

    def innermost(tracer: TracerBase, summary: traceback.StackSummary) -> traceback.StackSummary:
        frames = list(summary)
        entries = [i for i, frame in enumerate(frames) if frame.name == "forward" and frame.filename == entry]
        below = frames[entries[-1] + 1 :] if entries else []
        ours = [frame for frame in below if not frame.filename.startswith(_TORCH)]
        return traceback.StackSummary.from_list(ours[-1:])

    TracerBase._filter_traceback_frames = innermost  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = before  # type: ignore[method-assign]


def line_of(node: Node) -> str:
    """`trainer/graphs/head.py:41 in chunk_loss`; empty where nothing was noted."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f"{_portable(file)}:{line} in {function}"


def operator_at(node: Node) -> str:
    """`aten.logsumexp.default at trainer/graphs/head.py:41 in chunk_loss`."""
    line = line_of(node)
    return f"{node.target} at {line}" if line else str(node.target)


def _portable(file: str) -> str:
    """The path below the import folder that holds it, which is the same in every checkout."""
    folders = [os.path.join(os.path.abspath(place), "") for place in sys.path]
    holding = max((folder for folder in folders if file.startswith(folder)), key=len, default="")
    return file.removeprefix(holding)
