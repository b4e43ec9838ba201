"""Signatures: what was signed by a trusted key is used, and nothing else, wherever it comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from graphcache.errors import CorruptError
from graphcache.remote.files import open_files
from graphcache.remote.opening import open_store
from graphcache.remote.pull import pull_all
from graphcache.remote.push import push
from graphcache.remote.tier import Tier
from graphcache.remote.url import parse
from graphcache.store.base import Entry, Object
from graphcache.store.find import find
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.trust.errors import TrustError
from graphcache.trust.guard import Guard, guard_of_environment, keep_signature
from graphcache.trust.keys import KEY_FILE_VARIABLE, KEY_VARIABLE, Signer, make_key, signer_of_environment
from graphcache.trust.signature import Signature, message, signature_path
from graphcache.trust.trusted import Trust, TrustedKey, add_key, read_trust
from tests.remote.conftest import fill
from tests.store.fakes import fake_artifact, fake_facts, fake_key, fake_verdict
from tests.support.fake_graphs import fake_graph


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Signer:
    return new_signer(tmp_path / "key.pem", monkeypatch)


def new_signer(path: Path, monkeypatch: pytest.MonkeyPatch) -> Signer:
    make_key(path)
    with monkeypatch.context() as environment:
        environment.setenv(KEY_FILE_VARIABLE, str(path))
        found = signer_of_environment()
    assert found is not None
    return found


def trusting(signer: Signer, not_after: str | None = None) -> Trust:
    return Trust({signer.public: TrustedKey("ci", signer.public, not_after)})


def test_what_a_build_signs_a_trainer_uses(signer: Signer, tmp_path: Path) -> None:
    (entry,) = fill(LocalStore(tmp_path, Guard(signer)), 1)
    pod = LocalStore(tmp_path, Guard(trust=trusting(signer)))
    assert pod.lookup(entry.key) == entry
    assert pod.faults == []


def unsigned(store: LocalStore, entry: Entry, signer: Signer, other: Signer) -> None:
    signature_path(store.root, entry.encode()).unlink()


def by_another_key(store: LocalStore, entry: Entry, signer: Signer, other: Signer) -> None:
    sign_anew(store, entry, other)


def replayed(store: LocalStore, entry: Entry, signer: Signer, other: Signer) -> None:
    """The signature of another key's entry, under this one's name."""
    (second,) = fill(LocalStore(store.root, Guard(signer)), 2)
    put(store, entry, signature_path(store.root, second.encode()).read_bytes())


def relabelled(store: LocalStore, entry: Entry, signer: Signer, other: Signer) -> None:
    """The trusted key's name over a signature that it did not make."""
    forged = other.sign(entry.encode())
    put(store, entry, replace(forged, public=signer.public).encode())


def expired(store: LocalStore, entry: Entry, signer: Signer, other: Signer) -> None:
    put(store, entry, replace(signer, valid_secs=-60.0).sign(entry.encode()).encode())


def end_moved(store: LocalStore, entry: Entry, signer: Signer, other: Signer) -> None:
    over = replace(signer, valid_secs=-60.0).sign(entry.encode())
    put(store, entry, replace(over, expires=None).encode())


def damaged(store: LocalStore, entry: Entry, signer: Signer, other: Signer) -> None:
    put(store, entry, signer.sign(entry.encode()).encode()[:-9])


def sign_anew(store: LocalStore, entry: Entry, signer: Signer) -> None:
    put(store, entry, signer.sign(entry.encode()).encode())


def put(store: LocalStore, entry: Entry, signature: bytes) -> None:
    path = signature_path(store.root, entry.encode())
    path.unlink()
    path.write_bytes(signature)


