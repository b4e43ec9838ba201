"""`python -m trainer plan` on committed manifests: no checkpoint, no card, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.__main__ import main

ROOT = Path(__file__).parents[3]
SMOLLM = str(ROOT / "cache_manifests/smollm2-135m.json")
SHAPES = ("--seq", "128")


def planned(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict]:
    code = main(["plan", "--model", SMOLLM, *SHAPES, "--host-gib", "64", "--json", *args])
    return code, json.loads(capsys.readouterr().out)


def test_each_number_of_resident_layers_has_its_bytes_and_its_time(capsys) -> None:
    code, found = planned(capsys, "--from", SMOLLM)
    assert code == 0
    assert [each["resident_layers"] for each in found["candidates"]] == list(range(31))
    devices = [each["memory"]["devices"][0]["total_bytes"] for each in found["candidates"]]
    assert devices == sorted(devices)
    assert "--resident-layers" in found["recommended"]


def test_a_small_pool_ends_the_list_at_the_first_that_does_not_fit(capsys) -> None:
    _, found = planned(capsys, "--backend", "emulator", "--pool-gib", "1")
    *fitting, last = found["candidates"]
    assert fitting
    assert not any(each["faults"] for each in fitting)
    assert last["faults"][0].startswith("device 0 would hold ")
    assert len(found["candidates"]) < 31


def test_nothing_fits_is_exit_code_1(capsys) -> None:
    code, found = planned(capsys, "--backend", "emulator", "--pool-gib", "0.001")
    assert (code, found["recommended"]) == (1, None)


def test_two_devices_are_listed_beside_one(capsys) -> None:
    _, found = planned(capsys, "--backend", "emulator:2")
    assert {each["devices"] for each in found["candidates"]} == {1, 2}


def test_estimates_of_other_shapes_are_refused_by_name(capsys) -> None:
    assert main(["plan", "--model", SMOLLM, "--seq", "96", "--from", SMOLLM]) == 2
    assert "has no estimate for" in capsys.readouterr().err


def test_the_table_names_a_command_and_its_reason(capsys) -> None:
    assert main(["plan", "--model", SMOLLM, *SHAPES, "--host-gib", "64"]) == 0
    out = capsys.readouterr().out
    assert "take         python -m trainer run --model" in out
    assert "because      the quickest that fits" in out


def test_no_torch() -> None:
    call = f"from trainer.__main__ import main; main(['plan', '--model', {SMOLLM!r}, '--host-gib', '64', '--json'])"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {call}; print('torch' in sys.modules, file=sys.stderr)"],
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert run.stderr.strip() == "False"
