"""Manifests: the same bytes for the same facts, one fact a line, and a named error for whatever is wrong in one."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from graphcache.catalog import CatalogOptions
from graphcache.errors import StoreError
from graphcache.graph import Graph, Listing, TensorSpec, Use
from graphcache.header.groups import TensorGroup
from graphcache.manifest import model_source
from graphcache.manifest.file import check_target, decode_manifest, is_manifest, read_manifest, write_manifest
from graphcache.manifest.manifest import Compiled, Manifest, other_bytes, portable_config
from graphcache.manifest.text import (
    ManifestError,
    ManifestFieldError,
    ManifestFormatError,
    ManifestJsonError,
    ManifestMissingError,
    ManifestTargetError,
    render,
)
from graphcache.source.hash import SourceHash
from graphcache.store.base import Cost
from tests.store.fakes import TOOLCHAIN
from tests.support.sparse import write_checkpoint

GRAPH = Graph(
    "adamw[8]",
    "adamw",
    "trainer.graphs.adamw:adamw",
    (TensorSpec("master", "float32", (8,)), TensorSpec("grad", "bfloat16", (8,))),
    constants={"eps": 1e-6},
    settings={"tactic": "compute-bound"},
)
OTHER = replace(GRAPH, name="adamw[16]", settings={})
SOURCE = SourceHash("5" * 64, {"trainer/graphs/adamw.py::adamw": "0123456789abcdef"})
COMPILED = Compiled(artifact="a" * 64, size_bytes=219_000, cost=Cost(1.5, 1.3, 3 << 30), estimate_ns=154_000)
GROUPS = (
    TensorGroup(
        pattern="model.layers.{}.mlp.down_proj.weight",
        indices="0-31",
        dtype="BF16",
        shape=(4096, 14336),
        size_bytes=117_440_512,
    ),
)


def manifest(**changed) -> Manifest:
    made = Manifest.of(
        "tiny",
        config={"hidden_size": 8, "_name_or_path": "/home/someone/tiny", "rope_scaling": {"factor": 8.0}},
        groups=GROUPS,
        catalogs=["adamw"],
        options=CatalogOptions(tile_elements=8),
        toolchain={**TOOLCHAIN, "fusion": "8"},
        listing=Listing((GRAPH, OTHER), (Use("adamw[8]", "model.layers.{}.mlp.down_proj.weight", 32, 7),)),
        sources={"adamw[8]": SOURCE, "adamw[16]": SOURCE},
        programs={"adamw[8]": "b" * 64},
        compiled={"adamw[8]": COMPILED},
    )
    return replace(made, **changed)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "cache_manifests" / "tiny.json"


def test_it_reads_as_it_was_written(path):
    write_manifest(path, manifest())
    assert read_manifest(path) == manifest()
    assert is_manifest(path)


def test_a_graph_without_a_compile_is_planned():
    compiled, planned = manifest().graphs
    assert (compiled.status, planned.status) == ("compiled", "planned")
    assert compiled.key is not None
    assert compiled.key.parts["settings.tactic"] == "compute-bound"
    assert planned.key is None


def test_unchanged_content_leaves_the_file_alone(path):
    assert write_manifest(path, manifest())
    os.utime(path, ns=(1, 1))
    assert not write_manifest(path, manifest())
    assert path.stat().st_mtime_ns == 1
    assert write_manifest(path, manifest(model="other"))
    assert path.stat().st_mtime_ns != 1


def test_no_other_file_is_left(path):
    write_manifest(path, manifest())
    write_manifest(path, manifest(model="other"))
    assert os.listdir(path.parent) == ["tiny.json"]


def test_the_order_in_which_facts_are_given_changes_nothing():
    backwards = replace(
        manifest(),
        graphs=tuple(replace(g, source=SourceHash(g.source.digest, dict(g.source.parts))) for g in manifest().graphs),
    )
    assert render(backwards.as_json()) == render(manifest().as_json())
    other = Manifest.of(
        "tiny",
        config={"rope_scaling": {"factor": 8.0}, "hidden_size": 8},
        groups=GROUPS,
        catalogs=["adamw"],
        options=CatalogOptions(tile_elements=8),
        toolchain=dict(reversed({**TOOLCHAIN, "fusion": "8"}.items())),
        listing=Listing((GRAPH, OTHER), manifest().uses),
        sources={"adamw[16]": SOURCE, "adamw[8]": SOURCE},
        programs={"adamw[8]": "b" * 64},
        compiled={"adamw[8]": COMPILED},
    )
    assert render(other.as_json()) == render(manifest().as_json())


def test_nothing_in_it_names_a_place():
    assert "/home" not in render(manifest().as_json())
    config = {"_commit_hash": "x", "transformers_version": "5", "path": "/opt/x", "hidden_size": 8, "eos": [1, 2]}
    assert portable_config(config) == {"eos": [1, 2], "hidden_size": 8}


def test_only_options_that_are_not_the_default_are_kept():
    assert manifest().options == {"tile_elements": 8}
    assert manifest(options={}).catalog_options == CatalogOptions()


def test_one_fact_is_one_line():
    lines = render(manifest().as_json()).splitlines()
    assert '          {"name": "master", "dtype": "float32", "shape": [8]},' in lines
    assert '    "fusion": "8",' in lines
    assert sum("down_proj" in line and "BF16" in line for line in lines) == 1
    assert max(map(len, lines)) < 140


def test_a_changed_cost_is_one_changed_line():
    first = manifest()
    cheaper = replace(COMPILED, cost=replace(COMPILED.cost, wall_secs=0.5))
    second = replace(first, graphs=(replace(first.graphs[0], compiled=cheaper), first.graphs[1]))
    a, b = (render(m.as_json()).splitlines() for m in (first, second))
    assert [(x.strip(), y.strip()) for x, y in zip(a, b, strict=True) if x != y] == [
        ('"wall_secs": 1.5,', '"wall_secs": 0.5,')
    ]


def test_a_config_with_what_json_has_no_words_for_is_written_as_json(path):
    """Some config.json files hold NaN or Infinity, which Python's parser takes and others refuse."""
    config = {"limits": [0.0, math.inf], "deep": {"scale": math.nan}, "eps": 1e-6}
    write_manifest(path, manifest(config=portable_config(config)))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(path.read_text(), parse_constant=refuse)["config"] == {
        "deep": {"scale": None},
        "eps": 1e-6,
        "limits": [0.0, None],
    }
    with pytest.raises(ManifestJsonError, match="Infinity is not a JSON number"):
        decode_manifest(path.read_bytes().replace(b"null]", b"Infinity]"), "tiny.json")