FORGERIES = {
    unsigned: "not signed",
    by_another_key: "is not trusted",
    replayed: "of another record",
    relabelled: "not one of key ci",
    expired: "expired",
    end_moved: "not one of key ci",
    damaged: "damaged",
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_everything_else_is_refused_by_look_up_pull_and_import(
    forge: Callable[..., None], signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_signer(tmp_path / "other.pem", monkeypatch)
    store = LocalStore(tmp_path / "cache", Guard(signer))
    (entry,) = fill(store, 1)
    forge(store, entry, signer, other)
    guard = Guard(trust=trusting(signer))
    pod = LocalStore(store.root, guard)
    assert find(pod, entry.program, entry.key.parts | {}).entry is None
    assert FORGERIES[forge] in pod.faults[0].problem
    tier, fresh = Tier(open_files(parse(str(store.root)))), LocalStore(tmp_path / "fresh", guard)
    assert entry.key.digest in tier.files.run(pull_all(tier, fresh)).bad
    assert FORGERIES[forge] in tier.faults[0].problem
    assert fresh.lookup(entry.key) is None
    bundle = str(tmp_path / "graphs.tar")
    trust_file = tmp_path / "trust.json"
    add_key(trust_file, TrustedKey("ci", signer.public))
    assert run(["export", bundle, "--cache", str(store.root)]) == 0
    assert run(["import", bundle, "--cache", str(tmp_path / "third"), "--trust", str(trust_file)]) == 1
    assert LocalStore(tmp_path / "third").lookup(entry.key) is None


def test_a_key_that_is_over_is_over_for_what_it_signed_before(signer: Signer, tmp_path: Path) -> None:
    (entry,) = fill(LocalStore(tmp_path, Guard(signer)), 1)
    pod = LocalStore(tmp_path, Guard(trust=trusting(signer, "2020-01-01T00:00:00Z")))
    assert pod.lookup(entry.key) is None


def test_an_object_with_a_forged_checksum_is_refused(
    signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = fill(LocalStore(tmp_path, Guard(signer)), 1)
    path = LocalStore(tmp_path).layout.object(entry.artifact_digest)
    path.chmod(0o644)
    path.write_bytes(fake_artifact(entry.key, salt="forged"))
    monkeypatch.setattr("graphcache.store.reading.checksum", lambda data: entry.object.xxh3_128)
    assert LocalStore(tmp_path).lookup(entry.key) is not None, "the forgery passes without signatures"
    assert LocalStore(tmp_path, Guard(trust=trusting(signer))).lookup(entry.key) is None


def test_which_program_a_source_has_is_signed_too(signer: Signer, tmp_path: Path) -> None:
    graph, source = fake_graph("g"), "a" * 64
    guard = Guard(trust=trusting(signer))
    Programs(tmp_path).remember(source, graph, "2.10.0", "b" * 64)
    assert Programs(tmp_path, guard=guard).known(source, graph, "2.10.0") is None
    Programs(tmp_path, guard=Guard(signer, trusting(signer))).remember(source, graph, "2.10.0", "c" * 64)
    assert Programs(tmp_path, guard=guard).known(source, graph, "2.10.0") == "c" * 64


def test_a_signed_build_takes_the_place_of_an_unsigned_one(signer: Signer, tmp_path: Path) -> None:
    fill(LocalStore(tmp_path), 1)
    store = LocalStore(tmp_path, Guard(signer, trusting(signer)))
    key = fake_key(1)
    assert store.lookup(key) is None
    data = fake_artifact(key, salt="ours")
    store.commit(key, data, fake_facts())
    found = store.lookup(key)
    assert found is not None
    assert found.object == Object.of(data)


def test_signatures_travel(signer: Signer, tmp_path: Path) -> None:
    """Also through a cache that asks for none."""
    source, between = LocalStore(tmp_path / "a", Guard(signer)), LocalStore(tmp_path / "b")
    (entry,) = fill(source, 1)
    tier = Tier(open_files(parse(str(tmp_path / "remote"))))
    tier.files.run(push(tier, source, [entry]))
    tier.files.run(pull_all(tier, between))
    assert run(["export", str(tmp_path / "x.tar"), "--cache", str(between.root)]) == 0
    assert run(["import", str(tmp_path / "x.tar"), "--cache", str(tmp_path / "c")]) == 0
    assert LocalStore(tmp_path / "c", Guard(trust=trusting(signer))).lookup(entry.key) == entry


def signing(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(path))
    code = run(["sign", *words, "--json"])
    return {**json.loads(capsys.readouterr().out), "code": code}


def test_what_was_built_without_a_key_is_signed_later_and_the_remote_gets_it(
    signer: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, remote, cache = LocalStore(tmp_path / "a"), str(tmp_path / "remote"), ["--cache", str(tmp_path / "a")]
    one, two = fill(store, 1, 2)
    store.record_verdict(fake_verdict(one))
    Programs(store.root).remember("a" * 64, fake_graph("g"), "2.10.0", two.program)
    tier = Tier(open_files(parse(remote)))
    tier.files.run(push(tier, store, [one, two]))
    facts = signing(tmp_path / "key.pem", monkeypatch, capsys, *cache, one.key.digest[:12])
    assert (facts["signed"], facts["before"], facts["records"]) == ([one.key.digest], [], 1)
    facts = signing(tmp_path / "key.pem", monkeypatch, capsys, *cache)
    assert (facts["signed"], facts["before"], facts["records"]) == ([two.key.digest], [one.key.digest], 1)
    assert run(["push", *cache, "--remote", remote]) == 0
    pod = LocalStore(tmp_path / "pod", Guard(trust=trusting(signer)))
    assert len(tier.files.run(pull_all(tier, pod)).pulled) == 2
    assert pod.verdict(one) is not None
    assert Programs(pod.root, guard=pod.guard).known("a" * 64, fake_graph("g"), "2.10.0") == two.program


def test_what_is_over_is_signed_again_and_what_another_key_signed_only_if_asked(
    signer: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_signer(tmp_path / "other.pem", monkeypatch)
    cache = ["--cache", str(tmp_path / "cache")]
    store = LocalStore(tmp_path / "cache")
    over, theirs, forged = fill(store, 1, 2, 3)
    for entry, maker in ((over, replace(other, valid_secs=-60.0)), (theirs, other), (forged, other)):
        keep_signature(store.root, entry.encode(), maker.sign(entry.encode()).encode())
    put(store, forged, replace(other.sign(forged.encode()), public=signer.public).encode())
    facts = signing(tmp_path / "key.pem", monkeypatch, capsys, *cache)
    assert facts["before"] == [theirs.key.digest]
    assert facts["signed"] == sorted([over.key.digest, forged.key.digest])
    facts = signing(tmp_path / "key.pem", monkeypatch, capsys, *cache, "--replace", "--days", "30")
    assert facts["signed"] == [theirs.key.digest]
    kept = Signature.decode(signature_path(store.root, theirs.encode()).read_bytes())
    assert kept.expires is not None
    # A trust file in which the key of before is over: what it signed is signed by the new one.
    add_key(tmp_path / "trust.json", TrustedKey("old", signer.public, "2020-01-01T00:00:00Z"))
    add_key(tmp_path / "trust.json", TrustedKey("new", other.public))
    monkeypatch.setenv("GRAPHCACHE_TRUST", str(tmp_path / "trust.json"))
    assert len(signing(tmp_path / "other.pem", monkeypatch, capsys, *cache)["signed"]) == 3
    assert LocalStore(store.root, Guard(trust=read_trust(tmp_path / "trust.json"))).lookup(over.key) == over


def test_what_is_damaged_is_not_signed_and_without_a_key_nothing_is(
    signer: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "cache")
    (entry,) = fill(store, 1)
    assert run(["sign", "--cache", str(store.root)]) == 2
    assert "no key to sign with" in capsys.readouterr().err
    path = store.layout.object(entry.artifact_digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    facts = signing(tmp_path / "key.pem", monkeypatch, capsys, "--cache", str(store.root))
    assert (facts["code"], facts["damaged"], facts["signed"]) == (1, [entry.key.digest], [])


# --- keys ----------------------------------------------------------------------------------------------------------


def test_keygen_writes_a_private_key_for_its_owner_and_shows_none_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, trust = tmp_path / "key.pem", tmp_path / "trust.json"
    args = ["keygen", str(key), "--trust", str(trust), "--name", "ci", "--days", "30", "--json"]
    assert run(args) == 0
    facts = json.loads(capsys.readouterr().out)
    assert key.stat().st_mode & 0o777 == 0o600
    secret = key.read_text().splitlines()[1]
    assert secret not in json.dumps(facts)
    assert read_trust(trust).keys[facts["public"]].not_after == facts["not_after"]
    monkeypatch.setenv(KEY_VARIABLE, key.read_text())
    guard = guard_of_environment(trust)
    assert guard.signer is not None
    assert guard.signer.public == facts["public"]
    assert secret not in repr(guard)
    assert run(args) == 2, "a key is not overwritten"


@pytest.mark.parametrize("text", ["", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", "\x00"])
def test_a_bad_key_is_an_error_that_does_not_quote_it(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(path))
    with pytest.raises(TrustError, match="holds no private key") as caught:
        signer_of_environment()
    assert caught.value.__cause__ is None
    assert "c2VjcmV0" not in str(caught.value)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    with pytest.raises(TrustError, match="others can use it"):
        signer_of_environment()


HEAD = '{"format": "graphcache-trust-1", "keys": '


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", HEAD + "[]}", HEAD + '[{"name": "ci", "public": "zz"}]}', '{"format": "other-9", "keys": []}'],
)
def test_a_trust_file_that_trusts_nobody_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "trust.json").write_text(text)
    with pytest.raises(TrustError):
        read_trust(tmp_path / "trust.json")


def test_a_trust_file_with_a_key_twice_in_one_object_is_an_error(signer: Signer, tmp_path: Path) -> None:
    """Readers differ in which of the two counts, so a reviewer may see other keys than those that are trusted."""
    path = tmp_path / "trust.json"
    add_key(path, TrustedKey("ci", signer.public))
    path.write_text(path.read_text().replace('"keys":', '"keys": [],\n  "keys":'))
    with pytest.raises(TrustError, match="'keys' occurs twice"):
        read_trust(path)


def test_a_signature_verifies_with_another_implementation(signer: Signer) -> None:
    """Ed25519 by RFC 8032's own code, as far as verifying needs it."""
    from tests.support.ed25519 import verify

    signed = Signature.decode(signer.sign(b"record").encode())
    text = message(signed.record, signed.public, signed.signed, signed.expires)
    assert verify(bytes.fromhex(signed.public), text, bytes.fromhex(signed.signature))
    assert not verify(bytes.fromhex(signed.public), text + b" ", bytes.fromhex(signed.signature))


# --- folders -------------------------------------------------------------------------------------------------------


def test_a_cache_is_made_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(LocalStore(tmp_path / "private"), 1)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_refused_unless_it_is_shared_on_purpose(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GRAPHCACHE_SHARED", raising=False)
    store = LocalStore(tmp_path / "cache")
    fill(store, 1)
    os.chmod(store.root, mode)
    assert run(["ls", "--cache", str(store.root)]) == 2
    assert "GRAPHCACHE_SHARED=1" in capsys.readouterr().err
    monkeypatch.setenv("GRAPHCACHE_SHARED", "1")
    assert open_store(store.root).lookup(fake_key(1)) is not None
    monkeypatch.setenv("GRAPHCACHE_SHARED", "perhaps")
    assert run(["ls", "--cache", str(store.root)]) == 2


def test_adopting_says_why_not(signer: Signer, tmp_path: Path) -> None:
    (entry,) = fill(LocalStore(tmp_path / "a"), 1)
    with pytest.raises(CorruptError, match="not signed"):
        LocalStore(tmp_path / "b", Guard(trust=trusting(signer))).adopt(entry, fake_artifact(entry.key))
