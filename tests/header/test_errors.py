"""Each fault that a checkpoint's headers can have is reported by its own name, with the file, the fact and a remedy."""

from __future__ import annotations

import functools
import gzip
import inspect
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphcache.header import errors as header_faults
from graphcache.header import shard as header
from graphcache.header.errors import HeaderError, quoted
from graphcache.header.json_bounds import BYTES_PER_BRACKET
from graphcache.header.shard import LIMIT_BYTES, read_header
from graphcache.header.table import read_config, read_table
from tests.support.sparse import write_header, write_index, write_shard

ROOT = Path(__file__).parents[2]
GOOD = {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 16060522240\n".format("0" * 64)


def entry(**changed: Any) -> dict[str, Any]:
    """A header of one tensor of 8 bytes, with some fields changed; None removes one."""
    fields = {**GOOD["a"], **changed}
    return {"a": {name: value for name, value in fields.items() if value is not None}}


def file(text: bytes | dict[str, Any], data_bytes: int = 8) -> Callable[[Path], Path]:
    """A file with this header."""

    def make(folder: Path) -> Path:
        raw = text if isinstance(text, bytes) else json.dumps(text).encode()
        write_header(folder / "model.safetensors", raw, data_bytes)
        return folder / "model.safetensors"

    return make


def raw(content: bytes) -> Callable[[Path], Path]:
    """A file with this content."""

    def make(folder: Path) -> Path:
        (folder / "model.safetensors").write_bytes(content)
        return folder / "model.safetensors"

    return make


def folder_with(*names: str) -> Callable[[Path], Path]:
    """A folder with empty files of these names."""

    def make(folder: Path) -> Path:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
        return folder

    return make


def indexed(weight_map: Any, shards: dict[str, dict[str, list[int]]]) -> Callable[[Path], Path]:
    """An index over shards of BF16 tensors."""

    def make(folder: Path) -> Path:
        for name, tensors in shards.items():
            write_shard(folder / name, tensors)
        return write_index(folder, weight_map)

    return make


def index_text(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "model.safetensors.index.json").write_text(text)
        return folder

    return make


def dangling(folder: Path) -> Path:
    (folder / "model.safetensors").symlink_to("../blobs/0123")
    return folder


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "model.safetensors")
    return folder / "model.safetensors"


def link_loop(folder: Path) -> Path:
    (folder / "model.safetensors").symlink_to("model.safetensors")
    return folder / "model.safetensors"


def config(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "config.json").write_text(text)
        return folder

    return make


