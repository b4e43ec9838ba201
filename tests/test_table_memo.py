"""A remembered table is the table that reading would give, or it is not used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphcache import table_memo
from graphcache.header_faults import HeaderError
from graphcache.memo import Memo
from graphcache.shapes import TensorTable, read_table
from graphcache.table_memo import remembered_table
from tests.support.sparse import write_checkpoint, write_index, write_shard


class CountedReads:
    """Counts calls of read_table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(table_memo, "read_table", self.read)

    def read(self, model: Path) -> TensorTable:
        self.count += 1
        return read_table(model)


@pytest.fixture
def memo(tmp_path: Path):
    with Memo(tmp_path / "memo") as memo:
        yield memo


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two named shards and one beside them."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("x", "y", "z"):
        write_shard(folder / f"{name}.safetensors", {f"{name}.{i}": [3, i] for i in range(3)})
    write_index(folder, {f"{name}.{i}": f"{name}.safetensors" for name in ("x", "y") for i in range(3)})
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> CountedReads:
    """Counted, and with files that count as settled at once."""
    monkeypatch.setattr(table_memo, "SETTLED_NS", -(10**18))
    return CountedReads(monkeypatch)


def same(one: TensorTable, other: TensorTable) -> bool:
    """Equal in all fields, those that == leaves out too."""
    places = [[(t.shard, t.begin, t.end) for t in table] for table in (one, other)]
    rest = [(t.shards, t.header_bytes_read, t.notices) for t in (one, other)]
    return one == other and places[0] == places[1] and rest[0] == rest[1]


def test_the_second_table_comes_from_the_memo(model: Path, memo: Memo, reads: CountedReads) -> None:
    first, second = remembered_table(model, memo), remembered_table(model, memo)
    assert reads.count == 1
    assert same(first, second)
    assert same(second, read_table(model))


def test_405_billion_parameters_are_one_row(tmp_path: Path, memo: Memo, reads: CountedReads) -> None:
    model = write_checkpoint("llama-3.1-405b", tmp_path / "model")
    first, second = remembered_table(model, memo), remembered_table(model, memo)
    assert reads.count == 1
    assert same(first, second)
    assert len(memo.items("")) == 1


def overwrite_in_place(model: Path) -> None:
    """The same size and, set back, the same mtime."""
    path = model / "x.safetensors"
    before = path.stat()
    content = path.read_bytes().replace(b'"x.2"', b'"x.7"')
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(model: Path) -> None:
    write_shard(model / "new", {f"x.{i}": [4, i] for i in range(3)})
    (model / "new").rename(model / "x.safetensors")


def retarget(model: Path) -> None:
    (model.parent / "elsewhere").mkdir()
    write_shard(model.parent / "elsewhere" / "blob", {f"x.{i}": [4, i] for i in range(3)})
    (model / "x.safetensors").unlink()
    (model / "x.safetensors").symlink_to("../elsewhere/blob")


def other_index(model: Path) -> None:
    write_index(model, {f"{name}.{i}": f"{name}.safetensors" for name in ("x", "y", "z") for i in range(3)})


CHANGES: list[Callable[[Path], None]] = [
    overwrite_in_place,
    replace,
    retarget,
    other_index,
    lambda model: (model / "x.safetensors").unlink(),
    lambda model: (model / "z.safetensors").unlink(),
    lambda model: write_shard(model / "w.safetensors", {"w": [1]}) and None,
    lambda model: write_shard(model / "model.safetensors", {"w": [1]}) and None,
    lambda model: os.truncate(model / "y.safetensors", 10),
]


@pytest.mark.parametrize("change", CHANGES)
def test_no_hit_survives_a_change(change: Callable[[Path], None], model: Path, memo: Memo, reads: CountedReads) -> None:
    def outcome(read: Callable[[], TensorTable]) -> TensorTable | str:
        try:
            return read()
        except HeaderError as error:
            return error.message

    before = remembered_table(model, memo)
    change(model)
    # A file system's clock ticks every few milliseconds; the guard against that is tested below.
    expected = outcome(lambda: read_table(model))
    found = outcome(lambda: remembered_table(model, memo))
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        assert same(found, expected)
        assert not same(found, before)


def test_a_file_changed_a_moment_ago_is_not_remembered(
    model: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could change again within one tick of the file system's clock."""
    counted = CountedReads(monkeypatch)
    remembered_table(model, memo)
    remembered_table(model, memo)
    assert counted.count == 2


def test_a_file_from_tomorrow_is_not_remembered(model: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedReads(monkeypatch)
    monkeypatch.setattr(table_memo, "SETTLED_NS", 0)
    tomorrow = time.time() + 86400
    os.utime(model / "x.safetensors", (tomorrow, tomorrow))
    time.sleep(0.02)
    remembered_table(model, memo)
    remembered_table(model, memo)
    assert counted.count == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    model: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_memo, "SETTLED_NS", -(10**18))

    def read_then_change(path: Path) -> TensorTable:
        table = read_table(path)
        replace(path)
        return table

    with monkeypatch.context() as patched:
        patched.setattr(table_memo, "read_table", read_then_change)
        remembered_table(model, memo)
    assert same(remembered_table(model, memo), read_table(model))


@pytest.mark.parametrize(
    "row", [None, [], "x", {}, {"stamps": None, "files": ["/nonexistent"]}, {"stamps": [], "files": []}, {"files": [1]}]
)
def test_a_row_of_nonsense_is_a_miss(row: object, model: Path, memo: Memo, reads: CountedReads) -> None:
    remembered_table(model, memo)
    (key,) = memo.items("")
    memo.set(key, row)
    assert same(remembered_table(model, memo), read_table(model))


def test_without_a_memo_that_works_the_table_is_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memo = Memo(tmp_path / "file" / "memo")
    assert same(remembered_table(model, memo), read_table(model))


def test_errors_are_those_of_reading(tmp_path: Path, memo: Memo) -> None:
    with pytest.raises(HeaderError, match="does not exist"):
        remembered_table(tmp_path / "absent", memo)
