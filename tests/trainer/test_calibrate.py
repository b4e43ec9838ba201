"""`python -m trainer calibrate`: what it measures, what it says that it did not, and the plan that takes it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.plan.test_timeline import COSTS, step
from tests.trainer.runs import settings
from trainer import calibrate as module
from trainer.__main__ import main
from trainer.architecture.config import ModelConfig
from trainer.calibrate import MadeUpUnit, worker_counts
from trainer.device.cpu import CpuBackend
from trainer.plan.calibration import Calibration, is_calibration, read, write
from trainer.plan.costs import CostsError
from trainer.plan.sources import config_of, costs_of
from trainer.run.start import run

ROOT = Path(__file__).parents[2]
SMOLLM = ROOT / "cache_manifests/smollm2-135m.json"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a few thousand elements, for tests that measure no speed."""
    monkeypatch.setattr(module, "PARAMETER_ELEMENTS", 4096)
    monkeypatch.setattr(module, "available_cpus", lambda: 3)


def calibrated(out: Path, *args: str) -> dict:
    assert main(["calibrate", *args, "--out", str(out), "--secs", "1", "--json"]) == 0
    return json.loads(out.read_text())


def made(**others) -> Calibration:
    given = {
        "backend": "cpu", "dtype": "bfloat16", "update_secs": {1: 2e-9, 2: 3e-9, 4: 8e-9}, "host": {},
        "delay_secs": {0: 1e-4, 1: 2e-4, 2: 4e-4, 4: 5e-5},
        "upload_bytes_per_sec": 5e9, "download_bytes_per_sec": 4e9, "device": None, "shapes": {}, "call_secs": {},
        "not_measured": (),
    }  # fmt: skip
    return Calibration(**{**given, **others})


def test_every_number_of_workers_is_measured_and_what_is_not_is_said(small, tmp_path, capsys) -> None:
    found = calibrated(tmp_path / "host.json", "--update-workers", "5")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == found
    assert sorted(found["update_secs"]) == ["1", "2", "3"]
    assert all(secs > 0 for secs in found["update_secs"].values())
    assert sorted(found["delay_secs"]) == ["0", "1", "2", "3"]
    assert (found["download_bytes_per_sec"], found["device"]) == (None, None)
    said = " ".join(found["not_measured"])
    assert "there are 3 CPUs" in said
    assert "copies to a card" in said
    assert "device time" in said
    assert printed.err.count("updates  ") == 3, "each result as it comes"


def test_what_it_updates_is_what_a_run_updates(small) -> None:
    """All elements once a step, and nothing is left on the device."""
    card, taken = CpuBackend(), []
    unit = MadeUpUnit(card, "bfloat16", 5)

    class Noting(module.AdamW):
        def submit(self, unit):
            taken.append(sum(buffer.spec.elements for buffer in unit._gradients))
            super().submit(unit)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "AdamW", Noting)
        each, delay = module.update_secs_of(card, "bfloat16", 2, 0.0)
    assert each > 0
    assert delay > 0
    assert set(taken) == {16 * 4096}
    assert len(taken) == 2
    assert card.bytes_in_use == 0
    assert unit.parameters[0].decays


def test_with_a_run_it_has_the_costs_that_a_plan_takes_from_the_run(small, llama, data, tmp_path, capsys) -> None:
    out, file = tmp_path / "run", tmp_path / "calibration.json"
    config = settings(llama, data, out, steps=3)
    run(config)
    found = calibrated(file, str(out))
    prediction = json.loads((out / "prediction.json").read_text())
    assert found["call_secs"] == prediction["call_secs"]
    assert {name.partition("[")[0].partition(".")[0] for name in found["call_secs"]} >= {"layer", "head"}
    model = ModelConfig.from_json(config_of(llama))
    of_run, of_file = (costs_of(model, [source], config)(step()) for source in (out, file))
    assert of_file.pass_secs["forward"] == of_run.pass_secs["forward"]
    assert of_file.pass_secs["backward"] <= of_run.pass_secs["backward"]  # what waits for a CPU is apart
    assert of_file.update_secs == pytest.approx(of_run.update_secs)  # with as many workers as the run had
    argv = ["plan", "--model", str(llama), "--seq", "32", "--dtype", "float32", "--from", str(file)]
    capsys.readouterr()
    assert main([*argv, "--host-gib", "8"]) == 0
    assert "2 steps of a run; updates as in the run, scaled to 3 workers" in capsys.readouterr().out
    for other in (["--seq", "64"], ["--model", str(SMOLLM)]):
        assert main([*argv, *other]) == 2
    shown = capsys.readouterr().err
    assert "the calibration's run had --seq 32" in shown
    assert "another model" in shown


