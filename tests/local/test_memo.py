"""The memo may lose anything and must never fail, lie or run what it finds."""

from __future__ import annotations

import os
import pickle
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import diskcache
import pytest

from graphcache.local.memo import Memo, memo_of
from graphcache.local.usage import Ledger, Usage

ROOT = Path(__file__).parents[2]


@pytest.fixture
def memo(tmp_path: Path):
    with Memo(tmp_path / "memo") as memo:
        yield memo


def execute(memo: Memo, statement: str, *values: object) -> None:
    """Change the database behind the memo's back."""
    memo.close()
    with sqlite3.connect(memo.folder / "cache.db") as connection:
        connection.execute(statement, values)
    connection.close()


class CreatesFile:
    """Its unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_json_values_and_bytes_come_back_as_they_were(memo: Memo) -> None:
    values = {"a": {"x": [1, 2.5, None, True, "é"]}, "b": b"\0\1", "c": 0, "d": "text", "e": []}
    for key, value in values.items():
        memo.set(key, value)
    assert {key: memo.get(key) for key in values} == values
    assert memo.get("absent") is None
    assert memo.trouble == ""


def test_values_outlive_the_process_that_set_them(memo: Memo) -> None:
    memo.set("key", {"value": 1})
    with Memo(memo.folder) as other:
        assert other.get("key") == {"value": 1}


def test_importing_the_memo_imports_no_database() -> None:
    modules = "graphcache.local.memo, graphcache.local.usage"
    code = f"import sys, {modules}; print({{'sqlite3', 'diskcache'}} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "set()\n"


def test_a_memo_that_is_not_used_makes_no_folder(tmp_path: Path) -> None:
    Memo(tmp_path / "memo").close()
    assert list(tmp_path.iterdir()) == []


# --- rows that someone planted ------------------------------------------------------------------------------------


def test_the_planted_pickle_is_unpickled_by_diskcache_itself(memo: Memo, tmp_path: Path) -> None:
    """The control: without our Disk class the tests below would find the file."""
    memo.set("key", "ours")
    execute(memo, "UPDATE Cache SET mode = 4, value = ?", pickle.dumps(CreatesFile(tmp_path / "created")))
    with diskcache.Cache(str(memo.folder)) as stock:
        stock.get("key").close()
    assert (tmp_path / "created").exists()


def test_a_planted_pickle_is_a_miss_and_is_not_unpickled(memo: Memo, tmp_path: Path) -> None:
    memo.set("key", "ours")
    planted = pickle.dumps(CreatesFile(tmp_path / "created"))
    execute(memo, "UPDATE Cache SET mode = 4, value = ?", planted)
    assert memo.get("key") is None
    assert "RefusedRowError" in memo.trouble
    assert memo.items("") == {}
    memo.update(["key"], lambda value: [value])
    assert memo.get("key") == [None]
    assert not (tmp_path / "created").exists()


def test_a_planted_pickle_in_a_file_is_not_read(memo: Memo, tmp_path: Path) -> None:
    memo.set("key", "ours")
    (memo.folder / "planted").write_bytes(pickle.dumps(CreatesFile(tmp_path / "created")))
    execute(memo, "UPDATE Cache SET mode = 4, filename = 'planted', value = NULL")
    assert memo.get("key") is None
    assert not (tmp_path / "created").exists()


def test_a_planted_pickled_key_is_not_unpickled(memo: Memo, tmp_path: Path) -> None:
    memo.set("use a", [1, 2.0])
    memo.set("use b", [3, 4.0])
    execute(memo, "UPDATE Cache SET raw = 0, key = ? WHERE key = 'use a'", pickle.dumps(CreatesFile(tmp_path / "x")))
    assert memo.items("use ") == {"use b": [3, 4.0]}
    assert not (tmp_path / "x").exists()


def test_replacing_a_planted_row_deletes_no_file_that_it_names(memo: Memo, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    memo.set("key", "ours")
    execute(memo, "UPDATE Cache SET filename = '../precious'")
    memo.set("key", "again")
    execute(memo, "UPDATE Cache SET filename = '../precious'")
    memo.delete(["key"])
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("value", ["{not json", "[" * 5000, 7, 1.5, None])
def test_a_row_that_is_neither_json_nor_bytes_is_a_miss(memo: Memo, value: object) -> None:
    memo.set("key", "ours")
    execute(memo, "UPDATE Cache SET value = ?", value)
    assert memo.get("key") is None
    memo.set("key", "again")
    assert memo.get("key") == "again"


# --- failures are misses ------------------------------------------------------------------------------------------


def expect_misses(memo: Memo) -> None:
    """Every operation is harmless, and the reason is kept."""
    memo.set("key", 1)
    assert memo.get("key") is None
    assert memo.items("") == {}
    memo.update(["key"], lambda value: value)
    memo.delete(["key"])
    assert memo.trouble


def test_a_folder_that_cannot_be_made_is_a_miss(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expect_misses(Memo(tmp_path / "file" / "memo"))


def test_a_folder_that_everybody_may_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "memo"
    folder.mkdir()
    folder.chmod(0o777)
    memo = Memo(folder)
    expect_misses(memo)
    assert "not trusted" in memo.trouble


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    expect_misses(Memo(tmp_path / "memo"))


@pytest.mark.parametrize("damage", [b"not a database" * 100, b"\0" * 4096])
def test_a_damaged_database_is_a_miss_and_the_next_process_starts_anew(memo: Memo, damage: bytes) -> None:
    memo.set("key", 1)
    memo.close()
    (memo.folder / "cache.db").write_bytes(damage)
    memo.get("key")
    with Memo(memo.folder) as first, Memo(memo.folder) as second:
        first.get("key")
        second.set("key", 2)
        assert second.get("key") == 2


def test_a_database_damaged_at_any_page_never_raises(memo: Memo) -> None:
    for i in range(200):
        memo.set(f"key {i}", "x" * 100)
    memo.close()
    database = memo.folder / "cache.db"
    original = database.read_bytes()
    for begin in range(0, len(original), 4096):
        page = bytes(b ^ 0xA5 for b in original[begin : begin + 512])
        database.write_bytes(original[:begin] + page + original[begin + 512 :])
        for name in ("cache.db-wal", "cache.db-shm"):
            (memo.folder / name).unlink(missing_ok=True)
        with Memo(memo.folder) as damaged:
            assert damaged.get("key 7") in (None, "x" * 100)
            damaged.set("key 7", "y")
            damaged.items("key")


def test_a_settings_table_of_nonsense_is_thrown_away(memo: Memo) -> None:
    memo.set("key", 1)
    execute(memo, "INSERT INTO Settings VALUES ('disk_no_such_argument', 1)")
    with Memo(memo.folder) as damaged:
        assert damaged.get("key") is None
    with Memo(memo.folder) as fresh:
        fresh.set("key", 2)
        assert fresh.get("key") == 2


def test_a_lock_that_another_process_holds_is_a_miss(memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    import graphcache.local.memo_disk

    monkeypatch.setattr(graphcache.local.memo_disk, "LOCK_TIMEOUT_SECS", 0.05)
    memo.set("key", 1)
    holder = sqlite3.connect(memo.folder / "cache.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    memo.close()
    expect_misses(memo)
    holder.close()


def test_a_full_disk_is_a_miss(tmp_path: Path) -> None:
    """A limit on file size stands for the full disk: SQLite sees a write fail in the middle in both."""
    code = """
