"""A run as its folder records it: steps, settings and environment, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.errors import UsageError
from graphcache.process.chrome_trace import Span, spans_of
from trainer.record.folder import ENVIRONMENT, PREDICTION, SETTINGS, TRACE, RunFolder

# Fields of a line of steps.jsonl that every report needs.
NEEDED = ("step", "loss", "tokens", "label_tokens", "step_secs", "update_wait_secs")


class ReportError(UsageError):
    """A folder that holds no run, or a run whose records cannot be read."""

    name = "report"


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """One RUN folder.

    label:       how tables and figures name the run: the folder's name, with its parent where two share it
    steps:       lines of steps.jsonl in the order of their steps, one for each step
    environment: environment.json of the last session; empty where the run was killed before it was written
    prediction:  prediction.json of the last session that came to its end; empty without one
    trace:       trace.json of that session, the timeline of one of its steps; empty without one
    """

    label: str
    folder: Path
    steps: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    prediction: Mapping[str, Any]
    trace: Sequence[Span] = ()

    def loss_at(self) -> dict[int, float]:
        """The loss of each step."""
        return {record["step"]: record["loss"] for record in self.steps}


def read_runs(folders: Sequence[Path]) -> list[RecordedRun]:
    """The runs of `folders`, in that order. Raises ReportError."""
    labels = _labels(folders)
    return [_read(folder, label) for folder, label in zip(folders, labels, strict=True)]


def _labels(folders: Sequence[Path]) -> list[str]:
    """Names that differ, as short as they can be."""
    whole = [folder.absolute() for folder in folders]
    names = [folder.name for folder in whole]
    if len(set(names)) < len(names):
        names = [f"{folder.parent.name}/{folder.name}" for folder in whole]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    return names


def _read(folder: Path, label: str) -> RecordedRun:
    if not folder.is_dir():
        raise ReportError(f"{folder}: there is no such folder", hint="give the --out of a run")
    steps = {record["step"]: record for record in RunFolder(folder).steps() if _is_whole(record)}
    if not steps:
        raise ReportError(
            f"{folder} holds no step of a run", hint="give the --out of a run that has done at least one step"
        )
    ordered = [steps[number] for number in sorted(steps)]
    return RecordedRun(
        label=label,
        folder=folder,
        steps=ordered,
        settings=_json(folder / SETTINGS),
        environment=_json(folder / ENVIRONMENT),
        prediction=_json(folder / PREDICTION),
        trace=_trace(folder / TRACE),
    )


def _trace(path: Path) -> list[Span]:
    value = _json(path)
    try:
        return spans_of(value) if value else []
    except (KeyError, TypeError) as error:
        raise ReportError(
            f"{path} is no trace: {error!r}", hint="the file was damaged after the run wrote it"
        ) from error


def _is_whole(record: Mapping[str, Any]) -> bool:
    return all(isinstance(record.get(name), int | float) for name in NEEDED)


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no such file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}", hint="the file was damaged after the run wrote it") from error
    if not isinstance(value, dict):
        raise ReportError(f"{path} holds no JSON object", hint="the file was damaged after the run wrote it")
    return value
