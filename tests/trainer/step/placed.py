"""Runs whose placement a test chooses, on the host or on emulated cards that run graphs eagerly."""

from __future__ import annotations

import pytest

from graphcache.device.emulated_time import EmulatedTime
from graphcache.device.emulator import EmulatedCard, EmulatedFlag
from graphcache.device.guarded import GuardedBackend
from tests.device.example import no_artifacts
from trainer.preflight import preflight
from trainer.preflight.preflight import Ready
from trainer.step.memory import add_up
from trainer.step.placement import Placement
from trainer.step.schedule import describe_step

CATALOGS = ("layer", "head", "tiles", "adamw")


class OwnFlag(EmulatedFlag):
    """As in 2026.4: each thread has a flag of its own."""

    def flag_is_shared_by_threads(self) -> bool:
        return False

    def memory_is_shared(self) -> bool:
        return False


def place(monkeypatch: pytest.MonkeyPatch, placed: Placement) -> None:
    """Runs have their layers there, whatever would be quickest."""

    def chosen(model, config, devices, *, micro_batches, workers, **_):
        clipped = config.clip_norm is not None
        step = describe_step(model, config.catalog_options, placed, micro_batches=micro_batches, clipped=clipped)
        return step, add_up(step, workers=workers)

    monkeypatch.setattr(preflight, "choose_step", chosen)


def cards(monkeypatch: pytest.MonkeyPatch, flag: EmulatedFlag, timing: EmulatedTime | None = None) -> None:
    """Runs get emulated cards with this flag for what --backend names."""

    def opened(ready: Ready) -> list[GuardedBackend]:
        return [
            GuardedBackend(
                EmulatedCard(no_artifacts, name=device.name, flag=flag, eager_catalogs=CATALOGS, timing=timing)
            )
            for device in ready.choice.devices
        ]

    monkeypatch.setattr(Ready, "open_devices", opened)
