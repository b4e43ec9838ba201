"""The compact form of a table: short for real models, exact for any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphcache.header.groups import GroupError, Shape, TensorGroup, collapse, expand
from graphcache.header.table import TensorTable, read_table
from tests.support.sparse import PRESETS, write_checkpoint

BF16 = Shape("BF16", (2,), 4)


def groups_of(*names: str) -> list[tuple[str, str]]:
    return [(group.pattern, group.indices) for group in collapse((name, BF16) for name in names)]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_real_model_takes_some_fifteen_groups(preset: str, tmp_path: Path) -> None:
    table = read_table(write_checkpoint(preset, tmp_path))
    groups = table.groups()
    assert len(groups) <= 15
    read_back = [TensorGroup.from_json(json.loads(json.dumps(group.as_json()))) for group in groups]
    assert TensorTable.from_groups(read_back) == table
    assert sum(group.count for group in groups) == len(table)


def test_layers_become_a_range() -> None:
    names = [f"model.layers.{i}.w" for i in (10, 1, 0, 2, 5)]
    assert groups_of(*names, "norm") == [("model.layers.{}.w", "0-2,5,10"), ("norm", "")]


def test_a_layer_of_another_shape_is_another_group() -> None:
    other = Shape("BF16", (3,), 6)
    groups = collapse([("a.0", BF16), ("a.1", other), ("a.2", BF16), ("a.3", BF16)])
    assert [(g.pattern, g.indices, g.shape) for g in groups] == [("a.{}", "0,2-3", (2,)), ("a.{}", "1", (3,))]


def test_layers_with_the_same_experts_are_one_group() -> None:
    names = [f"layers.{i}.experts.{j}.w" for i in range(4) for j in range(8)]
    assert groups_of(*names) == [("layers.{}.experts.{}.w", "0-3 x 0-7")]
    assert groups_of(*names, "layers.9.experts.1.w") == [
        ("layers.{}.experts.{}.w", "0-3 x 0-7"),
        ("layers.{}.experts.{}.w", "9 x 1"),
    ]


@pytest.mark.parametrize(
    "name", ["a.00", "a.01", "a.-1", "a.1e3", "a.\u0661", "{}", "a.{}.0", "", ".", "0", "1.2.3.4.5.6", "a.99999999999"]
)
def test_odd_names_come_back_as_they_were(name: str) -> None:
    groups = collapse([(name, BF16), ("a.0", BF16)])
    assert sorted(expand(groups)) == sorted([(name, BF16), ("a.0", BF16)])


def test_the_label_shows_indices_in_their_places() -> None:
    (group,) = collapse((f"layers.{i}.experts.{j}.w", BF16) for i in range(4) for j in range(8))
    assert group.label == "layers.{0-3}.experts.{0-7}.w"


components = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from(["a", "w", "{}", "00", "", "-1", "é", " x ", "1,2"]),
    st.text(max_size=3),
)
names = st.lists(components, min_size=1, max_size=7).map(".".join)
shapes = st.builds(
    lambda dtype, shape: Shape(dtype, shape, 7), st.sampled_from(["BF16", "NEW"]), st.sampled_from([(), (2,), (2, 3)])
)


@given(st.dictionaries(names, shapes, max_size=40))
@example({"0": BF16, "0.0": BF16, "{}": BF16})
def test_expanding_gives_back_what_was_collapsed(tensors: dict[str, Shape]) -> None:
    groups = collapse(tensors.items())
    assert sorted(expand(groups)) == sorted(tensors.items())
    assert collapse(reversed(tensors.items())) == groups


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))))
def test_any_set_of_layers_and_experts_comes_back(indices: set[tuple[int, int, int]]) -> None:
    tensors = {f"a.{i}.b.{j}.{k}.w": BF16 for i, j, k in indices}
    assert dict(expand(collapse(tensors.items()))) == tensors


GOOD = {"pattern": "a.{}", "indices": "0-1", "dtype": "BF16", "shape": [2]}


@pytest.mark.parametrize(
    "changed",
    [
        {"indices": "0-"},
        {"indices": "1-0 x 2"},
        {"indices": "0-9999999999"},
        {"indices": "00"},
        {"indices": "-1"},
        {"indices": "0 x 1"},
        {"indices": "0-9999999", "pattern": "a.{}"},
        {"indices": "0-9999999 x 0-9999999", "pattern": "{}.{}"},
        {"indices": 0},
        {"pattern": 1},
        {"pattern": None},
        {"dtype": []},
        {"dtype": "NEW"},
        {"shape": "2"},
        {"shape": [-1]},
        {"shape": [2.0]},
        {"shape": [True]},
        {"shape": None},
    ],
    ids=repr,
)
def test_a_broken_group_is_a_named_error(changed: dict[str, object]) -> None:
    with pytest.raises(GroupError):
        TensorTable.from_groups([TensorGroup.from_json({**GOOD, **changed}), TensorGroup.from_json(GOOD)])


@pytest.mark.parametrize("value", [None, 1, "a", [], {}])
def test_what_is_no_group_is_a_named_error(value: object) -> None:
    with pytest.raises(GroupError):
        TensorGroup.from_json(value)  # type: ignore[arg-type]


def test_groups_that_give_a_tensor_twice_are_a_named_error() -> None:
    with pytest.raises(GroupError, match="same tensor"):
        TensorTable.from_groups([TensorGroup.from_json(GOOD), TensorGroup.from_json({**GOOD, "indices": "1"})])
