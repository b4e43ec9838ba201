"""Finding by the parts that a machine knows, and the reason for a miss."""

from __future__ import annotations

import pytest

from graphcache.errors import UsageError
from graphcache.key import Difference, parts_of
from graphcache.store.base import Entry, Object
from graphcache.store.find import by_prefix, find
from tests.store.fakes import TOOLCHAIN, fake_artifact, fake_facts, fake_key

KEY = fake_key()
POD = {name: value for name, value in TOOLCHAIN.items() if name != "cross-gcc"}


def commit(store, key, created=None):
    data = fake_artifact(key)
    if created is None:
        return store.commit(key, data, fake_facts())
    return store.adopt(Entry(key, Object.of(data), fake_facts(), created), data)


def test_a_builder_that_sees_all_parts_finds_its_entry(store):
    entry = commit(store, KEY)
    assert find(store, KEY.program, TOOLCHAIN).entry == entry


def test_a_pod_without_the_cross_compiler_finds_it_too(store):
    entry = commit(store, KEY)
    found = find(store, KEY.program, POD)
    assert found.entry == entry
    assert found.reason == ""


def test_a_builder_with_another_cross_compiler_does_not(store):
    commit(store, KEY)
    found = find(store, KEY.program, {**TOOLCHAIN, "cross-gcc": "13.1.0"})
    assert found.entry is None
    assert found.differing == (Difference("cross-gcc", "12.2.0", "13.1.0"),)


def test_of_two_that_fit_the_newest_is_taken(store):
    commit(store, fake_key(cross_gcc="12.2.0"), "2026-11-29T10:00:00Z")
    newest = commit(store, fake_key(cross_gcc="11.1.0"), "2026-11-29T12:00:00Z")
    commit(store, fake_key(cross_gcc="13.1.0"), "2026-11-29T11:00:00Z")
    assert find(store, KEY.program, POD).entry == newest


def test_when_the_newest_is_damaged_the_next_is_taken(store):
    older = commit(store, fake_key(cross_gcc="12.2.0"), "2026-11-29T10:00:00Z")
    newest = commit(store, fake_key(cross_gcc="11.1.0"), "2026-11-29T12:00:00Z")
    store.layout.object(newest.artifact_digest).unlink()
    assert find(store, KEY.program, POD).entry == older
    store.layout.object(older.artifact_digest).unlink()
    found = find(store, KEY.program, POD)
    assert found.entry is None
    assert found.reason


def test_a_miss_names_the_closest_sibling_and_the_parts_that_differ(store):
    commit(store, fake_key(fusion="4", torch="2.9.0"))
    closest = commit(store, fake_key(fusion="4"))
    found = find(store, KEY.program, {**POD, "fusion": "8"})
    assert (found.entry, found.closest) == (None, closest)
    assert found.reason == "fusion 4 -> 8"


def test_a_miss_of_a_program_that_nothing_has(store):
    found = find(store, KEY.program, POD)
    assert (found.entry, found.closest) == (None, None)
    assert found.reason == "no artifact of this program"


@pytest.mark.parametrize("part", ["torch", "compiler-revision", "furiosa-torch"])
def test_what_cannot_be_told_is_a_refusal(store, part):
    commit(store, KEY)
    found = find(store, KEY.program, {name: value for name, value in POD.items() if name != part})
    assert found.entry is None
    assert found.differing == (Difference(part, TOOLCHAIN[part], None),)


def test_settings_are_parts_like_others(store):
    entry = commit(store, fake_key(settings={"tactic": "compute-bound"}))
    assert find(store, KEY.program, parts_of(POD, {"tactic": "compute-bound"})).entry == entry
    assert find(store, KEY.program, parts_of(POD, {"tactic": "default"})).reason == (
        "settings.tactic compute-bound -> not given"
    )


def test_a_default_setting_is_no_setting(store):
    entry = commit(store, KEY)
    assert find(store, KEY.program, parts_of(POD, {"tactic": "default"})).entry == entry
    assert find(store, KEY.program, parts_of(POD, {})).entry == entry


def test_a_prefix_names_one_entry_or_is_an_error_that_lists_them(store):
    entries = [commit(store, fake_key(number)) for number in range(20)]
    for entry in entries:
        assert by_prefix(store, entry.key.digest) == entry
    with pytest.raises(UsageError, match="no entry"):
        by_prefix(store, "zz")
    # Of twenty keys two begin with the same of sixteen possible digits.
    shared = next(d for d in "0123456789abcdef" if sum(e.key.digest.startswith(d) for e in entries) > 1)
    with pytest.raises(UsageError, match="entries have keys that begin") as caught:
        by_prefix(store, shared)
    named = [e for e in entries if e.key.digest.startswith(shared)]
    assert all(f"{e.key.digest[:12]} ({e.graph.name})" in caught.value.message for e in named)
