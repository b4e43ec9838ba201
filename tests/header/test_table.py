"""The tensor table: read from headers alone, the same for every save of a model, back from its compact form."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphcache.header.shard import DTYPE_BITS
from graphcache.header.table import Notice, TensorInfo, TensorTable, read_config, read_table
from tests.support.sparse import PRESETS, header, split, write_checkpoint, write_header, write_index, write_shard

ROOT = Path(__file__).parents[2]
# Published parameter counts of the models.
PARAMETERS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "smollm2-135m": 134_515_008,
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {preset: write_checkpoint(preset, folder / preset) for preset in PRESETS}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_table_of_a_published_model(preset: str, checkpoints: dict[str, Path]) -> None:
    table = read_table(checkpoints[preset])
    assert {tensor.name: list(tensor.shape) for tensor in table} == PRESETS[preset].tensors()
    assert table.elements == PARAMETERS[preset]
    assert table.size_bytes == 2 * table.elements
    assert table.notices == table.unknown == ()


def test_every_kind_of_model_argument_gives_the_same_table(checkpoints: dict[str, Path]) -> None:
    many, one = checkpoints["qwen2.5-7b"], checkpoints["smollm2-135m"]
    assert read_table(many) == read_table(many / "model.safetensors.index.json")
    assert read_table(one) == read_table(one / "model.safetensors")


def test_a_hub_snapshot_of_links_into_blobs(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sorted(checkpoints["qwen2.5-7b"].iterdir())):
        (blobs / f"{i:064x}").hardlink_to(file)
        (snapshot / file.name).symlink_to(Path("../../blobs", f"{i:064x}"))
    expected = read_table(checkpoints["qwen2.5-7b"])
    assert read_table(snapshot) == expected
    assert read_table(snapshot / "model.safetensors.index.json") == expected
    assert read_config(snapshot) == PRESETS["qwen2.5-7b"].config()


def test_a_folder_whose_only_file_has_another_name(tmp_path: Path) -> None:
    write_shard(tmp_path / "weights.safetensors", {"a": [3]})
    assert [tensor.name for tensor in read_table(tmp_path)] == ["a"]


def test_a_folder_whose_only_index_has_another_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.safetensors", {name: [3]})
    write_index(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"}).rename(
        tmp_path / "weights.safetensors.index.json"
    )
    assert [tensor.name for tensor in read_table(tmp_path)] == ["a", "b"]


def test_a_single_file_goes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": [3]})
    write_shard(tmp_path / "x.safetensors", {"b": [3]})
    write_index(tmp_path, {"b": "x.safetensors"})
    assert [tensor.name for tensor in read_table(tmp_path)] == ["a"]


# --- headers only -------------------------------------------------------------------------------------------------


@contextmanager
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Bytes that os.read returned while this is open, by file name."""
    counts: dict[str, int] = {}
    real_read = os.read

    def read(fd: int, count: int) -> bytes:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        part = real_read(fd, count)
        counts[name] = counts.get(name, 0) + len(part)
        return part

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read)
        yield counts


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_read_of_the_shards_is_their_headers(
    preset: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = [write_shard(tmp_path / "header", tensors) for tensors in split(PRESETS[preset].tensors())]
    with counted_reads(monkeypatch) as counts:
        table = read_table(checkpoints[preset])
    assert [counts[path.name] for path in table.shards] == sizes
    assert table.header_bytes_read == sum(sizes)


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="the kernel does not count this process's reads")
def test_the_kernel_counts_no_other_bytes(checkpoints: dict[str, Path]) -> None:
    """191 shards of 405B: all that the process reads, by any call, is headers and index. Nothing is mapped."""
    code = """
import sys
from pathlib import Path
from graphcache.header.table import read_table

def read_bytes():
    return int(open("/proc/self/io").readline().split()[1])

read_table(Path(sys.argv[1]))
empty = read_bytes()
empty = read_bytes() - empty
before = read_bytes()
table = read_table(Path(sys.argv[1]))
print(read_bytes() - before - empty, table.header_bytes_read, ".safetensors" in open("/proc/self/maps").read())
"""
    model = checkpoints["llama-3.1-405b"]
    output = subprocess.check_output([sys.executable, "-c", code, str(model)], cwd=ROOT, text=True).split()
    index_bytes = (model / "model.safetensors.index.json").stat().st_size
    assert len(list(model.glob("*.safetensors"))) == 191
    assert [int(output[0]), output[2]] == [int(output[1]) + index_bytes, "False"]


