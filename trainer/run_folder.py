"""RUN/: the folder of a run, held by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphcache.errors import GraphcacheError, StoreError
from graphcache.store.files import make_folder, write_file

_HINT = "free some space there, or choose another --out"


class RunFolderError(GraphcacheError):
    """RUN belongs to another run, or cannot be written."""

    name = "run-folder"


class RunFolder:
    """RUN/: who else uses it, and what lies in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self._steps = root / "steps.jsonl"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out. Raises RunFolderError when one has it, or when it cannot be made."""
        try:
            make_folder(self.root)
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"{self.root} cannot be written: {error.strerror}", hint="choose another --out"
            ) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunFolderError(
                    f"another run holds {self.root}", hint="wait for it, or choose another --out"
                ) from error
            yield
        finally:
            os.close(handle)

    def check_unused(self) -> None:
        """That a new run would mix with no old one. Raises RunFolderError."""
        if self._steps.exists() or self.checkpoints.exists():
            raise RunFolderError(
                f"{self.root} holds a run already", hint="--resume goes on with it; a new run needs another --out"
            )

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """RUN/`name` as JSON, whole or not at all. Raises RunFolderError."""
        self._replace(self.root / name, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())

    def forget_steps_after(self, step: int) -> None:
        """Take the lines of later steps out of steps.jsonl: they were done after the checkpoint and are done again."""
        with contextlib.suppress(FileNotFoundError):
            lines = self._steps.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if 0 < _step_of(line) <= step]
            self._replace(self._steps, b"".join(kept))
            self._steps.chmod(0o644)

    def append_step(self, record: Mapping[str, Any]) -> None:
        """Add a line to steps.jsonl. Raises RunFolderError."""
        try:
            with self._steps.open("a", encoding="ascii") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RunFolderError(f"{self._steps} cannot be written: {error.strerror}", hint=_HINT) from error

    def _replace(self, path: Path, data: bytes) -> None:
        try:
            write_file(path, data, replace=True)
        except StoreError as error:
            raise RunFolderError(error.message, hint=_HINT) from error

    def steps(self) -> list[dict[str, Any]]:
        """The records of all steps so far."""
        try:
            return [json.loads(line) for line in self._steps.read_bytes().splitlines() if _step_of(line)]
        except FileNotFoundError:
            return []


def _step_of(line: bytes) -> int:
    """0 for a line that was cut short."""
    try:
        return int(json.loads(line)["step"])
    except ValueError:
        return 0