def two(first: list[int], second: list[int]) -> dict[str, Any]:
    """Two BF16 tensors with these offsets."""
    return {
        name: {"dtype": "BF16", "shape": [(end - begin) // 2], "data_offsets": [begin, end]}
        for name, (begin, end) in (("a", first), ("b", second))
    }


TEXT = json.dumps(GOOD).encode()
# Name of the error, what is wrong, how to make it. The value in quotes must stand in the message.
FAULTS: list[tuple[str, str, Callable[[Path], Path]]] = [
    ("checkpoint-not-found", "does not exist", lambda folder: folder / "absent.safetensors"),
    ("checkpoint-not-found", "does not exist", lambda folder: folder / "absent"),
    ("checkpoint-dangling-link", "../blobs/0123", dangling),
    ("checkpoint-dangling-link", "../blobs/0123", lambda folder: dangling(folder) / "model.safetensors"),
    ("checkpoint-unreadable", "cannot be opened", link_loop),
    ("checkpoint-unreadable", "cannot be opened", lambda folder: folder / ("x" * 5000)),
    ("checkpoint-unreadable", "null", lambda folder: folder / "a\0b.safetensors"),
    ("checkpoint-not-a-file", "not a regular file", pipe),
    ("checkpoint-not-a-file", "not a regular file", folder_with("model.safetensors/x")),
    ("checkpoint-not-in-folder", "no .safetensors file", folder_with()),
    ("checkpoint-not-in-folder", "pytorch_model.bin", folder_with("pytorch_model.bin")),
    ("checkpoint-not-in-folder", "2 checkpoints", folder_with("a.safetensors", "b.safetensors")),
    ("checkpoint-not-in-folder", "abc123", folder_with("snapshots/abc123")),
    ("checkpoint-lfs-pointer", "16060522240 bytes", raw(POINTER.encode())),
    ("checkpoint-lfs-pointer", "pointer", index_text(POINTER)),
    ("header-short", "0 bytes", raw(b"")),
    ("header-short", "7 bytes", raw(b"\x02\0\0\0\0\0\0")),
    ("header-length", "0 bytes", raw(struct.pack("<Q", 0) + b"data")),
    ("header-length", "1 bytes", raw(struct.pack("<Q", 1) + b"{")),
    ("header-limit", "9,223,372,036,854,775,808", raw(struct.pack("<Q", 2**63) + b"{}")),
    ("header-limit", "18,446,744,073,709,551,615", raw(b"\xff" * 16)),
    ("header-limit", f"{LIMIT_BYTES + 1:,}", raw(struct.pack("<Q", LIMIT_BYTES + 1) + b"{}")),
    ("checkpoint-format", "zip", raw(b"PK\x03\x04" + b"\x05" * 100)),
    ("checkpoint-format", "zip", raw(b"PK\x03\x04\0\0\0\0" + b"\x05" * 100)),
    ("checkpoint-format", "GGUF", raw(b"GGUF\x03\0\0\0" + b"\0" * 100)),
    ("checkpoint-format", "a web page", raw(b"<!DOCTYPE html><html>Not found</html>")),
    ("checkpoint-format", "a web page", raw(b"\n\n<html><head></head></html>")),
    ("checkpoint-format", "JSON", raw(b'{"error": "not found"}')),
    ("checkpoint-format", "a text", raw(b"version 1 of something else")),
    ("checkpoint-format", "a text", raw(b"Entry not found")),
    ("checkpoint-format", "gzip", raw(gzip.compress(b"weights"))),
    *(("checkpoint-format", "a pickle", raw(pickle.dumps({"a": [1.5] * 99}, p))) for p in (2, 3, 4, 5)),
    ("header-truncated", "needs 108", raw(struct.pack("<Q", 100) + b"{")),
    ("header-truncated", "needs 100,000,008", raw(struct.pack("<Q", 100_000_000) + b"{}")),
    ("header-not-utf8", "0xff", file(TEXT.replace(b'"a"', b'"\xff"'))),
    ("header-not-json", "not JSON", file(b"{'a': 1}")),
    ("header-not-json", "not JSON", file(TEXT + b"}")),
    ("header-not-json", "not JSON", file(b"\0" * 64)),
    ("header-not-json", "not JSON", file(TEXT[:-10])),
    ("header-not-json", "NaN", file(TEXT.replace(b"[4]", b"[NaN]"))),
    ("header-not-json", "-Infinity", file(TEXT.replace(b"[4]", b"[-Infinity]"))),
    ("header-not-json", "digits", file(TEXT.replace(b"[4]", b"[" + b"9" * 5000 + b"]"))),
    ("header-nesting", "too deep", file(b'{"a":' + (b'{"a":' + b" " * 8) * 2000 + b"1" + b"}" * 2000 + b"}")),
    ("header-nesting", "100,001 lists", file(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    ("header-nesting", "100,002 lists", file(b'{"a":[' + b"[]," * 99_999 + b"[]]}")),
    ("header-not-object", "[1, 2]", file(b"[1, 2]")),
    ("header-not-object", "None", file(b"null")),
    ("header-duplicate-key", "'a'", file(TEXT[:-1] + b"," + TEXT[1:])),
    ("header-duplicate-key", "'dtype'", file(TEXT.replace(b'"dtype"', b'"dtype":"F16","dtype"'))),
    ("header-metadata", "[1]", file({"__metadata__": [1], **GOOD})),
    ("header-metadata", "'step': 7", file({"__metadata__": {"step": 7}, **GOOD})),
    ("header-metadata", "None", file({"__metadata__": {"format": None}, **GOOD})),
    ("header-name", "ud800", file({"\ud800": GOOD["a"]})),
    ("header-entry", "[1]", file({"a": [1]})),
    ("header-entry", "lacks", file(entry(dtype=None))),
    ("header-entry", "lacks", file(entry(shape=None))),
    ("header-entry", "lacks", file(entry(data_offsets=None))),
    ("header-dtype", "16", file(entry(dtype=16))),
    ("header-dtype", "['BF16']", file(entry(dtype=["BF16"]))),
    ("header-shape", "-4", file(entry(shape=[-4]))),
    ("header-shape", "True", file(entry(shape=[True, 4]))),
    ("header-shape", "4.0", file(entry(shape=[4.0]))),
    ("header-shape", "inf", file(TEXT.replace(b"[4]", b"[1e400]"))),
    ("header-shape", "'4'", file(entry(shape="4"))),
    ("header-shape", "[4]", file(entry(shape=[[4]]))),
    ("header-shape", "9223372036854775808", file(entry(shape=[2**63]))),
    ("header-shape", "4294967296", file(entry(shape=[2**32, 2**32, 0]))),
    ("header-offsets", "[0]", file(entry(data_offsets=[0]))),
    ("header-offsets", "[0, 8, 9]", file(entry(data_offsets=[0, 8, 9]))),
    ("header-offsets", "8.0", file(entry(data_offsets=[0, 8.0]))),
    ("header-offsets", "False", file(entry(data_offsets=[False, 8]))),
    ("header-offsets", "-8", file(entry(data_offsets=[-8, 0]))),
    ("header-offsets", "'0, 8'", file(entry(data_offsets="0, 8"))),
    ("header-offsets", "backwards", file(entry(data_offsets=[8, 0]))),
    ("header-size-mismatch", "takes 10 bytes", file(entry(shape=[5]))),
    ("header-size-mismatch", "takes 1.5 bytes", file(entry(dtype="F4", shape=[3], data_offsets=[0, 2]), 2)),
    ("header-gap", "8 bytes", file(entry(data_offsets=[8, 16]), 16)),
    ("header-gap", "2 bytes", file(two([0, 8], [10, 18]), 18)),
    ("header-overlap", "'a' and 'b'", file(two([0, 8], [6, 14]), 14)),
    ("header-overlap", "'b'", file(two([0, 8], [0, 8]))),
    ("data-short", "its tensors need", file(GOOD, 7)),
    ("data-short", "its tensors need", file(GOOD, 0)),
    ("data-long", "its tensors end", file(GOOD, 9)),
    ("data-long", "its tensors end", file({}, 1)),
    ("index-format", "not JSON", index_text("{")),
    ("index-format", "no weight_map", index_text("{}")),
    ("index-format", "no weight_map", index_text('{"weight_map": ["a"]}')),
    ("index-format", "empty", index_text('{"weight_map": {}}')),
    ("index-format", "7", index_text('{"weight_map": {"a": 7}}')),
    ("index-format", "twice", index_text('{"weight_map": {"a": "x", "a": "y"}}')),
    ("index-format", "deep", index_text('{"a":' + '        {"a":' * 2000 + "}" * 2001)),
    ("index-format", "no weight_map", config('{"model_type": "llama"}')),
    ("index-shard-name", "../secret", indexed({"a": "../secret"}, {})),
    ("index-shard-name", "/etc/passwd", indexed({"a": "/etc/passwd"}, {})),
    ("index-shard-name", "''", indexed({"a": ""}, {})),
    (
        "index-shard-missing",
        "y.safetensors",
        indexed({"a": "x.safetensors", "b": "y.safetensors"}, {"x.safetensors": {"a": [1]}}),
    ),
    (
        "index-tensor-missing",
        "'b'",
        indexed({"a": "x.safetensors", "b": "x.safetensors"}, {"x.safetensors": {"a": [1]}}),
    ),
    (
        "index-tensor-missing",
        "y.safetensors holds it",
        indexed(
            {"a": "x.safetensors", "b": "x.safetensors", "c": "y.safetensors"},
            {"x.safetensors": {"a": [1]}, "y.safetensors": {"b": [1], "c": [1]}},
        ),
    ),
    (
        "index-tensor-duplicated",
        "x.safetensors holds too",
        indexed(
            {"a": "x.safetensors", "b": "y.safetensors"},
            {"x.safetensors": {"a": [1]}, "y.safetensors": {"a": [1], "b": [1]}},
        ),
    ),
    ("config-format", "not JSON", config("{")),
    ("config-format", "[]", config("[]")),
    ("config-format", "UTF-8", lambda folder: (folder / "config.json").write_bytes(b"\xff") and folder),
]


def read_all(model: Path) -> None:
    """The table; where the case made a config.json, that one, and it taken for an index."""
    if os.path.exists(os.path.join(model, "config.json")):
        read_config(model)
        model = model / "config.json"
    read_table(model)


@pytest.mark.parametrize(("name", "fact", "make"), FAULTS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(FAULTS)])
def test_each_fault_has_its_own_error(name: str, fact: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    model = make(tmp_path)
    with pytest.raises(HeaderError) as caught:
        read_all(model)
    assert caught.value.name == name
    assert fact in caught.value.fact
    assert str(tmp_path) in caught.value.file
    assert caught.value.hint
    assert len(caught.value.message) < len(caught.value.file) + 400


def test_every_error_class_is_provoked_above() -> None:
    classes = {c.name for _, c in inspect.getmembers(header_faults, inspect.isclass) if issubclass(c, HeaderError)}
    assert classes - {"header"} == {name for name, _, _ in FAULTS}


def test_error_names_are_not_shared() -> None:
    classes = [c for _, c in inspect.getmembers(header_faults, inspect.isclass) if issubclass(c, HeaderError)]
    assert len({c.name for c in classes}) == len(classes)


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    model = file(GOOD)(tmp_path)
    model.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:  # who may read every file
            os.seteuid(65534)
        with pytest.raises(header_faults.UnreadableError, match="Permission denied"):
            read_table(model)
    finally:
        os.seteuid(user)


def test_an_error_of_the_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, count: int) -> bytes:
        raise OSError(5, "Input/output error")

    model = file(GOOD)(tmp_path)
    monkeypatch.setattr(header.os, "read", fail)
    with pytest.raises(header_faults.UnreadableError, match="Input/output error"):
        read_table(model)


def test_reads_that_return_less_than_asked_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read
    model = file(GOOD)(tmp_path)
    monkeypatch.setattr(header.os, "read", lambda fd, count: read(fd, min(count, 3)))
    assert [e.name for e in read_header(model).entries] == ["a"]


def test_a_file_that_shrinks_while_it_is_read_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read
    model = file(GOOD)(tmp_path)
    monkeypatch.setattr(header.os, "read", lambda fd, count: read(fd, count) if count == 8 else b"")
    with pytest.raises(header_faults.HeaderTruncatedError):
        read_header(model)


def test_as_json_holds_file_fact_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(HeaderError) as caught:
        read_table(raw(b"")(tmp_path))
    assert caught.value.as_json() == {
        "name": "header-short",
        "message": f"{tmp_path}/model.safetensors: 0 bytes; the header's length alone takes 8",
        "hint": "download or copy the file again",
        "file": f"{tmp_path}/model.safetensors",
        "fact": "0 bytes; the header's length alone takes 8",
    }


def test_quoted_values_are_short_and_escaped() -> None:
    assert len(quoted("x" * 10**6)) < 100
    assert len(quoted([[["x" * 1000] * 1000]] * 1000)) < 250
    assert "\x1b" not in quoted("\x1b[31m")


# --- bounds -------------------------------------------------------------------------------------------------------

MEASURE = """
import sys, time
from pathlib import Path
from graphcache.errors import GraphcacheError
from graphcache.header.table import read_table
started = time.process_time()
try:
    outcome = len(read_table(Path(sys.argv[1])))
except GraphcacheError as error:
    outcome = error.name
# Not ru_maxrss: that one begins with the peak of the process that forked this one.
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(outcome, time.process_time() - started, peak)
"""


@functools.cache
def bytes_of_python() -> int:
    """Peak bytes of a process that fails to read anything."""
    return measured(Path("/nonexistent"))[2]


def measured(model: Path) -> tuple[str, float, int]:
    """What reading `model` gave, CPU seconds, peak bytes, in a process of its own."""
    command = [sys.executable, "-c", MEASURE, str(model)]
    outcome, secs, peak = subprocess.check_output(command, cwd=ROOT, text=True).split()
    return outcome, float(secs), int(peak)


def test_a_length_that_the_file_does_not_have_costs_no_memory(tmp_path: Path) -> None:
    outcome, _, peak_bytes = measured(raw(struct.pack("<Q", 100_000_000) + b"{}")(tmp_path))
    assert outcome == "header-truncated"
    assert peak_bytes < bytes_of_python() + 1_000_000


HOSTILE = {
    "lists": b'{"a":[' + b"[]," * 3_000_000 + b"[]]}",
    "objects": b'{"a":[' + b"{}," * 3_000_000 + b"{}]}",
    "nested": b'{"a":' + b"[" * 10_000_000,
    "sizes": b'{"a":{"dtype":"U8","shape":[' + b"9223372036854775807," * 500_000 + b'1],"data_offsets":[0,8]}}',
    "ones": b'{"a":{"dtype":"U8","shape":[' + b"1," * 5_000_000 + b'8],"data_offsets":[0,8]}}',
    "strings": b'{"a":[' + b'"bc",' * 2_000_000 + b'""]}',
    "wide": b'{"a":[' + '"ē",'.encode() * 2_000_000 + b'""]}',
    "spaces": b"{" + b" " * 10_000_000 + b"}",
    "name": b'{"' + b"x" * 10_000_000 + b'":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
    "digits": b'{"a":[' + (b"9" * 4000 + b",") * 2500 + b"1]}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_header_is_bounded_by_its_size(kind: str, tmp_path: Path) -> None:
    """Ten million bytes of the worst that JSON allows: at most 25 bytes of memory for each of them."""
    text = HOSTILE[kind]
    model = file(text)(tmp_path)
    outcome, _, peak_bytes = measured(model)
    assert outcome.startswith(("header-", "data-")) or outcome == "1"
    assert peak_bytes < bytes_of_python() + 25 * len(text)


@pytest.mark.stress
def test_a_header_of_126_megabytes_is_read(tmp_path: Path) -> None:
    """As large as the largest header that has been seen; more than the format's own library takes."""
    count, shape = 1_000_000, [1]
    entries = {
        f"model.layers.{i}.a_rather_long_name_of_a_module.weight": {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [2 * i, 2 * i + 2],
        }
        for i in range(count)
    }
    text = json.dumps(entries).encode()
    assert 110_000_000 < len(text) < LIMIT_BYTES
    outcome, secs, peak_bytes = measured(file(text, 2 * count)(tmp_path))
    print(f"{len(text):,} bytes of header: {secs:.1f} s, {peak_bytes:,} bytes of memory")
    assert outcome == str(count)
    assert peak_bytes < bytes_of_python() + 15 * len(text)


def test_the_limit_on_nesting_leaves_room_for_real_headers() -> None:
    """The densest header that can be: empty names can occur once, so one character and no spaces."""
    text = json.dumps({chr(0x4E00 + i): {"dtype": "U8", "shape": [], "data_offsets": [i, i + 1]} for i in range(999)})
    brackets = text.count("[") + text.count("{")
    assert brackets < len(text) // BYTES_PER_BRACKET
