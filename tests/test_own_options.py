"""Options that single catalogs have, and what is said of a catalog that fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from graphcache import catalog
from graphcache.catalog import CatalogError, CatalogOptions, list_graphs
from graphcache.errors import UsageError
from graphcache.header.table import TensorTable
from graphcache.manifest.file import read_manifest
from graphcache.own_options import declared, typed

ADAPTERS = """from __future__ import annotations

from graphcache import CatalogOptions, Graph, Listing, TensorSpec


def catalog(table, config, options: CatalogOptions, *, rank: int = 16, scale: float = 1.0, tied: bool = False,
            kind="plain") -> Listing:
    spec = TensorSpec("x", "float32", (rank,))
    constants = {"scale": scale, "tied": tied, "kind": kind}
    return Listing((Graph(f"adapter[{rank}]", "adapters", "adapters:adapt", (spec,), constants=constants),), ())


def adapt(x, *, scale, tied, kind):
    return x * scale


def needs(table, config, options, *, rank: int):
    return Listing((), ())


def fails(table, config, options):
    return {}["hidden_size"]


def returns_a_list(table, config, options):
    return []


def takes_a_list(table, config, options, *, sizes: list = ()):
    return Listing((), ())
"""
CATALOGS = {"adapters": "catalog", "needs": "needs", "fails": "fails", "lists": "returns_a_list", "odd": "takes_a_list"}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with these catalogs, beside those of this project."""
    file = tmp_path / "packages" / "adapters.py"
    file.parent.mkdir()
    file.write_text(ADAPTERS)
    (tmp_path / "packages" / "broken.py").write_text("import os\nos.nothing_of_this_name\n")
    ours = {**catalog._installed(), **{name: f"adapters:{each}" for name, each in CATALOGS.items()}}
    monkeypatch.setattr(catalog, "_installed", lambda: {**ours, "broken": "broken:catalog"})
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.setitem(sys.modules, "adapters", None)
    monkeypatch.delitem(sys.modules, "adapters")
    monkeypatch.chdir(tmp_path)
    return file


def listed(name: str, **own: Any) -> Any:
    options = CatalogOptions.from_json({f"{name}.{option}": value for option, value in own.items()})
    return list_graphs([name], TensorTable.from_groups(()), None, options)


def test_they_are_the_keyword_parameters_with_their_types() -> None:
    texts = [each.text for each in declared(catalog.load("adapters")).values()]
    assert texts == [
        "rank (int, 16 by default)",
        "scale (float, 1.0 by default)",
        "tied (bool, False by default)",
        "kind (str, plain by default)",
    ]


def test_texts_of_a_command_line_become_values() -> None:
    found = typed("adapters", catalog.load("adapters"), {"rank": "8", "scale": "0.5", "tied": "TRUE", "kind": "8"})
    assert found == {"rank": 8, "scale": 0.5, "tied": True, "kind": "8"}


@pytest.mark.parametrize(("name", "value"), [("rank", "x"), ("rank", "1.5"), ("scale", "nan"), ("tied", "1")])
def test_a_wrong_value_names_the_option_and_its_type(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"adapters\.{name} is '{value}'") as raised:
        typed("adapters", catalog.load("adapters"), {name: value})
    assert f"{name} (" in raised.value.hint


def test_a_value_of_a_manifest_keeps_its_type() -> None:
    assert listed("adapters", rank=8).graphs[0].args[0].shape == (8,)
    with pytest.raises(UsageError, match="rank is True"):
        listed("adapters", rank=True)


def test_an_option_that_a_catalog_does_not_have() -> None:
    with pytest.raises(UsageError, match="the catalog 'adapters' has no option 'rnak'") as raised:
        listed("adapters", rnak=8)
    assert "rank (int, 16 by default)" in raised.value.hint


def test_one_that_is_required_and_one_of_a_type_that_nobody_can_give() -> None:
    with pytest.raises(UsageError, match="needs its option 'rank'"):
        listed("needs")
    with pytest.raises(UsageError, match=r"odd\.sizes is '3'"):
        listed("odd", sizes="3")


def test_a_fault_in_a_catalog_names_it_and_its_line(installed: Path) -> None:
    line = ADAPTERS.splitlines().index('    return {}["hidden_size"]') + 1
    with pytest.raises(CatalogError) as raised:
        listed("fails")
    assert raised.value.message == f"the catalog 'fails' failed: KeyError: 'hidden_size' at {installed}:{line}"
    with pytest.raises(CatalogError, match="returned list, not a"):
        listed("lists")


def test_a_catalog_that_cannot_be_imported_names_the_line(installed: Path) -> None:
    with pytest.raises(CatalogError, match=rf"AttributeError.* at {installed.parent}/broken.py:2"):
        listed("broken")


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run([*words])
    out = capsys.readouterr()
    return code, out.out + out.err


def test_a_build_of_a_catalog_that_needs_no_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cli.build.build_parts", lambda fusion, memo: {"torch": "0", "fusion": str(fusion)})
    manifest = tmp_path / "adapters.json"
    words = ("build", "--only", "adapters", "--cache", str(tmp_path / "cache"), "--dry-run", "--json")
    code, text = command(capsys, *words, "--set", "adapters.rank=8", "--manifest", str(manifest))
    assert code == 0, text
    assert [graph["graph"] for graph in json.loads(text)["graphs"]] == ["adapter[8]"]
    recorded = read_manifest(manifest)
    assert recorded.options == {"adapters.rank": 8}
    assert recorded.model == "adapters"

    code, text = command(capsys, *words[:1], "--shapes-from", str(manifest), *words[3:])
    assert [graph["graph"] for graph in json.loads(text)["graphs"]] == ["adapter[8]"], "a manifest keeps its options"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "adapters.rnak=8"), "has no option 'rnak'"),
        (("--set", "adapters.rank=few"), "adapters.rank is 'few'"),
        (("--set", "lora.rank=8"), "the catalog 'lora' is not among adapters"),
        (("--set", "rank=8"), "such as lora.rank=16"),
        (("--set", "adapters.rank=8", "--set", "adapters.rank=9"), "such as lora.rank=16"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_there_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    code, text = command(capsys, "build", "--only", "adapters", "--cache", str(tmp_path / "c"), "--dry-run", *words)
    assert code == 2
    assert says in text
    assert "Traceback" not in text


def test_a_catalog_that_needs_a_model_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = command(capsys, "build", "--only", "adamw", "--cache", str(tmp_path / "c"), "--dry-run")
    assert code == 2
    assert "--shapes-from" in text
