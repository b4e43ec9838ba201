from __future__ import annotations

import io

from trainer.clock import Clock
from trainer.loop import StepResult
from trainer.optim.base import UpdateReport
from trainer.report import Progress, step_record

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
        step, 1e-4, StepResult(2.5, 1024, 1000, UpdateReport(0.5, 2.0, None, 1.0), clock), [FakeDevice()]
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
