from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.record.event_files import EventFiles
from trainer.record.prometheus import PrometheusFile
from trainer.record.scalars import scalars
from trainer.record.watchers import WatcherError, Watchers, check_tensorboard


def record(step: int = 3, **others: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 2.5 + step,
        "lr": 1e-4,
        "tokens_per_sec": 51.25,
        "step_secs": 20.0,
        "update_wait_secs": 0.5,
        "grad_norm": None,
        "phase_secs": {"forward": 1.0},
        "device_bytes": {"cpu:0": 7},
        "device_peak_bytes": {"cpu:0": 9},
        **others,
    }


def metrics(path: Path) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(path.read_text())
    return {(s.name, ",".join(s.labels.values())): s.value for family in families for s in family.samples}


def test_the_newest_step_is_in_prometheus_text(tmp_path: Path) -> None:
    file = PrometheusFile(tmp_path / "metrics.prom")
    file.step(record(3))
    file.step(record(4, grad_norm=1.5))
    found = metrics(tmp_path / "metrics.prom")
    assert found["graphcache_trainer_step", ""] == 4
    assert found["graphcache_trainer_loss", ""] == 6.5
    assert found["graphcache_trainer_gradient_norm", ""] == 1.5
    assert found["graphcache_trainer_device_peak_bytes", "cpu:0"] == 9
    assert found["graphcache_trainer_phase_seconds", "forward"] == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]


def test_without_clipping_there_is_no_gradient_norm(tmp_path: Path) -> None:
    PrometheusFile(tmp_path / "metrics.prom").step(record())
    assert "gradient" not in (tmp_path / "metrics.prom").read_text()


def events(folder: Path, name: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def test_every_number_of_a_step_is_a_scalar(tmp_path: Path) -> None:
    files = EventFiles(tmp_path, 0)
    for step in (1, 2):
        files.step(record(step))
    files.close()
    assert events(tmp_path, "loss") == [(1, 3.5), (2, 4.5)]
    assert events(tmp_path, "device_bytes/cpu:0") == [(1, 7.0), (2, 7.0)]


def test_steps_that_are_done_again_are_shown_once(tmp_path: Path) -> None:
    for done, steps in ((0, (1, 2, 3)), (1, (2, 3))):
        files = EventFiles(tmp_path, done)
        for step in steps:
            files.step(record(step, loss=float(10 * done + step)))
        files.close()
    assert events(tmp_path, "loss") == [(1, 1.0), (2, 12.0), (3, 13.0)]


def test_names_of_scalars_say_what_a_nested_number_belongs_to() -> None:
    found = dict(scalars(record()))
    assert found["phase_secs/forward"] == 1.0
    assert "step" not in found
    assert "grad_norm" not in found


class FullDisk:
    def __init__(self) -> None:
        self.asked = 0

    def step(self, _: Any) -> None:
        self.asked += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        pass


def test_one_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path: Path) -> None:
    full, other = FullDisk(), PrometheusFile(tmp_path / "metrics.prom")
    watchers = Watchers([full, other])
    said = [line for step in (1, 2, 3) for line in watchers.step(record(step))]
    assert said == ["FullDisk is written no more: [Errno 28] No space left on device"]
    assert full.asked == 1
    assert metrics(tmp_path / "metrics.prom")["graphcache_trainer_step", ""] == 3


def test_a_folder_that_is_a_file_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WatcherError, match="cannot be written"):
        check_tensorboard(tmp_path / "file" / "events")


def test_a_missing_package_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.record.watchers.find_spec", lambda name: None)
    with pytest.raises(WatcherError) as error:
        check_tensorboard(tmp_path)
    assert error.value.hint == "pip install tensorboard"
