"""Artifacts: safetensors files of which every byte is covered by a check."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from safetensors import safe_open

from graphcache.artifact import Artifact, encode
from graphcache.errors import CorruptError
from graphcache.graph import TensorSpec
from tests.store.fakes import fake_artifact, fake_key

KEY = fake_key()
SPECS = (TensorSpec("master", "float32", (8,)), TensorSpec("step", "float32", ()))


def test_what_is_encoded_is_parsed(tmp_path):
    data = encode(b"runnable bytes", b"dfg", args=SPECS, outputs=SPECS[:1], key=KEY)
    (tmp_path / "a.safetensors").write_bytes(data)
    for artifact in (Artifact.parse(data), Artifact.open(tmp_path / "a.safetensors")):
        assert bytes(artifact.runnable) == b"runnable bytes"
        assert bytes(artifact.dfg) == b"dfg"
        assert [(spec.dtype, spec.shape) for spec in artifact.args] == [("float32", (8,)), ("float32", ())]
        assert [spec.name for spec in artifact.args] == ["arg0", "arg1"]
        assert [spec.name for spec in artifact.outputs] == ["out0"]
        assert artifact.key == KEY
        assert artifact.as_bytes() == data


def test_the_stock_library_reads_it(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(encode(b"runnable bytes", b"dfg", args=SPECS, outputs=SPECS, key=KEY))
    with safe_open(path, "numpy") as file:
        assert sorted(file.keys()) == ["dfg", "runnable"]
        assert bytes(file.get_tensor("runnable")) == b"runnable bytes"
        assert bytes(file.get_tensor("dfg")) == b"dfg"
        assert list(file.metadata()) == ["graphcache"]


def test_names_of_arguments_change_no_byte():
    renamed = tuple(TensorSpec("other", spec.dtype, spec.shape) for spec in SPECS)
    assert encode(b"r", b"d", args=SPECS, outputs=(), key=KEY) == encode(b"r", b"d", args=renamed, outputs=(), key=KEY)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_bytes_are_the_same_in_every_process(seed):
    program = "import sys; from tests.store.fakes import *; sys.stdout.buffer.write(fake_artifact(fake_key()))"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment)
    assert other.stdout == fake_artifact(KEY)


def test_runnable_starts_on_a_cache_line():
    data = fake_artifact(KEY)
    assert data.index(bytes(Artifact.parse(data).runnable)) % 64 == 0


def test_every_flipped_bit_is_found():
    data = fake_artifact(KEY)
    for at in range(len(data)):
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[at] ^= bit
            with pytest.raises(CorruptError):
                Artifact.parse(bytes(damaged))


def test_every_truncation_and_what_follows_the_end_is_found():
    data = fake_artifact(KEY)
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            Artifact.parse(data[:length])
    with pytest.raises(CorruptError):
        Artifact.parse(data + b"\0")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"__metadata__": 1}',
        b'{"__metadata__": {"graphcache": "[]"}}',
        b'{"__metadata__": {"graphcache": "{\\"format\\": \\"graphcache-artifact-2\\"}"}}',
        b'{"__metadata__": {"graphcache": "{\\"format\\": \\"graphcache-artifact-1\\"}"}, '
        b'"dfg": {"data_offsets": 1e400}}',
        b"\xff\xfe",
    ],
)
def test_a_header_that_is_none_is_a_named_error(header):
    for length in (len(header), 2**63, 2**64 - 1):
        with pytest.raises(CorruptError, match="artifact"):
            Artifact.parse(length.to_bytes(8, "little") + header)


@pytest.mark.parametrize(("runnable", "dfg"), [(b"", b"d"), (b"r", b"")])
def test_an_artifact_without_one_of_its_parts_is_refused(runnable, dfg):
    with pytest.raises(ValueError, match="both parts"):
        encode(runnable, dfg, args=SPECS, outputs=SPECS, key=KEY)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="float4"):
        encode(b"r", b"d", args=(TensorSpec("a", "float4", (1,)),), outputs=(), key=KEY)
