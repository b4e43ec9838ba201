"""The tokens of a data file, on disk: made once, then mapped, so that neither time nor memory grows with the data.

A folder of plain arrays: `ids` (int32) and `counts` (bool) of all tokens, `starts` (int64, of each document's first
token) and `lines` (int64), and `facts.json` with their checksums, which are looked at whenever the folder is opened.
The folder gets its name when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from trainer.data.tokens import TokenRun

FACTS = "facts.json"
ARRAYS: dict[str, Any] = {"ids": np.int32, "counts": np.bool_, "starts": np.int64, "lines": np.int64}
_BLOCK_BYTES = 1 << 22
# Lines of empty documents that are named.
EMPTY_NAMED = 20


class DamagedError(Exception):
    """A token file that is not as it was written."""


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """All tokens of a data file, in its order. Documents without a token are not in it.

    ids: [n] int32; counts: [n] bool; starts, lines: [documents] int64
    facts: digest (SHA-256 of ids and counts), documents, empty_documents, empty_lines (the first ones), tokens,
           largest_id, template_date, never_stops
    """

    ids: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    lines: np.ndarray
    facts: Mapping[str, Any]
    maps: tuple[mmap.mmap, ...]

    def give_back_pages(self) -> None:
        """What was looked at leaves this process's memory; the system keeps it as long as it has room."""
        for mapped in self.maps:
            mapped.madvise(mmap.MADV_DONTNEED)


class Writer:
    """Writes tokens to a new folder, as they come."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {name: (folder / name).open("xb") for name in ARRAYS}
        self._sums = {name: xxhash.xxh3_128() for name in ARRAYS}
        self.documents = self.tokens = self.empty = 0
        self._largest = -1
        self._empty_lines: list[int] = []

    def add(self, run: TokenRun) -> None:
        """What comes next. Raises OSError."""
        begins = run.begins & (run.lengths > 0)
        empty = run.lines[run.begins & (run.lengths == 0)]
        self.empty += len(empty)
        self._empty_lines += empty[: EMPTY_NAMED - len(self._empty_lines)].tolist()
        self._largest = max(self._largest, int(run.ids.max(initial=-1)))
        self._write("ids", run.ids)
        self._write("counts", run.counts)
        self._write("starts", (self.tokens + np.cumsum(run.lengths) - run.lengths)[begins])
        self._write("lines", run.lines[begins])
        self.documents += int(begins.sum())
        self.tokens += len(run.ids)

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Sync everything, with facts that are not of single documents. Raises OSError."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        facts = {
            "digest": _digest(self._folder),
            "documents": self.documents,
            "empty_documents": self.empty,
            "empty_lines": self._empty_lines,
            "tokens": self.tokens,
            "largest_id": self._largest,
            "checksums": {name: checksum.hexdigest() for name, checksum in self._sums.items()},
            **notes,
        }
        with (self._folder / FACTS).open("xb") as last:
            last.write(json.dumps(facts, indent=2, sort_keys=True).encode())
            last.flush()
            os.fsync(last.fileno())

    def close(self) -> None:
        """Let go of the files; nothing of what is unfinished is kept by anyone."""
        for file in self._files.values():
            file.close()

    def _write(self, name: str, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values, dtype=np.dtype(ARRAYS[name]).newbyteorder("<")).tobytes()
        self._sums[name].update(data)
        self._files[name].write(data)


def open_tokens(folder: Path) -> TokenFile:
    """The tokens in a folder that `Writer` has finished, every byte checked.

    Raises FileNotFoundError where there is none, DamagedError.
    """
    try:
        facts = json.loads((folder / FACTS).read_bytes())
        checksums = facts["checksums"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{folder / FACTS} cannot be read: {error}") from error
    arrays, maps = {}, []
    for name, dtype in ARRAYS.items():
        path = folder / name
        if checksums.get(name) != _checksum(path):
            raise DamagedError(f"{path} is not as it was written")
        if path.stat().st_size:
            with path.open("rb") as file:
                maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            arrays[name] = np.frombuffer(maps[-1], dtype=dtype)
        else:
            arrays[name] = np.zeros(0, dtype=dtype)
    return TokenFile(**arrays, facts=facts, maps=tuple(maps))


def _checksum(path: Path) -> str:
    """Read, not mapped: what is read so does not stay in this process's memory."""
    checksum, buffer = xxhash.xxh3_128(), bytearray(_BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            checksum.update(memoryview(buffer)[:size])
    return checksum.hexdigest()


def _digest(folder: Path) -> str:
    """SHA-256 of what is trained on. It shows any change: of file, tokenizer, template, or this program."""
    digest, buffer = hashlib.sha256(), bytearray(_BLOCK_BYTES)
    for name in ("ids", "counts"):
        with (folder / name).open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()
