"""What can be wrong with a checkpoint's headers, one named error for each kind of fault.

All are kinds of `HeaderError`, which carries the file, the fact and the remedy.
"""

from __future__ import annotations

import reprlib
from os import PathLike, fspath

from graphcache.errors import GraphcacheError

DAMAGED = "download or copy the file again"
WRITER = "the program that wrote it does not follow the safetensors format; save it again with the safetensors library"

# Characters of a quoted value.
QUOTED_MAX = 200


def quoted(value: object) -> str:
    """`value` for an error message: escaped, and short however large the value is."""
    text = reprlib.repr(value)
    return text if len(text) <= QUOTED_MAX else text[: QUOTED_MAX - 3] + "..."


class HeaderError(GraphcacheError):
    """A checkpoint's header, index or config that cannot be used."""

    name = "header"
    remedy = DAMAGED

    def __init__(self, file: str | PathLike[str], fact: str, remedy: str = "") -> None:
        self.file = fspath(file)
        self.fact = fact
        super().__init__(f"{self.file}: {fact}", hint=remedy or self.remedy)

    def as_json(self) -> dict[str, str]:
        return {**super().as_json(), "file": self.file, "fact": self.fact}


# --- the file -----------------------------------------------------------------------------------------------------


class NotFoundError(HeaderError):
    """There is no such file or folder."""

    name = "checkpoint-not-found"
    remedy = "check the path"


class DanglingLinkError(HeaderError):
    """A symbolic link (a hub snapshot's file) whose target is gone."""

    name = "checkpoint-dangling-link"
    remedy = "download the snapshot again; its blobs folder has lost this file"


class UnreadableError(HeaderError):
    """The file exists and cannot be read."""

    name = "checkpoint-unreadable"
    remedy = "check the file's permissions and the disk"


class NotAFileError(HeaderError):
    """A folder, pipe or device where a file should be."""

    name = "checkpoint-not-a-file"
    remedy = "give a .safetensors file, an .index.json, or the folder that holds them"


class NoCheckpointError(HeaderError):
    """A folder in which no safetensors checkpoint, or more than one, is found."""

    name = "checkpoint-not-in-folder"
    remedy = "give the .safetensors or .index.json file itself"


class LfsPointerError(HeaderError):
    """A Git LFS pointer, some 130 bytes of text, where the weights should be."""

    name = "checkpoint-lfs-pointer"
    remedy = "fetch the weights with `git lfs pull`"


class ForeignFormatError(HeaderError):
    """A file of another format (GGUF, a zip or pickle of torch.save, a web page) where the weights should be."""

    name = "checkpoint-format"


# --- the header as bytes ------------------------------------------------------------------------------------------


class HeaderShortError(HeaderError):
    """Fewer than the 8 bytes that hold the header's length."""

    name = "header-short"


class HeaderLengthError(HeaderError):
    """A header length below 2 bytes: not even `{}`."""

    name = "header-length"


class HeaderLimitError(HeaderError):
    """A header length above the limit (most often: not a safetensors file)."""

    name = "header-limit"
    remedy = "check that this is a safetensors file"


class HeaderTruncatedError(HeaderError):
    """The file ends inside its header."""

    name = "header-truncated"


class HeaderTextError(HeaderError):
    """The header is not UTF-8."""

    name = "header-not-utf8"


class HeaderJsonError(HeaderError):
    """The header is not JSON (NaN, 1e400 and integers of thousands of digits included)."""

    name = "header-not-json"


class HeaderNestingError(HeaderError):
    """JSON nested too deep, or with far more lists and objects than its length can hold as tensors."""

    name = "header-nesting"
    remedy = WRITER


class HeaderObjectError(HeaderError):
    """JSON that is not an object."""

    name = "header-not-object"
    remedy = WRITER


class HeaderDuplicateError(HeaderError):
    """An object has one key twice, and readers differ in which of the two counts."""

    name = "header-duplicate-key"
    remedy = WRITER


# --- what the header says -----------------------------------------------------------------------------------------


class MetadataError(HeaderError):
    """`__metadata__` that is not an object of strings."""

    name = "header-metadata"
    remedy = WRITER


class TensorNameError(HeaderError):
    """A tensor name that is not Unicode text (half of a surrogate pair)."""

    name = "header-name"
    remedy = WRITER


class TensorEntryError(HeaderError):
    """A tensor's entry that is not an object with dtype, shape and data_offsets."""

    name = "header-entry"
    remedy = WRITER


class DtypeError(HeaderError):
    """A dtype that is not a string. (An unknown string is no fault: the tensor is kept and named.)"""

    name = "header-dtype"
    remedy = WRITER


class ShapeError(HeaderError):
    """A shape that is not a list of integers from 0 up, or whose element count passes 2^63."""

    name = "header-shape"
    remedy = WRITER


class OffsetsError(HeaderError):
    """data_offsets that are not two integers from 0 up, or that run backwards."""

    name = "header-offsets"
    remedy = WRITER


class SizeMismatchError(HeaderError):
    """data_offsets that hold another number of bytes than dtype and shape need."""

    name = "header-size-mismatch"
    remedy = WRITER


class GapError(HeaderError):
    """Bytes that belong to no tensor between two tensors, or before the first."""

    name = "header-gap"
    remedy = WRITER


class OverlapError(HeaderError):
    """Two tensors that share bytes."""

    name = "header-overlap"
    remedy = WRITER


class DataShortError(HeaderError):
    """The file ends before the last tensor does."""

    name = "data-short"


class DataLongError(HeaderError):
    """The file goes on after its last tensor."""

    name = "data-long"


# --- several shards -----------------------------------------------------------------------------------------------


class IndexFormatError(HeaderError):
    """An index that is not an object with a weight_map from tensor names to file names."""

    name = "index-format"


class ShardNameError(HeaderError):
    """An index that names a shard outside its own folder."""

    name = "index-shard-name"
    remedy = "shards lie in the index's folder; correct the index"


class ShardMissingError(HeaderError):
    """An index that names a shard which is not there."""

    name = "index-shard-missing"
    remedy = "download the missing shards, or the whole checkpoint again"


class TensorMissingError(HeaderError):
    """An index that names a tensor which its shard lacks."""

    name = "index-tensor-missing"
    remedy = "index and shards are of different saves; download the whole checkpoint again"


class TensorDuplicatedError(HeaderError):
    """A tensor that two shards hold."""

    name = "index-tensor-duplicated"
    remedy = "shards of different saves are mixed; download the whole checkpoint again into an empty folder"


class ConfigFormatError(HeaderError):
    """A config.json that is not a JSON object."""

    name = "config-format"
