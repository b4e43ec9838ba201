"""doctor's findings on machines that lack something."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from graphcache import doctor
from graphcache.doctor import Finding, examine
from graphcache.errors import ToolchainError
from graphcache.vendor import layouts as vendor

Findings = Callable[[], dict[str, Finding]]


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Findings:
    """A machine that has everything but a card; what a test takes away afterwards is missing."""
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(doctor, "vendor_version", lambda: "2026.4.0")
    monkeypatch.setattr(doctor, "known_revision", lambda memo: "fc43f6a779")
    monkeypatch.setattr(doctor, "torch_version", lambda: "2.10.0")
    monkeypatch.setattr(doctor, "cross_gcc_path", lambda: "/usr/bin/aarch64-linux-gnu-gcc")
    monkeypatch.setattr(doctor, "cross_gcc_version", lambda memo: "12.2.0")
    monkeypatch.setattr(vendor, "CARD_NODES", str(tmp_path / "dev" / "npu*"))
    return lambda: {finding.name: finding for finding in examine(None)}


def missing(message: str, hint: str) -> Callable[..., Any]:
    def raises(*_: object) -> None:
        raise ToolchainError(message, hint=hint)

    return raises


def test_a_machine_that_can_build(findings: Findings) -> None:
    found = findings()
    assert {name: f.level for name, f in found.items()} == {
        "machine": "ok",
        "vendor": "ok",
        "torch": "ok",
        "cross gcc": "ok",
        "cards": "note",
        "settings": "ok",
        "cache": "ok",
        "memo": "ok",
        "vendor cache": "ok",
    }
    assert "compiler fc43f6a779" in found["vendor"].fact
    assert run(["doctor"]) == 0


@pytest.mark.parametrize(
    ("function", "name"), [("vendor_version", "vendor"), ("torch_version", "torch"), ("cross_gcc_path", "cross gcc")]
)
def test_what_is_missing_is_named_with_what_to_do(
    findings: Findings, monkeypatch: pytest.MonkeyPatch, function: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, function, missing("it is gone", "install it"))
    found = findings()
    assert (found[name].level, found[name].fact, found[name].hint) == ("bad", "it is gone", "install it")
    assert [f.name for f in found.values() if f.level == "bad"] == [name], "the others are looked at all the same"
    assert run(["doctor"]) == 2
    assert "install it" in capsys.readouterr().out


def test_without_a_home_nothing_is_remembered_and_builds_work(
    findings: Findings, no_home: None, capsys: pytest.CaptureFixture[str]
) -> None:
    memo = findings()["memo"]
    assert (memo.level, "neither XDG_CACHE_HOME nor HOME" in memo.fact) == ("note", True)
    assert run(["doctor"]) == 0


def test_cards_are_device_nodes(findings: Findings, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "npu1").touch()
    (tmp_path / "dev" / "npu3").touch()
    card = findings()["cards"]
    assert card.level == "ok"
    assert "npu1" in card.fact
    assert "npu3" in card.fact


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_cache_that_cannot_be_written_is_bad(
    findings: Findings, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHCACHE_DIR", str(locked / "cache"))
    assert findings()["cache"].level == "bad"


def test_a_full_disk_is_bad(findings: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES", 1 << 60)
    assert findings()["cache"].level == "bad"


def test_entries_in_the_vendors_own_cache_are_worth_a_note(findings: Findings, tmp_path: Path) -> None:
    (tmp_path / "xdg" / vendor.DEFAULT_CACHE / "4d206f366511dae8").mkdir(parents=True)
    found = findings()["vendor cache"]
    assert found.level == "note"
    assert found.fact.endswith("is there, entries: 1")


def test_a_folder_with_something_else_in_it_is_worth_a_note(findings: Findings, tmp_path: Path) -> None:
    (tmp_path / "cache" / "local").mkdir(parents=True)
    assert findings()["cache"].level == "ok", "gc leaves that of a cache"
    (tmp_path / "cache" / "config.json").write_text("{}")
    found = findings()["cache"]
    assert found.level == "note"
    assert "is no cache" in found.fact


@pytest.mark.usefixtures("findings")
def test_the_machine_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["ok"] is True
    assert value["findings"][0]["name"] == "machine"
