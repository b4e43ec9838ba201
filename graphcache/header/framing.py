"""What is before the tensors of a safetensors file (https://github.com/huggingface/safetensors#format)."""

from __future__ import annotations

# The header's length, little-endian, is what every file begins with.
LENGTH_BYTES = 8


def framed(header: bytes, *, alignment: int) -> bytes:
    """Length and header; spaces, which the format allows, let the tensors begin at a multiple of `alignment` bytes."""
    header += b" " * (-(LENGTH_BYTES + len(header)) % alignment)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header
