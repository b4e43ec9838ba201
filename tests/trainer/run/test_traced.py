"""The timeline of a step: everything that the step did is on it, beside what was predicted."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from graphcache.process.chrome_trace import spans_of
from tests.trainer.runs import records, settings
from trainer.record.folder import RunFolderError
from trainer.report.report import make_report
from trainer.report.runs import ReportError
from trainer.run.start import run


@pytest.mark.parametrize("backend", ["cpu", "cpu:2"])
def test_a_step_and_its_prediction_are_in_one_file(llama, data, tmp_path, backend) -> None:
    out, file = tmp_path / "run", tmp_path / "trace.json"
    run(settings(llama, data, out, steps=3, backend=backend, trace=file))
    assert file.read_text() == (out / "trace.json").read_text()
    spans = spans_of(json.loads(file.read_text()))
    measured = [span for span in spans if span.group == "measured, step 2"]
    predicted = [span for span in spans if span.group == "predicted: 2 steps of a run"]
    assert len(measured) + len(predicted) == len(spans)
    devices = [f"device {number}" for number in range(2 if ":" in backend else 1)]
    passes = {"forward": 6, "backward": 6, "head": 2}  # three layers and two micro-batches
    for group in (measured, predicted):
        counted = Counter(span.name for span in group if span.lane in devices)
        assert {name: counted[name] for name in passes} == passes
        assert {span.lane for span in group} >= {*devices, "worker 0"}
        for lane in {span.lane for span in group}:
            ours = sorted((s.start, s.start + s.secs) for s in group if s.lane == lane)
            assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(ours)), lane
    updated = {span.name for span in measured if span.lane.startswith("worker")}
    assert {"update model.layers.0", "update lm_head", "update model.norm"} <= updated
    calls = json.loads((out / "calls.json").read_text())["calls"]
    called = Counter(span.name for span in measured if span.lane.endswith(" calls"))
    assert {name: called[name] for name in called if "." in name} == dict(sum(map(Counter, calls.values()), Counter()))
    second = records(out)[1]
    for name, secs in second["phase_secs"].items():
        assert sum(s.secs for s in measured if s.name == name and " calls" not in s.lane) == pytest.approx(
            secs, abs=1e-4
        )
    assert max(s.start + s.secs for s in measured) <= second["step_secs"] + 1e-3


def test_a_session_of_one_step_traces_that_one_and_a_resume_its_own(llama, data, tmp_path) -> None:
    out = tmp_path / "run"
    for steps, traced in ((1, 1), (4, 3)):
        run(settings(llama, data, out, steps=steps, resume=True))
        (found,) = make_report([out]).runs
        assert f"measured, step {traced}" in {span.group for span in found.trace}


def test_a_trace_that_cannot_be_written_is_an_error_and_the_steps_are_saved(llama, data, tmp_path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RunFolderError, match=f"--trace {tmp_path / 'none' / 'trace.json'} cannot be written"):
        run(settings(llama, data, out, steps=1, trace=tmp_path / "none" / "trace.json"))
    assert (out / "checkpoints" / "step-00000001" / "complete.json").exists()
    (out / "trace.json").write_text('{"traceEvents": [{"ph": "X"}]}')
    with pytest.raises(ReportError, match="is no trace"):
        make_report([out])