def test_offsets_lead_to_the_tensors_own_bytes(tmp_path: Path) -> None:
    """Against the safetensors library, which wrote the file."""
    numpy = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    tensors = {"b": numpy.arange(6, dtype="<i4").reshape(2, 3), "a": numpy.arange(5, dtype="<f8"), "c": numpy.array(7)}
    save_file(tensors, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    table = read_table(tmp_path)
    assert {t.name: t.shape for t in table} == {name: value.shape for name, value in tensors.items()}
    assert all(content[t.begin : t.end] == tensors[t.name].tobytes() for t in table)


# --- what is odd but legal ----------------------------------------------------------------------------------------


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"scalar": [], "empty": [0], "void": [3, 0, 2], "a": [2]})
    table = read_table(tmp_path)
    assert {t.name: (t.shape, t.elements, t.size_bytes) for t in table} == {
        "a": ((2,), 2, 4),
        "empty": ((0,), 0, 0),
        "scalar": ((), 1, 2),
        "void": ((3, 0, 2), 0, 0),
    }


@pytest.mark.parametrize("text", [b"{}", b'{"__metadata__":{}}', b'{"__metadata__":null}', b"  {}  \n"])
def test_a_checkpoint_without_tensors(text: bytes, tmp_path: Path) -> None:
    write_header(tmp_path / "model.safetensors", text, 0)
    assert len(read_table(tmp_path)) == 0


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_of_the_format(dtype: str, tmp_path: Path) -> None:
    entries = {"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, DTYPE_BITS[dtype]]}}
    write_header(tmp_path / "model.safetensors", json.dumps(entries).encode(), DTYPE_BITS[dtype])
    assert read_table(tmp_path)["a"] == TensorInfo("a", dtype, (8,), DTYPE_BITS[dtype])


def test_an_unknown_dtype_is_named_and_hides_nothing(tmp_path: Path) -> None:
    entries = header({"a": [4], "b": [4], "c": [4]})
    entries["b"]["dtype"] = "F2_NEW"
    write_header(tmp_path / "model.safetensors", json.dumps(entries).encode(), 24)
    table = read_table(tmp_path)
    assert [tensor.name for tensor in table] == ["a", "b", "c"]
    assert [(tensor.name, tensor.dtype, tensor.size_bytes) for tensor in table.unknown] == [("b", "F2_NEW", 8)]
    assert TensorTable.from_groups(table.groups()) == table


def test_a_shard_that_the_index_does_not_name_is_noticed(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_shard(tmp_path / f"{name}.safetensors", {name: [3]})
    write_index(tmp_path, {"x": "x.safetensors"})
    table = read_table(tmp_path)
    assert [tensor.name for tensor in table] == ["x"]
    fact = "lies beside the checkpoint, which does not name it"
    assert table.notices == (Notice("unnamed-shard", str(tmp_path / "y.safetensors"), fact),)


def test_a_tensor_that_the_index_does_not_name_is_noticed_and_kept(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.safetensors", {"a": [3], "b": [3]})
    write_index(tmp_path, {"a": "x.safetensors"})
    table = read_table(tmp_path)
    assert [tensor.name for tensor in table] == ["a", "b"]
    assert [notice.name for notice in table.notices] == ["unlisted-tensor"]


def test_another_save_of_the_same_model_is_the_same_table(tmp_path: Path) -> None:
    """Tensors in another order, other metadata, in one file or in shards cut elsewhere."""
    tensors = PRESETS["smollm2-135m"].tensors()
    write_shard(tmp_path / "a.safetensors", tensors)
    shuffled = list(tensors.items())
    random.Random(1).shuffle(shuffled)
    entries = {**header(dict(shuffled)), "__metadata__": {"z": "1", "a": "2"}}
    write_header(tmp_path / "b.safetensors", json.dumps(entries).encode(), 2 * PARAMETERS["smollm2-135m"])
    parts = tmp_path / "parts"
    parts.mkdir()
    for i in range(3):
        write_shard(parts / f"{i}.safetensors", dict(shuffled[i::3]))
    write_index(parts, {name: f"{i}.safetensors" for i in range(3) for name, _ in shuffled[i::3]})
    tables = [read_table(tmp_path / "a.safetensors"), read_table(tmp_path / "b.safetensors"), read_table(parts)]
    assert tables[0] == tables[1] == tables[2]
    assert tables[0].groups() == tables[1].groups() == tables[2].groups()


def test_a_table_is_a_mapping_by_name(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"b": [3], "a": [2]})
    table = read_table(tmp_path)
    assert "a" in table
    assert "c" not in table
    assert table.get("c") is None
    assert table["b"].shape == (3,)
    assert [tensor.name for tensor in table] == ["a", "b"]
    with pytest.raises(KeyError):
        table["c"]


# --- config.json --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_the_config_beside_a_model(preset: str, checkpoints: dict[str, Path]) -> None:
    assert read_config(checkpoints[preset]) == PRESETS[preset].config()
    assert read_config(read_table(checkpoints[preset]).shards[0]) == PRESETS[preset].config()


def test_no_config_is_none(tmp_path: Path) -> None:
    assert read_config(tmp_path) is None


def test_a_config_may_hold_infinity(tmp_path: Path) -> None:
    """Mamba 2's does: time_step_limit."""
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_config(tmp_path) == {"time_step_limit": [0.0, math.inf]}
