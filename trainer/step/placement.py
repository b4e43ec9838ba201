"""Which device has which layers: contiguous runs, in order, whose lengths differ by one at most."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from trainer.config import ConfigError


@dataclass(frozen=True)
class Placement:
    """The layers of one device, and which of them keep the optimizer's state there.

    The resident ones are the lowest of the device: their gradients come last, so it is their update that nothing would
    hide if it went over the host.
    """

    device: int
    layers: range
    resident: range


def place(layers: int, devices: int, resident: int) -> tuple[Placement, ...]:
    """Raises ConfigError for more devices than layers, and for more resident layers than a device has."""
    if devices > layers:
        raise ConfigError(f"{devices} devices for {layers} layers", hint="name fewer devices in --backend")
    bounds = [device * layers // devices for device in range(devices + 1)]
    fewest = min(end - begin for begin, end in pairwise(bounds))
    if resident > fewest:
        raise ConfigError(
            f"--resident-layers is {resident}, and a device has {fewest} layers",
            hint=f"at most {fewest} on each device",
        )
    return tuple(
        Placement(device, range(begin, end), range(begin, begin + resident))
        for device, (begin, end) in enumerate(pairwise(bounds))
    )