def test_it_replaces_no_other_file(path):
    path.parent.mkdir()
    for name, data in (("model.safetensors", b"weights"), ("config.json", b"{}"), ("empty", b"")):
        other = path.with_name(name)
        other.write_bytes(data)
        for act in (check_target, lambda place: write_manifest(place, manifest())):
            with pytest.raises(ManifestTargetError, match=f"{name}: it is there, and no manifest"):
                act(other)
        assert other.read_bytes() == data
    with pytest.raises(ManifestTargetError):
        check_target(path.parent)


def test_a_link_to_a_manifest_stays_one(path, tmp_path):
    write_manifest(path, manifest())
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_manifest(link, manifest(model="other"))
    assert link.is_symlink()
    assert read_manifest(path).model == "other"
    path.unlink()
    write_manifest(link, manifest())
    assert read_manifest(path) == manifest(), "a link to what is not there yet"


def test_a_folder_that_cannot_be_written_is_told_before(path, monkeypatch):
    check_target(path)
    monkeypatch.setattr("graphcache.store.files.os.access", lambda place, mode: False)
    with pytest.raises(ManifestTargetError, match="is no folder that can be written"):
        check_target(path)
    path.parent.write_text("a file where the folder would be")
    with pytest.raises(ManifestTargetError, match="cache_manifests is no folder"):
        check_target(path)


