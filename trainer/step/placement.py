"""Which device has which layers: groups of neighbouring layers, dealt to the devices round and round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from trainer.config import ConfigError


@dataclass(frozen=True)
class Placement:
    """Where the layers of a model are. The head is on the last device.

    groups:   the layers whose gradients exist together, from the bottom of the model up; group k is on device
              k % devices. On one device a group is one layer.
    resident: layers of each device that keep the optimizer's state there: the lowest, since their gradients come last,
              and nothing would hide an update of theirs that went over the host
    on_host:  devices whose layer inputs wait on the host for backward
    """

    devices: int
    groups: tuple[range, ...]
    resident: int
    on_host: frozenset[int] = frozenset()

    @property
    def layers(self) -> int:
        return self.groups[-1].stop

    def device_of(self, layer: int) -> int:
        return next(k for k, group in enumerate(self.groups) if layer in group) % self.devices

    def layers_of(self, device: int) -> tuple[int, ...]:
        return tuple(layer for group in self.groups[device :: self.devices] for layer in group)

    def resident_layers(self) -> frozenset[int]:
        return frozenset(i for device in range(self.devices) for i in self.layers_of(device)[: self.resident])


def placements(layers: int, devices: int, resident: int) -> Iterator[Placement]:
    """Every way to deal the layers so that no device has more than it must: the largest groups first.

    Raises ConfigError for more devices than layers, and for more resident layers than a device has.
    """
    if devices > layers:
        raise ConfigError(f"{devices} devices for {layers} layers", hint="name fewer devices in --backend")
    fewest = layers // devices
    if resident > fewest:
        raise ConfigError(
            f"--resident-layers is {resident}, and a device has {fewest} layers",
            hint=f"at most {fewest} on each device",
        )
    rounds = [fewest] if devices == 1 else range(1, fewest + 1)
    for count in rounds:
        placement = Placement(devices, _groups(layers, count * devices), resident)
        held = [len(placement.layers_of(device)) for device in range(devices)]
        if count == 1 or (min(held) == fewest and max(held) == -(-layers // devices)):
            yield placement


def _groups(layers: int, count: int) -> tuple[range, ...]:
    """So many runs of layers, whose lengths differ by one at most."""
    bounds = [k * layers // count for k in range(count + 1)]
    return tuple(range(begin, end) for begin, end in pairwise(bounds))
