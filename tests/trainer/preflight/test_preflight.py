from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graphcache.device.backend_name import BackendError
from graphcache.errors import MissingGraphsError
from tests.trainer.runs import settings
from trainer.preflight import disk, preflight
from trainer.preflight.disk import DiskSpaceError
from trainer.preflight.preflight import Findings, MemoryPlanError


def test_a_run_that_lacks_nothing_is_ready(llama, data, tmp_path):
    ready = Findings(settings(llama, data, tmp_path / "run", steps=7)).ready()
    assert (ready.done, ready.steps) == (0, 7)
    assert not (tmp_path / "run").exists()


def test_a_backend_that_names_no_device_is_an_error(llama, data, tmp_path):
    with pytest.raises(BackendError, match="names no device"):
        Findings(settings(llama, data, tmp_path / "run", backend="cpux"))


def test_all_problems_are_listed_at_once(tmp_path, data):
    findings = Findings(settings(tmp_path / "none", tmp_path / "no.jsonl", tmp_path / "run"))
    message = findings.problem().message
    assert message.startswith("2 things stand in the way")
    assert f"[config] --model {tmp_path / 'none'}: there is no such file or folder" in message
    assert f"[data] --data {tmp_path / 'no.jsonl'}: there is no such file" in message


def test_a_models_name_on_a_hub_is_not_fetched(data, tmp_path):
    problem = Findings(settings(Path("someone/some-model"), data, tmp_path / "run")).problem()
    assert problem.message == "--model someone/some-model: there is no such file or folder"
    assert "nothing is fetched from a hub" in problem.hint


def test_a_run_without_its_folder_is_no_run_without_graphs(llama, data, tmp_path, monkeypatch):
    """`check` lists both, and exits as a run that ends at its folder."""
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    problem = Findings(settings(llama, data, tmp_path / "file", backend="emulator")).problem()
    assert problem.exit_code == 2
    assert "[missing-graphs]" in problem.message
    assert "[run-folder]" in problem.message


def test_missing_graphs_are_listed_with_the_command_that_builds_them(llama, data, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    config = settings(llama, data, tmp_path / "run", backend="emulator", fusion=4, micro_batch=2, resident_layers=1)
    problem = Findings(config).problem()
    assert isinstance(problem, MissingGraphsError)
    assert problem.exit_code == 3
    assert "layer.rotate[64x" in problem.message
    command = f"graphcache build --shapes-from {llama} --only layer,head,tiles,adamw --sequence 32 --micro-batch 2"
    assert f"{command} --dtype float32 --fusion 4" in problem.hint


def test_with_eager_layers_only_the_optimizers_graphs_are_needed(llama, data, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    config = settings(llama, data, tmp_path / "run", backend="emulator", eager_layers=True)
    assert Findings(config).problem() is None
    config = replace(config, resident_layers=1)
    assert {item.graph.catalog for item in Findings(config).graphs.items} == {"adamw"}


def test_a_missing_card_is_listed_with_the_missing_graphs(llama, data, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    problem = Findings(settings(llama, data, tmp_path / "run", backend="furiosa:auto")).problem()
    assert problem.exit_code == 3
    assert "[card]" in problem.message
    assert "[missing-graphs]" in problem.message
    assert "graphcache build --shapes-from" in problem.hint, "where it is copied from, however much is missing"
    assert "graphcache build" not in problem.message


def test_what_does_not_fit_a_pool_is_said_with_both_numbers(llama, data, tmp_path):
    config = settings(llama, data, tmp_path / "run", backend="emulator", pool_gib=1e-6, eager_layers=True)
    with pytest.raises(MemoryPlanError, match=r"device 0 would hold [\d,]+ bytes and its pool is 1,073"):
        Findings(config).ready()


def test_what_does_not_fit_the_host_is_an_error(llama, data, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 10_000)
    with pytest.raises(MemoryPlanError, match=r"the host would hold [\d,]+ bytes and may use 10,000"):
        Findings(settings(llama, data, tmp_path / "run")).ready()


def test_a_disk_without_room_for_a_checkpoint_is_an_error(llama, data, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "SLACK_BYTES", 1 << 60)
    with pytest.raises(DiskSpaceError, match=r"a checkpoint takes [\d,]+ bytes"):
        Findings(settings(llama, data, tmp_path / "run")).ready()


def test_a_sequence_beyond_the_models_length_is_an_error(llama, data, tmp_path):
    with pytest.raises(preflight.ConfigError, match="--seq is 512, and the model is meant for at most 256"):
        Findings(settings(llama, data, tmp_path / "run", seq=512)).ready()