import sys
from pathlib import Path
from graphcache.local.memo import Memo
memo = Memo(Path(sys.argv[1]))
memo.set("small", 1)
for i in range(50):
    memo.set(f"large {i}", "x" * 100_000)
print(bool(memo.trouble), memo.get("small") in (1, None))
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "memo")],
        cwd=ROOT,
        text=True,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "True True\n", "")
    with Memo(tmp_path / "memo") as memo:
        memo.set("key", 1)
        assert memo.get("key") == 1


def test_a_value_above_the_limit_is_not_kept(memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    import graphcache.local.memo_disk

    monkeypatch.setattr(graphcache.local.memo_disk, "VALUE_LIMIT_BYTES", 100)
    memo.set("key", "x" * 100)
    assert memo.get("key") is None
    memo.set("key", "x" * 10)
    assert memo.get("key") == "x" * 10


# --- the ledger ---------------------------------------------------------------------------------------------------


def test_the_ledger_counts_uses_and_keeps_the_last(memo: Memo) -> None:
    ledger = Ledger(memo)
    ledger.record(["b", "a"], now_secs=100.0)
    ledger.record(["a"], now_secs=200.0)
    ledger.record(["a"], now_secs=150.0)
    assert ledger.usage() == {"a": Usage(3, 200.0), "b": Usage(1, 100.0)}
    ledger.forget(["a", "never seen"])
    assert ledger.usage() == {"b": Usage(1, 100.0)}


def test_uses_counted_by_several_processes_add_up(memo: Memo) -> None:
    code = """
import sys
from pathlib import Path
from graphcache.local.usage import Ledger
from graphcache.local.memo import Memo
ledger = Ledger(Memo(Path(sys.argv[1])))
for _ in range(20):
    ledger.record(["a"])
"""
    memo.set("made", 1)
    command = [sys.executable, "-c", code, str(memo.folder)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert Ledger(memo).usage()["a"].hits == 60


def test_a_row_of_the_ledger_that_makes_no_sense_is_left_out(memo: Memo) -> None:
    memo.set("use a", ["many", 1])
    memo.set("use b", [2, 1.5])
    assert Ledger(memo).usage() == {"b": Usage(2, 1.5)}


def test_a_lost_ledger_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ledger = Ledger(Memo(tmp_path / "file" / "memo"))
    ledger.record(["a"])
    assert ledger.usage() == {}


def test_the_memo_of_a_cache_lies_on_the_local_disk(tmp_path: Path) -> None:
    assert memo_of(tmp_path, building=True).folder == tmp_path / "local" / "memo"
