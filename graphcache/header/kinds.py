"""Files of other formats, told by their first bytes: an error should name them as what they are."""

from __future__ import annotations

import re

# Asked only of files whose first 8 bytes give a length that no header there can have: a good one may have any length.
_PYTORCH = "weights as torch.save writes them: convert them with the safetensors library, or download the .safetensors"
_AGAIN = "what came instead of the weights: look at it, then download the file again"
_KINDS = (
    (rb"GGUF", "a GGUF file", "llama.cpp's format: download the original model's .safetensors files"),
    (rb"PK\x03\x04", "a zip archive", f"often {_PYTORCH}"),
    (rb"\x80[\x02-\x05][\x8a\x8c\x95(.GJKMNX\]c}]", "a pickle", f"often {_PYTORCH}"),
    (rb"\x1f\x8b", "compressed by gzip", "unpack it first"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it first"),
    (rb"\x89HDF", "an HDF5 file", "weights of Keras: download the .safetensors files"),
    (rb"(\xef\xbb\xbf)?\s*<", "a web page or XML", _AGAIN),
    (rb"\s*[{\[]", "a JSON text without the length that a header begins with", _AGAIN),
    (rb"[\t\n\r\x20-\x7e]{8}", "a text", _AGAIN),
)


def foreign_kind(first: bytes) -> tuple[str, str] | None:
    """What a file with these first 8 bytes is, and what to do; None when they tell nothing."""
    for pattern, kind, remedy in _KINDS:
        if re.match(pattern, first):
            return f"it begins with {first!r}: {kind}, not a safetensors file", remedy
    return None
