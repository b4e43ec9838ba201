"""Whether an artifact is right is known wherever it goes: verdicts travel with their entries, signed like these."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcache.proof.verdict import State
from graphcache.remote.bundle import export, import_bundle
from graphcache.remote.files import open_files
from graphcache.remote.pull import pull_all
from graphcache.remote.push import push
from graphcache.remote.tier import Tier
from graphcache.remote.url import parse
from graphcache.store.find import find
from graphcache.store.local import LocalStore
from graphcache.trust.guard import Guard
from graphcache.trust.signature import signature_path
from tests.remote.conftest import fill
from tests.store.fakes import fake_verdict
from tests.trust.test_trust import new_signer, trusting


def travel(store: LocalStore, target: LocalStore, way: str, place: Path) -> None:
    if way == "bundle":
        export(store, store.entries(), place / "x.tar")
        import_bundle(target, place / "x.tar")
        return
    tier = Tier(open_files(parse(str(place / "remote"))))
    tier.files.run(push(tier, store, list(store.entries())))
    tier.files.run(pull_all(tier, target))


@pytest.mark.parametrize("way", ["bundle", "remote"])
@pytest.mark.parametrize("state", ["proven", "disproven"])
def test_a_verdict_goes_with_its_entry(
    way: str, state: State, store: LocalStore, other: LocalStore, tmp_path: Path
) -> None:
    (entry,) = fill(store, 1)
    made = fake_verdict(entry, state)
    store.record_verdict(made)
    travel(store, other, way, tmp_path)
    assert other.verdict(entry) == made
    parts = {name: value for name, value in entry.key.parts.items() if name != "program"}
    assert (find(other, entry.program, parts).entry is None) is (state == "disproven")


def test_a_verdict_that_was_found_later_follows(store: LocalStore, other: LocalStore, tmp_path: Path) -> None:
    (entry,) = fill(store, 1)
    tier = Tier(open_files(parse(str(tmp_path / "remote"))))
    tier.files.run(push(tier, store, [entry]))
    store.record_verdict(fake_verdict(entry, "disproven"))
    tier.files.run(push(tier, store, [entry]))
    tier.files.run(pull_all(tier, other))
    assert other.verdict(entry) == store.verdict(entry)


@pytest.mark.parametrize("way", ["bundle", "remote"])
def test_a_verdict_without_a_signature_proves_nothing(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = new_signer(tmp_path / "key", monkeypatch)
    store, guard = LocalStore(tmp_path / "a", Guard(signer)), Guard(trust=trusting(signer))
    (entry,) = fill(store, 1)
    made = fake_verdict(entry, "proven")
    store.record_verdict(made)
    assert LocalStore(store.root, guard).verdict(entry) == made
    signature_path(store.root, made.encode()).unlink()
    assert LocalStore(store.root, guard).verdict(entry) is None
    fresh = LocalStore(tmp_path / "b", guard)
    travel(store, fresh, way, tmp_path)
    assert fresh.verdict(entry) is None
