"""One shard's header (https://github.com/huggingface/safetensors#format): 8 bytes of length, JSON, then the tensors.

Reads `8 + length` bytes and nothing else; everything that the header claims is checked against dtype, shape and the
file's size, as the format's own reader does. More is taken than that reader takes in two places: a dtype that is not
known keeps its tensor, and a header may be as long as LIMIT_BYTES.
"""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from graphcache.header.errors import (
    DanglingLinkError,
    DataLongError,
    DataShortError,
    DtypeError,
    ForeignFormatError,
    GapError,
    HeaderError,
    HeaderLengthError,
    HeaderLimitError,
    HeaderObjectError,
    HeaderShortError,
    HeaderTruncatedError,
    LfsPointerError,
    MetadataError,
    NotAFileError,
    NotFoundError,
    OffsetsError,
    OverlapError,
    ShapeError,
    SizeMismatchError,
    TensorEntryError,
    TensorNameError,
    UnreadableError,
    quoted,
)
from graphcache.header.json_bounds import Faults, parse
from graphcache.header.kinds import foreign_kind
from graphcache.process.regular_file import NotRegularError, open_regular

# The format's own library writes and reads at most 100,000,000 bytes, and a published header of 126 MB exists. This
# program only needs the shapes, so it takes that one too (a million tensors: 16 s, 1.1 GB). The worst that JSON can
# hold costs some twenty bytes of memory for a byte of header.
LIMIT_BYTES = 128 * 1024 * 1024

# Bits of one element; sub-byte dtypes are packed. The dtypes of safetensors 0.8.
DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E8M0", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
INT_LIMIT = 2**63
LFS_MAGIC = b"version https://git-lfs"
LFS_POINTER_MAX_BYTES = 1024


class Typed:
    """What has a dtype, as the header spells it, and a shape."""

    __slots__ = ()
    dtype: str
    shape: tuple[int, ...]

    @property
    def known(self) -> bool:
        """Whether this program knows how large an element of its dtype is."""
        return self.dtype in DTYPE_BITS

    @property
    def elements(self) -> int:
        """The elements of one tensor."""
        return math.prod(self.shape)


class Entry(NamedTuple):
    """One tensor of a shard: `begin` and `end` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A shard's tensors, in the order of their bytes; `bytes_read` is what reading them took."""

    entries: tuple[Entry, ...]
    bytes_read: int


