"""Makes the token file of a data file, by all CPUs: records go to processes in chunks, and come back as tokens.

Processes, since rendering templates is Python, and since transformers is imported there without torch: that takes two
seconds of the import's six, and goes on while this process imports torch itself. A small file is done in this one where
transformers is there already.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcache.process.limits import available_cpus
from trainer.data.blocks import TextBlock
from trainer.data.chat import TEMPLATE_DATE
from trainer.data.errors import DataError
from trainer.data.files import raw_records
from trainer.data.token_file import Writer
from trainer.data.tokens import TokenRun, joined

if TYPE_CHECKING:
    from trainer.data.tokenize import ModelTokenizer

# Starting a process that tokenizes takes seconds; this much is done in about one.
SMALL_BYTES = 4 << 20
CHUNK_BYTES = 2 << 20
PROGRESS_SECS = 5.0
HERE_AT_ONCE = 256  # documents

Chunk = list[tuple[int, Any]]
# What a chunk comes back as: its tokens, and whether the template was told the date, and writes no end of a turn.
Made = tuple[TokenRun, bool, bool]


def make_tokens(folder: Path, model: Path, data: Path, ignored: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Write the tokens of `data` to the new folder `folder`. Raises DataError, OSError.

    model: the checkpoint's folder; say: is told how far it is, every few seconds
    """
    writer, tells_date, never_stops = Writer(folder), False, False
    progress = _Progress(data, writer, say)
    try:
        for run, told, endless in _made(model, data, ignored, progress):
            writer.add(run)
            tells_date, never_stops = tells_date or told, never_stops or endless
            progress.show()
        writer.finish({"template_date": TEMPLATE_DATE.isoformat() if tells_date else None, "never_stops": never_stops})
    finally:
        writer.close()
    progress.end()


def _made(model: Path, data: Path, ignored: tuple[str, ...], progress: _Progress) -> Iterator[Made]:
    size = data.stat().st_size
    if size < SMALL_BYTES and "transformers" in sys.modules:
        yield from _made_here(model, data, ignored)
        return
    workers = min(available_cpus(), max(1, -(-size // SMALL_BYTES)))
    context = get_context("spawn")  # not forked: this process may have threads
    try:
        pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(model, data, ignored))
    except (OSError, ImportError):  # no /dev/shm that can be written, which its locks need
        yield from _made_here(model, data, ignored)
        return
    try:
        waiting: deque[Future[Made]] = deque()
        for chunk, size in _chunks(raw_records(data)):
            waiting.append(pool.submit(_tokenize, chunk))
            progress.given_bytes += size
            # Enough that none waits, and no more: what waits is in memory.
            while len(waiting) > 3 * workers or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "a process that makes tokens has died", hint="was it killed for memory? each holds the tokenizer once"
        ) from error
    finally:
        for process in tuple((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _made_here(model: Path, data: Path, ignored: tuple[str, ...]) -> Iterator[Made]:
    from trainer.data.tokenize import read_tokenizer

    tokenizer = read_tokenizer(model)
    tokens = tokenizer.tokens(tokenizer.reader(ignored).documents(data))
    while documents := list(islice(tokens, HERE_AT_ONCE)):
        yield joined(documents), tokenizer.template.tells_date, tokenizer.finder.never_stops


def _chunks(records: Iterable[tuple[int, Any]]) -> Iterator[tuple[Chunk, int]]:
    """Chunks of records, and the size of each in bytes."""
    chunk: Chunk = []
    size = 0
    for number, raw in records:
        chunk.append((number, raw))
        size += len(raw) if isinstance(raw, bytes) else len(raw.text) if isinstance(raw, TextBlock) else 1024
        if size >= CHUNK_BYTES:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size


_state: tuple[ModelTokenizer, Any, Path] | None = None  # of a process of the pool


def _begin(model: Path, data: Path, ignored: tuple[str, ...]) -> None:
    global _state
    # An interrupt is for the parent, which ends these; and they end with it, however it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each CPU
    without_torch()
    from trainer.data.tokenize import read_tokenizer

    try:
        tokenizer = read_tokenizer(model)
    except DataError as error:  # raised here it would be lost, so the first chunk raises it
        _failed.append(error)
        return
    _state = tokenizer, tokenizer.reader(ignored), data
    # Garbage is looked for after each chunk, and not in what was imported: otherwise a tenth of rendering's time.
    gc.freeze()
    gc.disable()


_failed: list[DataError] = []


def without_torch() -> None:
    """For a process that tokenizes and never needs torch, which transformers imports wherever it finds it."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to say that there is no such module
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # transformers says that it has no torch


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize(chunk: Chunk) -> Made:
    if _failed:
        raise _failed[0]
    assert _state is not None
    tokenizer, reader, data = _state
    documents = (reader.document(f"{data}:{number}", number, raw) for number, raw in chunk)
    run = joined(list(tokenizer.tokens(documents)))
    gc.collect()
    return run, tokenizer.template.tells_date, tokenizer.finder.never_stops


class _Progress:
    """Says every few seconds how far it is, and nothing about what is done sooner."""

    def __init__(self, data: Path, writer: Writer, say: Callable[[str], None]) -> None:
        self._data, self._writer, self._say = data, writer, say
        self._began = self._said = time.monotonic()
        self.given_bytes = 0

    def show(self) -> None:
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECS:
            self._said = now
            self._say(f"tokens   {self._writer.tokens:,} of {self._writer.documents:,} documents{self._part()}")

    def end(self) -> None:
        if self._said > self._began:
            secs = time.monotonic() - self._began
            self._say(f"tokens   {self._writer.tokens:,} made of {self._data} in {secs:.0f} s; they are kept")

    def _part(self) -> str:
        size = self._data.stat().st_size
        # What was given out is a little ahead; of a compressed file the size says nothing.
        share = 0.0 if self._data.suffix.lower() in (".gz", ".parquet") else self.given_bytes / max(size, 1)
        return f", about {min(share, 1):.0%}" if share else ""
