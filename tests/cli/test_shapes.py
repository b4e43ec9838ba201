"""`graphcache shapes` on checkpoints with and without config, odd names and odd catalogs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import run
from graphcache import catalog
from graphcache.errors import UsageError
from graphcache.graph import Graph, Listing, TensorSpec, Use
from graphcache.header.table import TensorTable
from tests.support.sparse import header, write_checkpoint, write_header, write_index, write_shard


def fake_catalog(table: TensorTable, config: object, options: catalog.CatalogOptions) -> Listing:
    """A graph for each 2-D weight's size; needs a config."""
    if config is None:
        raise UsageError("the fake catalog needs a config.json", hint="put it beside the model")
    graph = Graph("fake[8]", "fake", "m:f", (TensorSpec("x", "float32", (options.tile_elements,)),))
    return Listing((graph,), (Use("fake[8]", "every weight", len(table), 2),))


@pytest.fixture(autouse=True)
def catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One catalog that works and one whose package is gone."""
    installed = {"fake": "tests.cli.test_shapes:fake_catalog", "gone": "no_such_package.catalogs:catalog"}
    monkeypatch.setattr(catalog, "_installed", lambda: installed)


def shown_json(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    assert run(["shapes", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_table_is_grouped_by_shape_and_totals_come_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint("smollm2-135m", tmp_path)
    assert run(["shapes", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["[49152,", "576]", "BF16", "model.embed_tokens.weight", "1", "28,311,552", "56.6", "MB"]
    gate_up = next(line for line in lines if line.startswith("[1536, 576]"))
    assert "model.layers.{0-29}.mlp.gate_proj.weight, model.layers.{0-29}.mlp.up_proj.weight" in gate_up
    assert "  fake[8]  every weight     272           2" in lines
    assert lines[-2:] == ["parameters         134,515,008", "bytes              269,030,016 (269 MB)"]


def test_the_json_form_holds_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint("llama-3.1-405b", tmp_path)
    shown = shown_json(capsys, str(tmp_path), "--only", "fake", "--tile-elements", "64")
    assert (shown["tensors"], shown["parameters"], shown["size_bytes"]) == (1137, 405_853_388_800, 811_706_777_600)
    assert len(shown["shards"]) == 191
    assert sum(group["tensors"] for group in shown["groups"]) == 1137
    assert shown["catalogs"]["fake"]["graphs"][0]["args"][0]["shape"] == [64]
    assert shown["notices"] == []


def test_a_catalog_that_needs_a_config_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": [3]})
    assert run(["shapes", str(tmp_path), "--only", "fake"]) == 0
    assert "the fake catalog needs a config.json (put it beside the model)" in capsys.readouterr().out


def test_a_catalog_that_cannot_be_imported_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint("smollm2-135m", tmp_path)
    shown = shown_json(capsys, str(tmp_path))
    assert shown["catalogs"]["gone"]["error"]["name"] == "catalog"
    assert shown["catalogs"]["fake"]["uses"]
    assert shown["tensors"] == 272


def test_a_catalog_that_is_not_installed_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": [3]})
    assert run(["shapes", str(tmp_path), "--only", "adamww"]) == 2
    assert "installed catalogs: fake, gone" in capsys.readouterr().err


def test_what_is_odd_about_a_checkpoint_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x", "y"):
        write_shard(tmp_path / f"{name}.safetensors", {name: [3]})
    write_index(tmp_path, {"x": "x.safetensors"})
    assert run(["shapes", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith("warning[unnamed-shard]: ")
    assert [notice["name"] for notice in shown_json(capsys, str(tmp_path))["notices"]] == ["unnamed-shard"]


def test_unknown_dtypes_and_hostile_names_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = header({"a": [4], "b\x1b[31m\n": [4]})
    entries["a"]["dtype"] = "F2_NEW"
    write_header(tmp_path / "model.safetensors", json.dumps(entries).encode(), 16)
    assert run(["shapes", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "F2_NEW (unknown dtype)" in out
    assert "b\\x1b[31m\\n" in out
    assert shown_json(capsys, str(tmp_path))["unknown_dtypes"] == {"a": "F2_NEW"}
