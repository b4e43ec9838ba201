"""RUN/: the folder of a run, held by one process at a time.

Where files of the names that a run writes are another's, it is refused before anything is written: a model has a
config.json too.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphcache.errors import GraphcacheError
from graphcache.process.whole_file import replace_file
from graphcache.store.files import check_writable, dangling_hint, is_temporary, make_folder, sync_folder

LOCK, SETTINGS, ENVIRONMENT = "lock", "config.json", "environment.json"
PREDICTION, TRACE = "prediction.json", "trace.json"
# What a run writes.
_WRITTEN = re.compile(
    r"(config|environment(-\d+)?|calls|prediction|trace)\.json|steps\.jsonl|metrics\.prom|checkpoints"
)
# Settings that config.json has had since the first version, and that no model's config.json has.
_OWN_SETTINGS = frozenset({"model", "data", "out", "resident_layers", "update_workers"})
_SPACE_HINT = "free some space there, or choose another --out"
_HINT = "choose another --out"


class RunFolderError(GraphcacheError):
    """RUN belongs to another run or to something else, or cannot be written."""

    name = "run-folder"


class RunFolder:
    """RUN/: who else uses it, and what lies in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self._steps = root / "steps.jsonl"

    def check(self, *, resume: bool) -> None:
        """Checks that `held` would succeed, as far as possible without making anything. Raises RunFolderError."""
        self._check_ours()
        with self._writing():
            check_writable(self.root.absolute())
        if (self.root / LOCK).exists():
            with self._locked():
                pass
        if not resume:
            self._check_unused()

    @contextmanager
    def held(self, *, resume: bool) -> Iterator[None]:
        """Make RUN and keep other runs out.

        Raises RunFolderError when it is another run's, holds other files (then nothing is written), or cannot be made.
        """
        self._check_ours()
        with self._writing():
            make_folder(self.root)
        with self._locked():
            if not resume:
                self._check_unused()
            self._sweep()
            yield

    def begin_session(self, settings: Mapping[str, Any], environment: Mapping[str, Any], done: int) -> None:
        """Record what trains from here on, after `done` steps. The session before keeps its environment, numbered.

        Lines of later steps are taken out of steps.jsonl: those were done after the checkpoint and are done again.
        Raises RunFolderError.
        """
        before = self.root / ENVIRONMENT
        if before.exists():
            names = (self.root / f"environment-{number:04d}.json" for number in itertools.count(1))
            with self._writing():
                before.rename(next(name for name in names if not name.exists()))
        with self._writing():
            for name in (PREDICTION, TRACE):  # of the session before
                (self.root / name).unlink(missing_ok=True)
        self.write(SETTINGS, settings)
        self.write(ENVIRONMENT, {"settings": settings, **environment})
        self.forget_steps_after(done)

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """RUN/`name` as JSON, whole or not at all. Raises RunFolderError."""
        self._replace(self.root / name, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())

    def write_text(self, name: str, text: str) -> None:
        """RUN/`name`, whole or not at all. Raises RunFolderError."""
        self._replace(self.root / name, text.encode())

    def forget_steps_after(self, step: int) -> None:
        """Keep the lines of steps.jsonl up to this step. Raises RunFolderError."""
        with contextlib.suppress(FileNotFoundError):
            lines = self._steps.read_bytes().splitlines(keepends=True)
            self._replace(self._steps, b"".join(line for line in lines if 0 < _step_of(line) <= step))

    def append_step(self, record: Mapping[str, Any]) -> None:
        """Add a line to steps.jsonl. Raises RunFolderError."""
        with self._writing(self._steps, _SPACE_HINT), self._steps.open("a", encoding="ascii") as file:
            file.write(json.dumps(record) + "\n")

    def replace_last_step(self, record: Mapping[str, Any]) -> None:
        """Put `record` in place of the last line of steps.jsonl, which is of its step. Raises RunFolderError."""
        lines = self._steps.read_bytes().splitlines(keepends=True)
        assert _step_of(lines[-1]) == record["step"]
        self._replace(self._steps, b"".join((*lines[:-1], json.dumps(record).encode(), b"\n")))

    def sync_steps(self) -> None:
        """Make the lines so far survive a power cut: before a checkpoint of their steps, which would survive, is named.

        Not for each line: those after the newest checkpoint are done again anyway. Raises RunFolderError.
        """
        with self._writing(self._steps, _SPACE_HINT):
            with self._steps.open("rb") as file:
                os.fsync(file.fileno())
            sync_folder(self.root)

    def steps(self) -> list[dict[str, Any]]:
        """The records of all steps so far."""
        try:
            return [json.loads(line) for line in self._steps.read_bytes().splitlines() if _step_of(line)]
        except FileNotFoundError:
            return []

    def steps_up_to(self, step: int) -> list[dict[str, Any]]:
        """The records of the first `step` steps."""
        return [record for record in self.steps() if record["step"] <= step]

    def _check_ours(self) -> None:
        """Checks that no file of someone else's would be replaced. Raises RunFolderError."""
        try:
            taken = sorted(path.name for path in self.root.iterdir() if _WRITTEN.fullmatch(path.name))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise RunFolderError(f"{self.root} cannot be read: {error.strerror}", hint=_HINT) from error
        if "checkpoints" in taken and not self._has_checkpoints():
            taken.remove("checkpoints")
        if taken and not self._has_settings() and not any(self.checkpoints.glob("step-*/complete.json")):
            raise RunFolderError(
                f"{self.root.absolute()} holds {', '.join(taken)}, which no run has written",
                hint="--out is a folder that is new, or that a run has made",
            )

    def _has_settings(self) -> bool:
        try:
            settings = json.loads((self.root / SETTINGS).read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(settings, dict) and settings.keys() >= _OWN_SETTINGS

    def _check_unused(self) -> None:
        """Checks that a new run would not mix with an old one. Raises RunFolderError."""
        if self._steps.exists() or self._has_checkpoints():
            raise RunFolderError(
                f"{self.root} holds a run already", hint="--resume goes on with it; a new run needs another --out"
            )

    def _has_checkpoints(self) -> bool:
        """Whether anything lies in checkpoints/, which may be a link to a larger disk, made before the run.

        Raises RunFolderError for a link to what is not there, and for what cannot be listed.
        """
        try:
            return any(name != "lost+found" for name in os.listdir(self.checkpoints))
        except FileNotFoundError as error:
            hint = dangling_hint(self.checkpoints)
            if hint:
                raise RunFolderError(f"{self.checkpoints} leads nowhere", hint=hint) from error
            return False
        except OSError as error:
            raise RunFolderError(f"{self.checkpoints} cannot be read: {error.strerror}", hint=_HINT) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._writing():
            handle = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunFolderError(f"another run holds {self.root}", hint=f"wait for it, or {_HINT}") from error
            except OSError as error:
                raise RunFolderError(
                    f"{self.root / LOCK} cannot be locked: {error.strerror}",
                    hint="--out must be on a file system with flock, which keeps two runs apart",
                ) from error
            yield
        finally:
            os.close(handle)

    def _sweep(self) -> None:
        """Delete what was being written when a run was killed."""
        for path in self.root.iterdir():
            if is_temporary(path):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _replace(self, path: Path, data: bytes) -> None:
        with self._writing(path, _SPACE_HINT):
            replace_file(path, data)

    @contextmanager
    def _writing(self, path: Path | None = None, hint: str = _HINT) -> Iterator[None]:
        """Turns OSError into RunFolderError, about RUN itself unless about a `path` in it."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunFolderError(f"{path or self.root} cannot be written: {reason}", hint=hint) from error


def _step_of(line: bytes) -> int:
    """0 for a line that was cut short, or is none of ours."""
    try:
        record = json.loads(line)
    except ValueError:
        return 0
    step = record.get("step") if isinstance(record, dict) else None
    return step if isinstance(step, int) else 0
