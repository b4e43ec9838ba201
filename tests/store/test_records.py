"""Entries and failures: whatever a well-sealed file holds, it is one with fields of the right types, or refused."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.cache import entry_json, toolchain_text
from graphcache.errors import CorruptError
from graphcache.process.shown import count_text, secs_text
from graphcache.store.base import ENTRY_FORMAT, FAILURE_FORMAT, Entry, Failure, Object
from graphcache.store.gc import last_use_secs as last_use
from graphcache.store.records import seal, unseal
from tests.store.fakes import fake_artifact, fake_facts, fake_failure, fake_key

KEY = fake_key(settings={"tactic": "compute-bound"})
ENTRY = Entry(KEY, Object.of(fake_artifact(KEY)), fake_facts(), "2026-11-29T12:00:00Z")
FAILURE = fake_failure(KEY, graph="fake[8]", cause="killed", log="logs/fake.log", retryable=True)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def places(value, path=()):
    """The path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield (*path, name)
        yield from places(each, (*path, name))


def changed(value, path, new):
    copied = copy.deepcopy(value)
    inner = copied
    for name in path[:-1]:
        inner = inner[name]
    if new is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new[0]
    return copied


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(sorted(places(ENTRY.as_json()), key=str)), st.none() | st.tuples(anything))
def test_any_field_of_a_sealed_entry_may_be_anything(path, new):
    try:
        entry = Entry.decode(seal(ENTRY_FORMAT, changed(ENTRY.as_json(), path, new)))
    except CorruptError:
        return
    # What was taken can be used wherever entries are: listed, sorted, aged, named by a path.
    secs_text(entry.cost.wall_secs + entry.cost.cpu_secs)
    count_text(entry.size_bytes + (entry.facts.estimate_ns or 0) + entry.cost.peak_rss_bytes)
    toolchain_text(entry.key.parts)
    last_use(entry, {})
    assert sorted([entry.graph.name, entry.graph.catalog, entry.artifact_digest])
    assert sum(arg.elements for arg in entry.graph.args) >= 0
    assert entry_json(entry)["key_digest"] == entry.key.digest
    assert Entry.decode(entry.encode()) == entry


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(places(FAILURE.as_json()), key=str)), st.none() | st.tuples(anything))
def test_any_field_of_a_sealed_failure_may_be_anything(path, new):
    try:
        failure = Failure.decode(seal(FAILURE_FORMAT, changed(FAILURE.as_json(), path, new)))
    except CorruptError:
        return
    assert sorted([failure.graph, failure.cause, failure.log])
    assert Failure.decode(failure.encode()) == failure


@given(anything)
def test_any_json_is_an_entry_or_refused(value):
    with pytest.raises(CorruptError):
        Entry.decode(seal(ENTRY_FORMAT, {"entry": value}))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    with pytest.raises(CorruptError):
        Entry.decode(data)
    with pytest.raises(CorruptError):
        unseal(FAILURE_FORMAT, data)


def test_one_kind_of_record_is_not_taken_for_another():
    with pytest.raises(CorruptError, match="graphcache-entry-1"):
        Failure.decode(ENTRY.encode())
    with pytest.raises(CorruptError, match="graphcache-failure-1"):
        Entry.decode(FAILURE.encode())


def test_a_record_that_is_written_in_another_way_is_refused():
    """The same JSON with a space more, or its fields in another order, was not written by the store."""
    sealed = ENTRY.encode()
    assert Entry.decode(sealed) == ENTRY
    for other in (sealed.rstrip(), b" " + sealed, sealed.replace(b'":', b'": ', 1), sealed.replace(b"\n", b"\r\n")):
        with pytest.raises(CorruptError):
            Entry.decode(other)


@pytest.mark.parametrize("digest", ["../" * 21 + "a", "AB" * 32, "", "ab" * 31, "ab" * 32 + "\n"])
def test_an_object_is_named_by_a_digest_and_no_path(digest):
    with pytest.raises(ValueError, match="hexadecimal"):
        Object(digest, "ab" * 16, 1)
