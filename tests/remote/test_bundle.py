"""Export and import: the same pairs on the other side, and nothing that a bundle could be made to do."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import run
from graphcache.errors import CorruptError
from graphcache.remote.bundle import BundleError, export, import_bundle
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.verify.integrity import verify
from tests.remote.conftest import fill
from tests.store.fakes import fake_key
from tests.support.fake_graphs import fake_graph


@pytest.fixture
def bundle(store: LocalStore, tmp_path: Path) -> Path:
    fill(store, 1, 2)
    export(store, store.entries(), tmp_path / "graphs.tar")
    return tmp_path / "graphs.tar"


def test_what_is_exported_is_imported(bundle: Path, store: LocalStore, other: LocalStore) -> None:
    done = import_bundle(other, bundle)
    assert (len(done.imported), done.present, done.faults) == (2, (), ())
    assert list(other.entries()) == list(store.entries())
    assert verify(other).sound
    assert len(import_bundle(other, bundle).present) == 2


def test_the_same_cache_gives_the_same_file(bundle: Path, store: LocalStore, tmp_path: Path) -> None:
    export(store, reversed(list(store.entries())), tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == bundle.read_bytes()


def test_programs_of_what_is_exported_go_too(store: LocalStore, other: LocalStore, tmp_path: Path) -> None:
    fill(store, 1)
    programs = Programs(store.root)
    programs.remember("a" * 64, fake_graph("g"), "2.10.0", fake_key(1).program)
    programs.remember("b" * 64, fake_graph("g"), "2.10.0", fake_key(7).program)
    export(store, store.entries(), tmp_path / "x.tar")
    import_bundle(other, tmp_path / "x.tar")
    there = Programs(other.root)
    assert there.known("a" * 64, fake_graph("g"), "2.10.0") == fake_key(1).program
    assert there.known("b" * 64, fake_graph("g"), "2.10.0") is None


def test_a_damaged_artifact_is_not_exported(store: LocalStore, tmp_path: Path) -> None:
    (entry,) = fill(store, 1)
    path = store.layout.object(entry.artifact_digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptError):
        export(store, [entry], tmp_path / "x.tar")
    assert [p.name for p in tmp_path.glob("*.tar")] + list(tmp_path.glob(".tmp*")) == []


@pytest.mark.parametrize("position", [0.2, 0.5, 0.8])
def test_one_flipped_byte_is_found(position: float, bundle: Path, other: LocalStore) -> None:
    data = bytearray(bundle.read_bytes())
    with tarfile.open(bundle) as file:
        spans = [(m.offset_data, m.size) for m in file if m.name.startswith("objects/")]
    start, size = spans[0]
    data[start + int(size * position)] ^= 1
    bundle.write_bytes(data)
    done = import_bundle(other, bundle)
    assert (len(done.imported), len(done.faults)) == (1, 1)
    assert verify(other).sound


def evil(name: str, **fields: object) -> Callable[[], tuple[tarfile.TarInfo, bytes]]:
    def make() -> tuple[tarfile.TarInfo, bytes]:
        member = tarfile.TarInfo(name)
        data = b"x" * 10
        member.size = len(data)
        for field, value in fields.items():
            setattr(member, field, value)
        return member, data

    return make


OBJECT = f"objects/ab/{'ab' * 32}.safetensors"
EVIL = {
    "leads out": evil("../../etc/cron.d/x"),
    "absolute": evil("/etc/passwd"),
    "inside dots": evil(f"objects/../objects/ab/{'ab' * 32}.safetensors"),
    "not ours": evil("README"),
    "symlink": evil(OBJECT, type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0),
    "hard link": evil(OBJECT, type=tarfile.LNKTYPE, linkname="entries/x", size=0),
    "device": evil(OBJECT, type=tarfile.CHRTYPE, size=0),
    "pipe": evil(OBJECT, type=tarfile.FIFOTYPE, size=0),
    "folder": evil("objects/ab", type=tarfile.DIRTYPE, size=0),
    "wrong shard": evil(f"objects/cd/{'ab' * 32}.safetensors"),
    "huge record": evil(f"entries/ab/{'ab' * 32}/{'cd' * 32}.json", size=2 << 20),
}


@pytest.mark.parametrize("make", EVIL.values(), ids=EVIL.keys())
def test_a_bundle_with_anything_else_in_it_is_refused_whole(
    make: Callable[[], tuple[tarfile.TarInfo, bytes]], bundle: Path, other: LocalStore
) -> None:
    with tarfile.open(bundle, "a") as file:
        member, data = make()
        file.addfile(member, io.BytesIO(data.ljust(member.size, b"x")))
    with pytest.raises(BundleError, match="nothing was taken"):
        import_bundle(other, bundle)
    assert not other.root.exists()


def test_a_sparse_bomb_is_refused(bundle: Path, other: LocalStore) -> None:
    """A member of 8 bytes that says it is a terabyte of zeros, as GNU tar writes sparse files in pax headers."""
    with tarfile.open(bundle, "a", format=tarfile.PAX_FORMAT) as file:
        member = tarfile.TarInfo(OBJECT)
        member.size = 8
        member.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 40),
                              "GNU.sparse.map": f"0,8,{(1 << 40) - 1},0"}  # fmt: skip
        file.addfile(member, io.BytesIO(b"x" * 8))
    with pytest.raises(BundleError):
        import_bundle(other, bundle)


def test_a_member_that_is_there_twice_is_refused(bundle: Path, other: LocalStore) -> None:
    with tarfile.open(bundle) as file:
        member = file.getmembers()[0]
        data = file.extractfile(member)
        assert data is not None
        content = data.read()
    with tarfile.open(bundle, "a") as file:
        file.addfile(member, io.BytesIO(content))
    with pytest.raises(BundleError, match="twice"):
        import_bundle(other, bundle)


@pytest.mark.parametrize("content", [b"", b"no tar" * 200, b"\x1f\x8b\x08" + b"\x00" * 2000])
def test_what_is_no_bundle_is_an_error(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(content)
    assert run(["import", str(tmp_path / "x"), "--cache", str(tmp_path / "c"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["name"] == "bundle"


def test_every_cut_is_an_error(bundle: Path, other: LocalStore) -> None:
    """Also one between two members, where what is left is a whole pair."""
    whole = bundle.read_bytes()
    with tarfile.open(bundle) as file:
        members = file.getmembers()
        end = file.offset
    cuts = [*(m.offset for m in members), *(m.offset_data + 7 for m in members), end + 511]
    for length in cuts:
        bundle.write_bytes(whole[:length])
        with pytest.raises(BundleError):
            import_bundle(other, bundle)
    assert not other.root.exists()
