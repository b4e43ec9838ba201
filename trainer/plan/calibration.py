"""What `python -m trainer calibrate` has measured, as a file that `trainer plan --from` takes. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from graphcache.process.whole_file import replace_file
from trainer.plan.costs import CostsError, StepCosts

FORMAT = "trainer-calibration-1"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A host, and where a run was given the device of that run.

    update_secs:  a worker's seconds for one element of a host update, by the number of workers that update at a time
    delay_secs:   mean seconds that a thread which slept waits for a CPU, by the number of workers that update; 0: none
    upload_bytes_per_sec, download_bytes_per_sec:  between the host and `backend`; None where nothing is copied
    device:       StepCosts of the run, of which the update's is the host's above scaled to that run's; None without one
    shapes:       what the device's costs hold for: the run's seq, micro_batch, dtype and layer; empty without a run
    call_secs:    mean seconds of a call by graph name; empty where the run has none
    host:         CPUs, load before and after, versions
    not_measured: what is assumed instead, a sentence each
    """

    backend: str
    dtype: str
    update_secs: Mapping[int, float]
    delay_secs: Mapping[int, float]
    upload_bytes_per_sec: float | None
    download_bytes_per_sec: float | None
    device: StepCosts | None
    shapes: Mapping[str, Any]
    call_secs: Mapping[str, float]
    host: Mapping[str, Any]
    not_measured: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        updates, delays = (
            {str(count): secs for count, secs in each.items()} for each in (self.update_secs, self.delay_secs)
        )
        device = None if self.device is None else self.device.as_json()
        return {"format": FORMAT, **asdict(self), "update_secs": updates, "delay_secs": delays, "device": device}

    def busy_call_secs(self, workers: int) -> float:
        """What a call takes longer while so many workers update."""
        return max(0.0, self.delay_secs[workers] - self.delay_secs[0])

    def of_host(self, costs: StepCosts, workers: int) -> StepCosts:
        """`costs` with what this host does in place of what was assumed of one.

        Where they were measured with a number of workers that was measured here too, only the ratio between that number
        and `workers` is taken from here.
        """
        count = max(count for count in self.update_secs if count <= workers)
        update_secs, basis = self.update_secs[count], f"updates as measured with {count} workers"
        if costs.measured_updates and costs.workers in self.update_secs:
            update_secs = costs.update_secs * self.update_secs[count] / self.update_secs[costs.workers]
            basis = f"updates as in the run, scaled to {count} workers"
        # What was measured in a run holds for its own host, unless what its calls waited for a CPU is known apart.
        busy = 0.0 if costs.measured_updates and not costs.busy_call_secs else self.busy_call_secs(count)
        rates = [rate for rate in (self.upload_bytes_per_sec, self.download_bytes_per_sec) if rate is not None]
        copies = costs.copy_bytes_per_sec if costs.measured_updates or not rates else min(rates)
        return replace(
            costs,
            update_secs=update_secs,
            workers=count,
            busy_call_secs=busy,
            copy_bytes_per_sec=copies,
            basis=f"{costs.basis.partition('; ')[0]}; {basis}",
        )


def write(calibration: Calibration, path: Path) -> None:
    """Whole or not at all. Raises CostsError."""
    try:
        replace_file(path.absolute(), (json.dumps(calibration.as_json(), indent=2, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise CostsError(f"{path} cannot be written: {error.strerror}", hint="give another --out") from error


def is_calibration(path: Path) -> bool:
    """Whether a file says that it is one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("format") == FORMAT


def read(path: Path) -> Calibration:
    """Raises CostsError for a file that `write` has not written."""
    value = json.loads(path.read_bytes())
    try:
        fields = {name: value[name] for name in Calibration.__dataclass_fields__}
        updates = {int(count): float(secs) for count, secs in fields["update_secs"].items()}
        device = None if fields["device"] is None else StepCosts(**fields["device"])
        delays = {int(count): float(secs) for count, secs in fields["delay_secs"].items()}
        if min(updates, default=0) != 1 or delays.keys() != {0, *updates}:
            raise ValueError("its times are not of 1 worker and more")
        given = {
            "update_secs": updates,
            "delay_secs": delays,
            "device": device,
            "not_measured": tuple(fields["not_measured"]),
        }
        return Calibration(**{**fields, **given})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CostsError(
            f"{path} is damaged, or of another version: {error!r}", hint="make it again: python -m trainer calibrate"
        ) from error
