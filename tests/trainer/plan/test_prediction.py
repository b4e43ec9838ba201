"""A run's step time: predicted before it begins, and held against its own steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.plan.test_timeline import COSTS, step
from tests.trainer.runs import settings
from trainer.catalogs import head, layer
from trainer.config import RunConfig
from trainer.plan.estimates import from_estimates
from trainer.plan.prediction import from_artifacts, from_own_steps
from trainer.plan.timeline import play
from trainer.report.report import make_report
from trainer.run.start import run
from trainer.step.schedule import Step

EMULATED = RunConfig(
    model=Path("m"),
    data=Path("d"),
    out=Path("r"),
    backend="emulator:2",
    emulated_time=3.0,
    emulated_link=0.001,
    no_arithmetic=True,
)


def estimates(of: Step) -> dict[str, int]:
    parts = (*layer.parts(of.model, of.options).values(), *head.parts(of.model, of.options).values())
    return {graph.name: 1000 * (number + 1) for number, graph in enumerate(parts)}


def test_estimates_and_the_link_are_as_the_emulator_spends_them() -> None:
    two = step(devices=2)
    found = from_artifacts(two, estimates(two), EMULATED, workers=2, in_turns=False)
    costs = from_estimates(two, estimates(two), 2, "")
    scaled = replace(costs.slower(3.0), copy_bytes_per_sec=1e6)
    assert scaled.pass_secs == {kind: 3 * secs for kind, secs in costs.pass_secs.items()}
    assert (scaled.resident_secs, scaled.update_secs) == (3 * costs.resident_secs, costs.update_secs)
    assert found.step_secs == play(two, scaled).step_secs
    assert found.basis.startswith("the compiler's estimates")
    in_turns = from_artifacts(two, estimates(two), EMULATED, workers=2, in_turns=True)
    assert in_turns.step_secs == play(two, scaled, in_turns=True).step_secs


def test_where_nothing_can_be_told_the_reason_is() -> None:
    one = step()
    host = from_artifacts(one, None, EMULATED, workers=1, in_turns=True)
    slow = replace(EMULATED, emulated_time=None, no_arithmetic=False)
    emulator = from_artifacts(one, estimates(one), slow, workers=1, in_turns=True)
    lacking = dict(list(estimates(one).items())[1:])
    card = from_artifacts(one, lacking, EMULATED, workers=1, in_turns=True)
    assert [each.step_secs for each in (host, emulator, card)] == [None, None, None]
    assert "--emulated-time" in emulator.basis
    assert f"has no estimate for {next(iter(estimates(one)))}" in card.basis


def test_the_model_with_a_runs_own_costs_gives_what_such_a_run_takes() -> None:
    one = step(resident=0)
    costs = replace(COSTS, update_secs=2e-6)
    timeline = play(one, costs)
    record = {
        "step_secs": timeline.step_secs,
        "phase_secs": timeline.device_secs[0],
        "update_busy_secs": timeline.update_busy_secs,
    }
    own, measured = from_own_steps(one, [{**record, "step_secs": 1e9}, record, record], {}, workers=2, in_turns=True)
    assert measured == timeline.step_secs
    assert own.step_secs == pytest.approx(timeline.step_secs, rel=1e-6)
    assert own.basis == "2 steps of a run"
    nothing, none = from_own_steps(one, [record], {}, workers=2, in_turns=True)
    assert (nothing.step_secs, none) == (None, None)


def test_a_run_writes_both_and_the_report_shows_their_error(llama: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = run(settings(llama, data, out, steps=4))
    written = json.loads((out / "prediction.json").read_text())
    assert summary["predicted_step_secs"] is None
    assert "the host" in json.loads((out / "environment.json").read_text())["prediction"]["basis"]
    assert written["own_costs"]["step_secs"] == summary["modelled_step_secs"] > 0
    report = make_report([out])
    table = next(table for table in report.tables() if table.title == "predicted against measured")
    modelled, measured = written["own_costs"]["step_secs"], written["measured_step_secs"]
    assert table.rows == (
        (
            "run",
            "the model with its own costs",
            "3 steps of a run",
            f"{modelled:.3f}",
            f"{measured:.3f}",
            f"{modelled / measured - 1:+.1%}",
        ),
    )
    assert report.as_json()["runs"][0]["prediction"] == written
