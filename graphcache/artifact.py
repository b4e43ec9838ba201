"""An artifact: one safetensors file with what is needed to check, load and run a compiled graph.

    tensors       `runnable` (what a card loads), `dfg` (the vendor's lowered graph, which the host can execute): U8
    __metadata__  one key, `graphcache`: canonical JSON of format, args, outputs, key parts and checksums

The bytes are a function of the key and of what the compiler returned, nothing else: no time, cost, name or host.
One key in `__metadata__` keeps it so; a reader that is a hash map could not reorder it.

Every byte is covered without looking anywhere else: the tensors by their checksums, the metadata by its own, and the
rest (lengths, offsets, padding) because the header is encoded again from what was read and must come out the same.
That finds bit rot, not forgery: against that, the store names an artifact by its SHA-256.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphcache.digest import canonical_json, checksum, sha256_hex
from graphcache.errors import CorruptError
from graphcache.graph import ITEM_BYTES, TensorSpec
from graphcache.header.framing import LENGTH_BYTES, framed
from graphcache.key import Key

FORMAT = "graphcache-artifact-1"
# `runnable` starts on a cache line.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Artifact:
    """A checked artifact. The two views point into the bytes that were checked.

    args and outputs carry dtype and shape; names are positions (`arg0`, `out0`), because a program has no others.
    """

    runnable: memoryview
    dfg: memoryview
    args: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    key: Key

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """The artifact in the file at `path`. Raises CorruptError, OSError.

        The file is read, not mapped: a mapped file could be changed after its check, or truncated and end the process
        with SIGBUS. At 400 KB the copy costs less than the checksum's 0.1 ms.
        """
        with open(path, "rb") as file:
            return cls.parse(file.read())

    @classmethod
    def parse(cls, data: bytes) -> Artifact:
        """The artifact in `data`. Raises CorruptError unless every byte is as `encode` would write it."""
        try:
            artifact = _parse(memoryview(data))
            again = _header(artifact)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptError(f"not an artifact of {len(data)} bytes: {error}") from error
        if data[: len(again)] != again:
            raise CorruptError(f"artifact of {len(data)} bytes: a checksum does not match")
        return artifact

    def as_bytes(self) -> bytes:
        """The file's bytes: what it was parsed from, since only what `encode` writes is parsed."""
        return encode(self.runnable, self.dfg, args=self.args, outputs=self.outputs, key=self.key)


def encode(
    runnable: bytes | memoryview,
    dfg: bytes | memoryview,
    *,
    args: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    key: Key,
) -> bytes:
    """The bytes of an artifact. Raises ValueError for an empty `runnable` or `dfg`, or a dtype that is not known."""
    if not runnable or not dfg:
        raise ValueError(f"an artifact needs both parts; runnable is {len(runnable)} bytes, dfg {len(dfg)}")
    artifact = Artifact(memoryview(runnable), memoryview(dfg), tuple(args), tuple(outputs), key)
    return b"".join((_header(artifact), runnable, dfg))


def _header(artifact: Artifact) -> bytes:
    """Length, JSON and padding, as https://github.com/huggingface/safetensors#format has it."""
    meta: dict[str, Any] = {
        "format": FORMAT,
        "args": [_spec_json(spec) for spec in artifact.args],
        "outputs": [_spec_json(spec) for spec in artifact.outputs],
        "key": artifact.key.parts,
        "xxh3_128": {"runnable": checksum(artifact.runnable), "dfg": checksum(artifact.dfg)},
    }
    meta["xxh3_128"]["metadata"] = checksum(canonical_json(meta))
    middle, end = len(artifact.runnable), len(artifact.runnable) + len(artifact.dfg)
    text = canonical_json(
        {
            "__metadata__": {"graphcache": canonical_json(meta).decode("ascii")},
            "runnable": {"dtype": "U8", "shape": [middle], "data_offsets": [0, middle]},
            "dfg": {"dtype": "U8", "shape": [end - middle], "data_offsets": [middle, end]},
        }
    )
    return framed(text, alignment=_ALIGNMENT)


def _parse(data: memoryview) -> Artifact:
    """What the header says, unchecked but for lengths: `Artifact.parse` encodes it again and compares."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    if len(data) < LENGTH_BYTES or start > len(data):
        raise ValueError("it ends inside its header")
    header = json.loads(bytes(data[LENGTH_BYTES:start]))
    meta = json.loads(header["__metadata__"]["graphcache"])
    if meta["format"] != FORMAT:
        raise ValueError(f"its format is {meta['format']!r}, this program reads {FORMAT!r}")
    middle, end = header["dfg"]["data_offsets"]
    if not 0 < middle < end == len(data) - start:
        raise ValueError(f"its tensors end at {end}, its data at {len(data) - start}")
    return Artifact(
        runnable=data[start : start + middle],
        dfg=data[start + middle :],
        args=tuple(_spec(value, f"arg{i}") for i, value in enumerate(meta["args"])),
        outputs=tuple(_spec(value, f"out{i}") for i, value in enumerate(meta["outputs"])),
        key=Key(meta["key"]),
    )


def _spec_json(spec: TensorSpec) -> list[Any]:
    if spec.dtype not in ITEM_BYTES:
        raise ValueError(f"dtype {spec.dtype!r} of {spec.name} is not one of {', '.join(sorted(ITEM_BYTES))}")
    return [spec.dtype, list(spec.shape)]


def _spec(value: list[Any], name: str) -> TensorSpec:
    dtype, shape = value
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape!r}")
    return TensorSpec(name, dtype, tuple(shape))


def artifact_digest(data: bytes | memoryview) -> str:
    """The name of an artifact's bytes in a store and in a manifest: their SHA-256."""
    return sha256_hex(data)