def test_a_manifest_that_cannot_be_written_says_nothing_of_the_cache(path, monkeypatch):
    def full(handle: int, data: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr("graphcache.store.files.os.write", full)
    with pytest.raises(StoreError, match="Disk quota exceeded") as caught:
        write_manifest(path, manifest())
    assert "--manifest" in caught.value.hint
    assert "--cache" not in caught.value.hint


def test_other_bytes_are_told_by_key():
    made = manifest()
    (key,) = made.artifacts
    assert other_bytes(made, {key: COMPILED.artifact, "another": "c" * 64}) == []
    assert other_bytes(made, {}) == []
    (found,) = other_bytes(made, {key: "c" * 64})
    assert str(found) == f"adamw[8], key {key[:12]}: artifact cccccccccccc where the manifest names aaaaaaaaaaaa"


def test_it_is_plain_json(path):
    write_manifest(path, manifest())
    assert json.loads(path.read_text()) == json.loads(json.dumps(manifest().as_json()))


# --- faults -----------------------------------------------------------------------------------------------------------


def value() -> dict:
    return json.loads(render(manifest().as_json()))


def decode(changed: dict) -> Manifest:
    return decode_manifest(json.dumps(changed).encode(), "tiny.json")


def at(where: str, new: object) -> dict:
    """The manifest's JSON with one field replaced; `graphs.0.program` is a place, and DELETE removes it."""
    changed = value()
    *parents, last = where.split(".")
    inside = changed
    for name in parents:
        inside = inside[int(name)] if isinstance(inside, list) else inside[name]
    if new is DELETE:
        del inside[last]
    elif isinstance(inside, list):
        inside[int(last)] = new
    else:
        inside[last] = new
    return changed


DELETE = object()


@pytest.mark.parametrize(
    ("where", "new", "message"),
    [
        ("model", 1, "model is 1, not a string"),
        ("model", DELETE, "the manifest lacks 'model'"),
        ("more", 1, "the manifest holds 'more', which this program does not know"),
        ("toolchain", [], "toolchain is [], not an object"),
        ("toolchain.fusion", 8, "toolchain.fusion is 8, not a string"),
        ("graphs", {}, "graphs is {}, not a list"),
        ("graphs.0", 1, "graphs[0]: it is 1, not an object"),
        ("graphs.0.more", 1, "graphs[0]: it holds 'more'"),
        ("graphs.1.program", DELETE, "graphs[1]: it lacks 'program'"),
        ("graphs.0.program", "ABC", "graphs[0]: program is 'ABC', not 64 hexadecimal digits"),
        ("graphs.0.key", "c" * 64, "graphs[0] has a key that is not the digest of its program, toolchain and settings"),
        ("graphs.0.status", "planned", "graphs[0] has the status 'planned' where its facts say 'compiled'"),
        ("graphs.0.program", None, "graphs[0]: it was compiled and has no program"),
        ("graphs.0.graph.args.0.shape", [-1], "graphs[0]: a size of master is -1, not a count"),
        ("graphs.0.graph.name", 3, "graphs[0]: name is 3, not a string"),
        ("graphs.1.graph.name", "adamw[8]", "graphs holds two graphs of one name"),
        ("graphs.0.source.digest", "5", "graphs[0]: source.digest is '5', not 64 hexadecimal digits"),
        ("graphs.0.source.parts", {"a": 1}, "graphs[0]: source.parts.a is 1, not a string"),
        ("graphs.0.compiled.size_bytes", -1, "graphs[0]: size_bytes is -1, not a count"),
        ("graphs.0.compiled.cost", {}, "graphs[0]: "),
        ("graphs.0.compiled.cost.wall_secs", "1", "graphs[0]: wall_secs is '1', not a number of seconds"),
        ("graphs.0.compiled.artifact", "../x", "graphs[0]: artifact is '../x', not 64 hexadecimal digits"),
        ("uses.0.graph", "nothing", "uses[0] names the graph 'nothing', which is not in graphs"),
        ("uses.0.calls", 1.5, "uses[0].calls is 1.5, not a count"),
        ("options", {"tile": 8}, "options holds 'tile': 8, which no catalog has"),
        ("options", {"tile_elements": "8"}, "options holds 'tile_elements': '8', which no catalog has"),
        ("options", {"tile_elements": 0}, "options.tile_elements is 0, not from 1 to 1,099,511,627,776"),
        ("options", {"sequence": -1}, "options.sequence is -1, not from 1"),
        ("options", {"sequence": 10**30}, "not from 1 to 1,099,511,627,776"),
        ("options", {"micro_batch": True}, "options holds 'micro_batch': True, which no catalog has"),
        ("options", {"dtype": "x"}, "options.dtype is 'x', none of bfloat16, float32"),
        ("toolchain.fusion", "eight", "toolchain.fusion is 'eight', not a number of PEs"),
        ("config", [], "config is [], not an object"),
        ("groups.0.shape", "x", "not a tensor group"),
        ("catalogs.0", 1, "a catalog is 1, not a string"),
    ],
)
def test_a_field_that_cannot_be_is_named(where, new, message):
    with pytest.raises(ManifestFieldError) as raised:
        decode(at(where, new))
    assert message in raised.value.message
    assert raised.value.message.startswith("tiny.json: ")
    assert raised.value.hint


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"<<<<<<< HEAD\n{}", b"[" * 100_000, b'{"a": 1, "a": 2}'])
def test_what_is_not_json_is_named(text):
    with pytest.raises(ManifestJsonError):
        decode_manifest(text, "tiny.json")


