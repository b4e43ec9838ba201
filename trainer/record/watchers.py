"""Where a run's figures go besides steps.jsonl: pages that people already have open. A run never ends for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from graphcache.errors import UsageError
from graphcache.store.files import check_writable
from trainer.record.prometheus import PrometheusFile


class WatcherError(UsageError):
    """A package that a watcher needs is not installed, or its folder cannot be written."""

    name = "watcher"


class Watcher(Protocol):
    """Gets the record of each step, as steps.jsonl has it. Raises OSError where it cannot keep it."""

    def step(self, record: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Watchers:
    """Several watchers as one. One that fails is left out from then on, and `trouble` says so once."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = list(watchers)

    def step(self, record: Mapping[str, Any]) -> list[str]:
        """Hand a record to every watcher; returns a line for each one that has failed."""
        return [line for watcher in list(self._watchers) for line in self._hand(watcher, record)]

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.close()

    def _hand(self, watcher: Watcher, record: Mapping[str, Any]) -> Iterator[str]:
        try:
            watcher.step(record)
        except OSError as error:
            self._watchers.remove(watcher)
            yield f"{type(watcher).__name__} is written no more: {error}"


def check_tensorboard(folder: Path | None) -> None:
    """Checks that event files can be written to `folder`, without making it. Raises WatcherError."""
    if folder is None:
        return
    if find_spec("tensorboard") is None:
        raise WatcherError("--tensorboard needs the package tensorboard", hint="pip install tensorboard")
    try:
        check_writable(folder.absolute())
    except OSError as error:
        raise WatcherError(f"--tensorboard {folder} cannot be written: {error.strerror}") from error


def open_watchers(root: Path, tensorboard: Path | None, done: int) -> Watchers:
    """RUN/metrics.prom, and TensorBoard's event files where asked for.

    done: steps before this session; events of later steps, which are done again, are hidden
    """
    watchers: list[Watcher] = [PrometheusFile(root / "metrics.prom")]
    if tensorboard is not None:
        # Imported here: a run without --tensorboard need not have the package.
        from trainer.record.event_files import EventFiles

        watchers.append(EventFiles(tensorboard, done))
    return Watchers(watchers)
