"""What a call of each graph takes on the devices of a run: the mean over a session's steps after its first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from graphcache.device.base import DeviceBackend


class CallTimes:
    """Calls of all devices together, in evaluations too."""

    def __init__(self, devices: Sequence[DeviceBackend]) -> None:
        self._devices = devices
        self.begin()

    def begin(self) -> None:
        """Count from here on: a graph's first call may load what later ones find."""
        self._calls, self._secs = self._so_far()

    def mean_secs(self) -> dict[str, float]:
        """Of a call, by graph name, of the graphs that were called."""
        calls, secs = self._so_far()
        return {
            name: (secs[name] - self._secs[name]) / (count - self._calls[name])
            for name, count in sorted(calls.items())
            if count > self._calls[name]
        }

    def _so_far(self) -> tuple[Counter[str], Counter[str]]:
        calls: Counter[str] = Counter()
        secs: Counter[str] = Counter()
        for device in self._devices:
            calls.update(device.calls)
            secs.update(device.call_secs)
        return calls, secs