def test_a_merge_is_recognized():
    text = render(manifest().as_json()).replace('  "model"', '<<<<<<< HEAD\n  "model"', 1)
    with pytest.raises(ManifestJsonError) as raised:
        decode_manifest(text.encode(), "tiny.json")
    assert "a merge left it so" in raised.value.hint


@pytest.mark.parametrize("other", [{}, [], 1, {"format": "graphcache-manifest-2"}, {"format": None}])
def test_another_format_is_named(other):
    with pytest.raises(ManifestFormatError):
        decode_manifest(json.dumps(other).encode(), "tiny.json")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ManifestMissingError, match="No such file"):
        read_manifest(tmp_path / "nothing.json")
    with pytest.raises(ManifestError):
        read_manifest(tmp_path)


def test_every_truncation_and_every_flipped_byte_is_a_manifest_or_a_named_error():
    text = render(manifest().as_json()).encode()
    for i in range(0, len(text), 7):
        for damaged in (text[:i], text[:i] + bytes([text[i] ^ 0x15]) + text[i + 1 :]):
            with contextlib.suppress(ManifestError):
                decode_manifest(damaged, "tiny.json")


# --- a manifest stands for its model ----------------------------------------------------------------------------------


def test_a_model_and_its_manifest_give_the_same_table_and_config(tmp_path, path):
    model = model_source.load(write_checkpoint("qwen2.5-7b", tmp_path / "Qwen2.5-7B"))
    assert model.name == "Qwen2.5-7B"
    write_manifest(path, manifest(model=model.name, groups=model.table.groups(), config=model.config))
    again = model_source.load(path)
    assert (again.name, again.table, again.config) == (model.name, model.table, model.config)


def test_an_index_is_no_manifest(tmp_path):
    folder = write_checkpoint("llama-3.2-1b", tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        index = folder / "model.safetensors"
    assert not is_manifest(index)
    assert model_source.load(index).table == model_source.load(folder).table


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("hub/models--meta-llama--Llama-3.1-8B/snapshots/0123abc", "Llama-3.1-8B"),
        ("checkpoints/step-100", "step-100"),
        ("weights", "weights"),
    ],
)
def test_a_model_is_named_by_its_folder(tmp_path, place, name):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    assert model_source.model_name(folder) == name
    assert model_source.model_name(folder / "model.safetensors") == name
