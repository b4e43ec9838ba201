"""A host tensor as the bytes that a file holds."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from trainer.host.pages import empty

# Linux moves at most 2 GiB in one call.
PIECE_BYTES = 1 << 30


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, to read from or to write into; of a copy when it is not contiguous."""
    view: memoryview = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data
    return view


def read_tensor(fd: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int) -> Tensor:
    """The tensor that begins at `offset` of an open file. Raises OSError, also when the file ends early."""
    tensor = empty(shape, dtype)
    target, done = bytes_of(tensor), 0
    while done < len(target):
        count = os.preadv(fd, [target[done : done + PIECE_BYTES]], offset + done)
        if count == 0:
            raise OSError(f"the file ends {len(target) - done} bytes early")
        done += count
    return tensor


def write_all(fd: int, data: memoryview) -> None:
    """Write all of `data` to an open file. Raises OSError."""
    while data:
        data = data[os.write(fd, data[:PIECE_BYTES]) :]