def read_header(path: Path) -> Header:
    """The header of the safetensors file at `path`. Raises a kind of HeaderError for whatever is wrong with it."""
    fd = open_file(path)
    try:
        size_bytes = os.fstat(fd).st_size
        text = _header_text(fd, size_bytes, path)
    except OSError as error:
        raise UnreadableError(path, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    parsed = parse(text, path, Faults())
    if not isinstance(parsed, dict):
        raise HeaderObjectError(path, f"the header is JSON, but not an object: {quoted(parsed)}")
    return Header(_entries(parsed, 8 + len(text), size_bytes, path), 8 + len(text))


def open_file(path: Path) -> int:
    """A descriptor of the regular file at `path`. Raises a kind of HeaderError that says why there is none."""
    try:
        return open_regular(path)
    except (OSError, ValueError) as error:
        raise open_error(path, error) from None


def open_error(path: Path, error: Exception) -> HeaderError:
    """What it means that `path` could not be opened or examined."""
    number = getattr(error, "errno", None)
    if number == errno.ENOENT and os.path.islink(path):
        return DanglingLinkError(path, f"a link to {os.readlink(path)}, which does not exist")
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFoundError(path, "does not exist")
    if number == errno.ENXIO or isinstance(error, NotRegularError):
        return NotAFileError(path, "not a regular file")
    return UnreadableError(path, f"cannot be opened: {getattr(error, 'strerror', None) or error}")


def _header_text(fd: int, size_bytes: int, path: Path) -> bytes:
    """The header's JSON as bytes, its length checked before it is read."""
    first = _read(fd, 8)
    if first == LFS_MAGIC[:8]:
        _refuse_lfs_pointer(first + _read(fd, LFS_POINTER_MAX_BYTES), path)
    if len(first) < 8:
        raise HeaderShortError(path, f"{len(first)} bytes; the header's length alone takes 8")
    length = int.from_bytes(first, "little")
    if length > LIMIT_BYTES or 8 + length > size_bytes:
        _refuse_foreign(first, path)
    if length > LIMIT_BYTES:
        raise HeaderLimitError(
            path, f"its first 8 bytes {first!r} give a header of {length:,} bytes; the limit is {LIMIT_BYTES:,}"
        )
    if length < 2:
        raise HeaderLengthError(path, f"a header of {length} bytes; the shortest, {{}}, has 2")
    if 8 + length > size_bytes:
        raise HeaderTruncatedError(path, f"the file has {size_bytes:,} bytes, its header needs {8 + length:,}")
    text = _read(fd, length)
    if len(text) < length:
        raise HeaderTruncatedError(path, f"the file ended after {len(text):,} of the header's {length:,} bytes")
    return text


def _read(fd: int, count: int) -> bytes:
    """`count` bytes, or fewer at the file's end. One read may return less than it is asked for."""
    parts, missing = [], count
    while missing and (part := os.read(fd, missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _refuse_lfs_pointer(text: bytes, path: Path) -> None:
    if text.startswith(LFS_MAGIC):
        sizes = [line[5:].decode("ascii", "replace") for line in text.splitlines() if line.startswith(b"size ")]
        stands_for = f" that stands for {sizes[0][:20]} bytes" if sizes else ""
        raise LfsPointerError(path, f"a Git LFS pointer{stands_for}, not the weights")


def _refuse_foreign(first: bytes, path: Path) -> None:
    kind = foreign_kind(first)
    if kind is not None:
        raise ForeignFormatError(path, *kind)


def _entries(header: dict[str, Any], data_begin: int, size_bytes: int, path: Path) -> tuple[Entry, ...]:
    """The header's tensors, checked: each alone, then that together they cover the file's data exactly."""
    _check_metadata(header.pop("__metadata__", None), path)
    entries = sorted(
        (_entry(name, value, data_begin, path) for name, value in header.items()), key=lambda e: (e.begin, e.end)
    )
    position, previous = data_begin, ""
    for entry in entries:
        if entry.begin > position:
            raise GapError(
                path,
                f"{entry.begin - position:,} bytes before tensor {quoted(entry.name)} belong to no tensor",
            )
        if entry.begin < position:
            raise OverlapError(path, f"tensors {quoted(previous)} and {quoted(entry.name)} share bytes")
        position, previous = entry.end, entry.name
    if size_bytes < position:
        raise DataShortError(path, f"the file has {size_bytes:,} bytes, its tensors need {position:,}")
    if size_bytes > position:
        raise DataLongError(path, f"the file has {size_bytes:,} bytes, its tensors end at {position:,}")
    return tuple(entries)


def _check_metadata(metadata: Any, path: Path) -> None:
    """None, empty, or an object of strings."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise MetadataError(path, f"__metadata__ is {quoted(metadata)}, not an object")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise MetadataError(path, f"__metadata__ holds {quoted(key)}: {quoted(value)}; the format allows strings")


def _entry(name: str, value: Any, data_begin: int, path: Path) -> Entry:
    """One tensor's entry, checked alone."""
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        raise TensorNameError(path, f"tensor name {quoted(name)} is not Unicode text")
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise TensorEntryError(path, f"tensor {quoted(name)}: {quoted(value)} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise DtypeError(path, f"tensor {quoted(name)}: dtype {quoted(dtype)} is not a string")
    elements = _elements(shape)
    if elements is None:
        raise ShapeError(path, f"tensor {quoted(name)}: shape {quoted(shape)} is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise OffsetsError(path, f"tensor {quoted(name)}: data_offsets {quoted(offsets)} are not two sizes")
    begin, end = offsets
    if end < begin:
        raise OffsetsError(path, f"tensor {quoted(name)}: data_offsets {quoted(offsets)} run backwards")
    bits = DTYPE_BITS.get(dtype)
    if bits is not None and elements * bits != (end - begin) * 8:
        raise SizeMismatchError(
            path,
            f"tensor {quoted(name)}: {dtype} {quoted(shape)} takes {elements * bits / 8:,.15g} bytes, "
            f"data_offsets hold {end - begin:,}",
        )
    return Entry(name, dtype, tuple(shape), data_begin + begin, data_begin + end)


def _is_size(value: Any) -> bool:
    """An integer from 0 up to what a file can hold; True and 2.0 are none."""
    return type(value) is int and 0 <= value < INT_LIMIT


def _elements(shape: Any) -> int | None:
    """The number of elements, or None for what is no shape. Stops at 2^63, as millions of sizes could be given."""
    if not isinstance(shape, list):
        return None
    elements = 1
    for size in shape:
        if not _is_size(size):
            return None
        elements *= size
        if elements >= INT_LIMIT:
            return None
    return elements
