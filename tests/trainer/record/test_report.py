from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from trainer.checkpoint.folder import SavedCheckpoint
from trainer.data.corpus import DataFacts
from trainer.optim.base import UpdateReport
from trainer.record.report import Progress, step_record, steps_line
from trainer.record.say import data_lines
from trainer.step.clock import Clock
from trainer.step.loop import StepResult

FIELDS = {
    *("step", "loss", "tokens", "label_tokens", "lr", "step_secs", "tokens_per_sec", "update_wait_secs"),
    *("update_busy_secs", "grad_norm", "clip_factor", "phase_secs", "device_bytes", "device_peak_bytes"),
}


class FakeDevice:
    name = "fake:0"
    bytes_in_use = 7
    peak_bytes = 9


def record(step=3):
    clock = Clock()
    with clock.phase("forward"):
        pass
    return step_record(
        step,
        1e-4,
        StepResult(loss=2.5, tokens=1024, label_tokens=1000, update=UpdateReport(0.5, 2.0, None, 1.0), clock=clock),
        [FakeDevice()],
    )


def test_a_step_has_all_its_fields():
    found = record()
    assert set(found) == FIELDS
    assert (found["step"], found["loss"], found["device_bytes"]) == (3, 2.5, {"fake:0": 7})
    assert set(found["phase_secs"]) == {"forward"}
    assert found["tokens_per_sec"] > 0


def test_progress_is_a_line_a_step_where_there_is_no_terminal():
    stream = io.StringIO()
    with Progress(10, stream) as progress:
        progress.step({**record(4), "step_secs": 20.0, "tokens_per_sec": 51.2})
        progress.say("saved it")
    line, said = stream.getvalue().splitlines()
    assert line == "step 4/10  loss 2.5000  51 tokens/s  20.00 s/step  update wait 0.50 s  left 2 min"
    assert said == "saved it"


def test_on_a_terminal_the_line_is_rewritten_and_what_is_said_stays():
    class FakeTerminal(io.StringIO):
        def isatty(self):
            return True

    stream = FakeTerminal()
    with Progress(10, stream) as progress:
        progress.step(record(4))
        progress.say("saved it")
        progress.step(record(5))
    assert "step 5/10" in stream.getvalue()
    assert stream.getvalue().count("saved it") == 1


class HungUp(io.StringIO):
    """A terminal that is gone."""

    def isatty(self):
        return True

    def write(self, text):
        raise OSError(5, "Input/output error")


def full_disk():
    return io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True)


@pytest.mark.parametrize("broken", [full_disk, HungUp])
def test_progress_that_cannot_be_written_is_lost(broken):
    with broken() as stream, Progress(10, stream) as progress:
        progress.step(record(4))
        progress.say("saved it")


def test_without_stderr_there_is_no_progress(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(10) as progress:
        progress.step(record(4))
        progress.say("saved it")
    assert capsys.readouterr().out == ""


def test_what_a_run_begins_with():
    facts = DataFacts(
        digest="digest",
        documents=1000,
        empty_documents=3,
        tokens=64_000,
        label_tokens=50_000,
        sequences=2000,
        sequences_without_labels=7,
    )
    assert data_lines(facts, 32) == [
        "data     64,000 tokens in 1,000 documents, 50,000 of them count; 3 empty documents left out",
        "data     2,000 sequences of 32 tokens; 7 in which nothing counts left out",
    ]
    assert steps_line(250, None) == "steps    250, from the beginning"
    saved = SavedCheckpoint(folder=Path("RUN/checkpoints/step-00000010"), step=10, config={}, data={}, files={})
    assert steps_line(250, saved) == "steps    250; 10 are done, in RUN/checkpoints/step-00000010"
