"""What a session's steps took against what was predicted: RUN/prediction.json and RUN/trace.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphcache.process.whole_file import replace_file
from trainer.optim.adamw import worker_count
from trainer.plan.prediction import Prediction, from_own_steps
from trainer.preflight.preflight import Ready
from trainer.record.folder import PREDICTION, TRACE, RunFolderError
from trainer.run.session import Session
from trainer.run.traced import trace_text


def record_times(session: Session, ready: Ready, predicted: Prediction) -> dict[str, Any]:
    """Writes both files, and --trace's; returns two lines of the summary. Raises RunFolderError."""
    folder, call_secs = session.folder, session.call_times.mean_secs()
    ours = [record for record in folder.steps() if record["step"] > ready.done]
    own, measured = from_own_steps(
        ready.step, ours, call_secs, workers=worker_count(ready.config), in_turns=session.network.in_turns
    )
    facts = {
        "before": predicted.as_json(),
        "own_costs": own.as_json(),
        "measured_step_secs": measured,
        "call_secs": call_secs,
    }
    folder.write(PREDICTION, facts)
    if session.traces:
        text = trace_text(session.traces[-1], ready.done + len(session.traces), (predicted, own))
        folder.write_text(TRACE, text)
        if ready.config.trace is not None:
            _write(ready.config.trace, text)
    return {"predicted_step_secs": predicted.step_secs, "modelled_step_secs": own.step_secs}


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path.absolute(), text.encode())
    except OSError as error:
        raise RunFolderError(
            f"--trace {path} cannot be written: {error.strerror}", hint="the steps are done; RUN/trace.json is the same"
        ) from error
