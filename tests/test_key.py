"""Keys: equal when every part is, and able to say which part is not."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphcache.key import BUILD_ONLY, LEFT_OUT, Difference, Key, compare_parts
from tests.store.fakes import TOOLCHAIN, fake_key

PROGRAM = "ab" * 32

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: name != "program"
)
values = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda value: value[0] != "/")
parts = st.dictionaries(names, values, max_size=8)


@given(parts, st.randoms())
def test_same_parts_in_any_order_are_the_same_key(some, random):
    shuffled = list(some.items())
    random.shuffle(shuffled)
    one, other = Key.of(PROGRAM, some), Key.of(PROGRAM, dict(shuffled))
    assert one == other
    assert one.digest == other.digest
    assert hash(one) == hash(other)


@given(parts, st.data())
def test_any_changed_part_is_another_key(some, data):
    assume(some)
    name = data.draw(st.sampled_from(sorted(some)))
    changed = {**some, name: data.draw(values.filter(lambda value: value != some[name]))}
    one, other = Key.of(PROGRAM, some), Key.of(PROGRAM, changed)
    assert one.digest != other.digest
    assert compare_parts(one.parts, other.parts) == [Difference(name, some[name], changed[name])]


@given(parts, names, values)
def test_an_added_part_is_another_key(some, name, value):
    assume(name not in some)
    one, other = Key.of(PROGRAM, some), Key.of(PROGRAM, {**some, name: value})
    assert one.digest != other.digest
    assert compare_parts(one.parts, other.parts) == [Difference(name, None, value)]
    assert compare_parts(other.parts, one.parts) == [Difference(name, value, None)]


@given(parts, parts)
def test_a_comparison_names_exactly_the_parts_that_differ(some, others):
    one, other = Key.of(PROGRAM, some), Key.of(PROGRAM, others)
    named = [difference.part for difference in compare_parts(one.parts, other.parts)]
    assert named == sorted(name for name in {*some, *others} if some.get(name) != others.get(name))
    assert (one == other) == (not named) == (one.digest == other.digest)


@given(values, values, values)
def test_parts_do_not_run_into_each_other(a, b, c):
    assert Key.of(PROGRAM, {"x": a + b, "y": c}).digest != Key.of(PROGRAM, {"x": a, "y": b + c}).digest


def test_another_program_is_another_key():
    assert Key.of("ab" * 32, TOOLCHAIN).digest != Key.of("ac" * 32, TOOLCHAIN).digest


def test_the_digest_is_the_same_for_ever():
    """A change of this digest orphans every cache that anyone has built."""
    key = Key.of(PROGRAM, {"torch": "2.10.0", "fusion": "8"}, {"tactic": "compute-bound"})
    written = f'{{"fusion":"8","program":"{PROGRAM}","settings.tactic":"compute-bound","torch":"2.10.0"}}'
    assert key.digest == hashlib.sha256(written.encode()).hexdigest()


def test_no_settings_settings_not_given_and_default_settings_are_one_key():
    assert Key.of(PROGRAM, TOOLCHAIN, {}) == Key.of(PROGRAM, TOOLCHAIN) == Key.of(PROGRAM, TOOLCHAIN, None)
    assert Key.of(PROGRAM, TOOLCHAIN, {"tactic": "default"}) == Key.of(PROGRAM, TOOLCHAIN)


def test_a_setting_is_a_part_of_its_own():
    with_setting, without = fake_key(settings={"tactic": "compute-bound"}), fake_key()
    assert compare_parts(without.parts, with_setting.parts) == [Difference("settings.tactic", None, "compute-bound")]


@pytest.mark.parametrize(
    ("part", "value"),
    [("torch", ""), ("", "2.10.0"), ("torch", None), ("torch", 2), ("cache", "/home/someone/cache")],
    ids=["empty value", "empty name", "None", "a number", "an absolute path"],
)
def test_a_part_that_could_not_mean_the_same_everywhere_is_refused(part, value):
    with pytest.raises(ValueError, match="part"):
        Key.of(PROGRAM, {part: value})


@pytest.mark.parametrize("program", ["abc", "AB" * 32, "../" * 21 + "a", "ab" * 32 + "\n"])
def test_a_program_is_a_digest(program):
    with pytest.raises(ValueError, match="SHA-256"):
        Key.of(program, TOOLCHAIN)


def test_a_missing_program_is_refused():
    with pytest.raises(ValueError, match="SHA-256"):
        Key(TOOLCHAIN)


def test_a_difference_reads_as_a_sentence():
    assert str(Difference("torch", "2.9.0", "2.10.0")) == "torch 2.9.0 -> 2.10.0"
    assert str(Difference("settings.tactic", None, "io-bound")) == "settings.tactic not given -> io-bound"


def test_each_input_left_out_says_why():
    assert all(LEFT_OUT.values())
    assert all(BUILD_ONLY.values())