def test_the_host_is_taken_from_it_and_the_device_from_elsewhere(tmp_path) -> None:
    file = tmp_path / "host.json"
    write(made(), file)
    config = settings(Path("m"), Path("d"), tmp_path, seq=128, dtype="bfloat16", update_workers=3)
    model = ModelConfig.from_json(config_of(SMOLLM))
    described = replace(step(), model=model, options=config.catalog_options)
    alone, beside = (costs_of(model, [*sources, file], config)(described) for sources in ([], [SMOLLM]))
    estimates = costs_of(model, [SMOLLM], config)(described)
    assert (beside.pass_secs, beside.cast_secs) == (estimates.pass_secs, estimates.cast_secs)
    assert alone.pass_secs != estimates.pass_secs
    for costs in (alone, beside):
        assert (costs.update_secs, costs.workers, costs.copy_bytes_per_sec) == (3e-9, 2, 4e9)


def test_a_runs_updates_are_scaled_to_other_workers() -> None:
    ours = replace(COSTS, update_secs=1e-9, workers=2, measured_updates=True, copy_bytes_per_sec=7.0)
    four = made().of_host(ours, 4)
    assert four.update_secs == pytest.approx(1e-9 * 8 / 3)
    assert (four.workers, four.copy_bytes_per_sec) == (4, 7.0)
    assert made().of_host(ours, 2).update_secs == pytest.approx(1e-9)
    assert (four.busy_call_secs, made().of_host(ours, 2).busy_call_secs) == (0.0, 0.0)
    apart = replace(ours, busy_call_secs=1e-9)  # what its calls waited is taken off
    assert made().of_host(apart, 2).busy_call_secs == pytest.approx(3e-4)
    assert made().of_host(apart, 4).busy_call_secs == 0.0  # no less than without updates


def test_two_sources_of_the_same_are_refused(tmp_path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    write(made(), one)
    write(made(device=COSTS, shapes={"seq": 128}), other)
    config = settings(Path("m"), Path("d"), tmp_path)
    model = ModelConfig.from_json(config_of(SMOLLM))
    for sources in ([one, other], [SMOLLM, SMOLLM], [SMOLLM, other]):
        with pytest.raises(CostsError, match="more than one tells the costs"):
            costs_of(model, sources, config)


@pytest.mark.parametrize(
    "damage", [{"update_secs": {}}, {"update_secs": {"2": 1.0}}, {"delay_secs": {"1": 1.0}}, {"device": {"a": 1}}, {}]
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, damage) -> None:
    file = tmp_path / "host.json"
    write(made(), file)
    assert read(file) == made()
    value = {**json.loads(file.read_text()), **damage}
    if not damage:
        del value["host"]
    file.write_text(json.dumps(value))
    assert is_calibration(file)
    with pytest.raises(CostsError, match=f"{file} is damaged"):
        read(file)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path, capsys) -> None:
    with pytest.raises(CostsError, match="cannot be written"):
        write(made(), tmp_path / "none" / "host.json")


@given(st.integers(1, 1000))
def test_worker_counts_begin_at_one_and_end_at_the_most(most: int) -> None:
    counts = worker_counts(most)
    assert counts[0] == 1
    assert counts[-1] == most
    assert counts == sorted(set(counts))
    assert all(later <= 2 * earlier for earlier, later in pairwise(counts))
