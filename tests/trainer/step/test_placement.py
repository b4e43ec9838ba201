from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import ConfigError
from trainer.step.placement import placements


@given(st.integers(1, 8), st.integers(0, 90), st.integers(0, 9))
def test_layers_are_dealt_evenly_in_groups(devices, more, resident):
    layers = devices + more
    if resident > layers // devices:
        with pytest.raises(ConfigError, match=f"a device has {layers // devices} layers"):
            list(placements(layers, devices, resident))
        return
    found = list(placements(layers, devices, resident))
    assert found
    for placed in found:
        assert [i for group in placed.groups for i in group] == list(range(layers))
        by_device = [placed.layers_of(device) for device in range(devices)]
        assert sorted(i for dealt in by_device for i in dealt) == list(range(layers))
        assert {len(dealt) for dealt in by_device} <= {layers // devices, -(-layers // devices)}
        assert all(placed.device_of(i) == device for device, dealt in enumerate(by_device) for i in dealt)
        assert len(placed.resident_layers()) == resident * devices


def test_the_last_group_is_on_the_device_of_the_head():
    for placed in placements(12, 3, 0):
        assert placed.device_of(11) == 2


def test_more_devices_than_layers_is_an_error():
    with pytest.raises(ConfigError, match="3 devices for 2 layers"):
        list(placements(2, 3, 0))
