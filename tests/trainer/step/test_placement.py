from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import ConfigError
from trainer.step.placement import place


@given(st.integers(1, 8), st.integers(0, 90), st.integers(0, 9))
def test_runs_are_contiguous_and_of_nearly_one_length(devices, more, resident):
    layers = devices + more
    if resident > layers // devices:
        with pytest.raises(ConfigError, match=f"a device has {layers // devices} layers"):
            place(layers, devices, resident)
        return
    placed = place(layers, devices, resident)
    assert [i for p in placed for i in p.layers] == list(range(layers))
    assert {len(p.layers) for p in placed} <= {layers // devices, layers // devices + 1}
    assert all(list(p.resident) == list(p.layers)[:resident] for p in placed)


def test_more_devices_than_layers_is_an_error():
    with pytest.raises(ConfigError, match="3 devices for 2 layers"):
        place(2, 3, 0)
