"""The key's toolchain parts, and what is said where a machine lacks one. Nothing of the vendor is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from graphcache.errors import ToolchainError, UsageError
from graphcache.local.memo import Memo
from graphcache.process.helper import helper_command, helper_environment
from graphcache.runtime import versions as runtime
from graphcache.toolchain import base
from graphcache.vendor import layouts as vendor
from tests.support.fake_gcc import write_gcc

RECORD = "furiosa/torch/_C.so,sha256=abc,1\n"


class FakeDistribution:
    record: str | None = RECORD

    def read_text(self, name: str) -> str | None:
        assert name == "RECORD"
        return self.record


@pytest.fixture
def memo(tmp_path: Path) -> Memo:
    return Memo(tmp_path / "memo")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """What is installed, by distribution; change it to install something else. A cross gcc is on PATH."""
    versions = {"furiosa-torch": "2026.4.0", "torch": "2.10.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: FakeDistribution())
    monkeypatch.setattr(vendor, "layout", lambda: vendor.layout_of(_found(versions)))
    write_gcc(tmp_path / "bin", "12.2.0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    return versions


def _found(versions: dict[str, str]) -> str:
    if "furiosa-torch" not in versions:
        raise ToolchainError("furiosa-torch is not installed")
    return versions["furiosa-torch"]


@pytest.mark.usefixtures("installed")
def test_all_parts(memo: Memo) -> None:
    assert base.build_parts(4, memo, "fc43f6a779") == {
        "furiosa-torch": "2026.4.0",
        "compiler-revision": "fc43f6a779",
        "torch": "2.10.0",
        "cross-gcc": "12.2.0",
        "fusion": "4",
        "mesh": "single",
    }


@pytest.mark.usefixtures("installed")
def test_the_compiler_is_asked_once_an_installation(memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    asks: list[str] = []

    def ask(command: tuple[str, ...], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        asks.append("asked")
        assert (command, env) == (helper_command("graphcache.runtime.versions"), helper_environment())
        return subprocess.CompletedProcess([], 0, stdout="fc43f6a779\n", stderr="")

    monkeypatch.setattr(subprocess, "run", ask)
    assert runtime.known_revision(memo) is None
    assert runtime.ask_revision(memo) == "fc43f6a779"
    assert runtime.known_revision(memo) == "fc43f6a779"
    monkeypatch.setattr(FakeDistribution, "record", RECORD.replace("abc", "def"))
    assert runtime.known_revision(memo) is None, "another installation"
    monkeypatch.setattr(FakeDistribution, "record", None)
    runtime.remember_revision(memo, "x")
    assert runtime.known_revision(memo) is None, "an installation that cannot be told from another"
    assert asks == ["asked"]


@pytest.mark.usefixtures("installed")
def test_a_compiler_that_cannot_be_asked_is_an_error(memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nImportError: libc10.so: no such file\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(ToolchainError, match=r"libc10\.so"):
        runtime.ask_revision(memo)


@pytest.mark.usefixtures("installed")
def test_without_a_cross_gcc_it_says_what_to_install(memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ToolchainError) as error:
        base.build_parts(8, memo, "r")
    assert "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" in error.value.hint


@pytest.mark.parametrize("found", ["2.11.0", "2.9.1+cpu", None])
def test_another_torch_is_refused(installed: dict[str, str], memo: Memo, found: str | None) -> None:
    if found:
        installed["torch"] = found
    else:
        del installed["torch"]
    with pytest.raises(ToolchainError, match=r"needs torch 2\.10\.0; installed is") as error:
        base.build_parts(8, memo, "r")
    assert error.value.hint == "pip install torch==2.10.0"


def test_a_local_build_of_the_right_torch_is_another_key(installed: dict[str, str], memo: Memo) -> None:
    installed["torch"] = "2.10.0+rocm"
    assert base.build_parts(8, memo, "r")["torch"] == "2.10.0+rocm"


@pytest.mark.parametrize("version", ["2026.1.0", "2026.3.0", "2027.1.0", "2026.40.0", "2026.2"])
def test_releases_are_known_or_refused(version: str) -> None:
    if version == "2026.2":
        assert vendor.layout_of(version).device == "rngd"
        return
    with pytest.raises(ToolchainError, match=version):
        vendor.layout_of(version)


def test_without_the_vendor_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "installed_version", lambda: None)
    vendor.layout.cache_clear()
    with pytest.raises(ToolchainError) as error:
        vendor.layout()
    vendor.layout.cache_clear()
    assert "pip install" in error.value.hint


@pytest.mark.parametrize("fusion", [0, 3, 64, -1])
def test_a_fusion_that_the_vendor_has_not_is_refused(memo: Memo, fusion: int) -> None:
    with pytest.raises(UsageError):
        base.build_parts(fusion, memo, "r")


def test_settings_are_known_or_refused() -> None:
    base.check_settings({})
    base.check_settings({"tactic": "io-bound"})
    for settings in ({"tactic": "fast"}, {"speed": "default"}):
        with pytest.raises(UsageError):
            base.check_settings(settings)


def test_every_release_translates_every_tactic() -> None:
    for layout in vendor.LAYOUTS:
        assert tuple(word for word, _ in layout.tactics) == base.SETTINGS["tactic"]


def test_a_panic_is_an_error_and_an_exit_is_not() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(vendor.VendorError, match="index out of bounds"), vendor.panics_raised():
        raise panic("index out of bounds")
    with pytest.raises(vendor.VendorError, match="refused"), vendor.panics_raised():
        raise RuntimeError("refused")
    with pytest.raises(KeyboardInterrupt), vendor.panics_raised():
        raise KeyboardInterrupt
    with pytest.raises(UsageError), vendor.panics_raised():
        raise UsageError("ours stays ours")


def test_identity_imports_no_torch() -> None:
    script = "import sys, graphcache.toolchain.base, graphcache.runtime.versions; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_hidden_package_is_not_found_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with vendor._hidden(["colorsys", "json"]):
        with pytest.raises(ImportError):
            importlib.import_module("colorsys")
        assert importlib.import_module("json") is sys.modules["json"], "it was loaded already"
    assert importlib.import_module("colorsys").rgb_to_hsv(1, 1, 1)[2] == 1
