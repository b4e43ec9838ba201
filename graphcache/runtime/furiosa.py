"""The vendor's runtime half, for both of its versions: load artifacts, run them on the host, read the memory flag.

Nothing here compiles. No card is touched until a loaded runnable's device module is moved to one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcache.artifact import Artifact
from graphcache.errors import CorruptError, GraphcacheError
from graphcache.graph import TensorSpec
from graphcache.vendor import layouts as vendor

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# Where the nodes of cards are: those that a container was given, under the host's numbers.
NODES = Path(vendor.CARD_NODES).parent
DRIVER_LIBRARY = vendor.DRIVER_LIBRARY


class HostExecutionError(GraphcacheError):
    """The host executor could not run a lowered graph."""

    name = "host-execution"


class CardCallError(GraphcacheError):
    """A card did not do what it was asked for."""

    name = "card-call"


class FusionError(GraphcacheError):
    """The fusion of this process is fixed already, at another value."""

    name = "fusion"


def device_type() -> str:
    """The name of the vendor's torch device: `furiosa`, or `rngd` in 2026.2."""
    return vendor.layout().device


def register() -> None:
    """Makes torch know the vendor's device in this process; harmless when it does already."""
    vendor.resolve(vendor.layout().register)()


def set_fusion(fusion: int) -> None:
    """Fixes how many PEs this process uses as one device. Raises FusionError when it is fixed at another value.

    Any read of the fusion fixes it at 1, so this is the first call of a process that uses the vendor.
    """
    config = _device_config()
    try:
        with vendor.panics_raised():
            config.set_fusion(fusion)
    except vendor.VendorError as error:
        raise FusionError(
            f"cannot use {fusion} PEs as one: {error}", hint="1, 2, 4, 8, 16 or 32, once in a process, before any use"
        ) from error


def deserialize(runnable: bytes | memoryview) -> Any:
    """The vendor's own object of an artifact's `runnable` bytes. Raises CorruptError when it cannot be read."""
    try:
        with vendor.panics_raised():
            return vendor.resolve(vendor.layout().runnable).deserialize(bytes(runnable))
    except vendor.VendorError as error:
        raise CorruptError(f"a runnable of {len(runnable)} bytes that the runtime cannot read: {error}") from error


def load_on(loaded: Any, device: torch.device) -> Any:
    """`deserialize`'s result on a card, as a module for `call`. Raises torch.OutOfMemoryError, CardCallError."""
    with card_errors("a graph could not be loaded on"):
        return vendor.resolve(vendor.layout().device_module)(loaded).to(device)


def call(module: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """One call of what `load_on` gave, with tensors on the same card; the results are there too.

    Raises torch.OutOfMemoryError, and CardCallError for everything else that goes wrong.
    """
    with card_errors("a graph failed on"):
        return list(module(list(inputs)) if vendor.layout().call_with_list else module(*inputs))


@contextmanager
def card_errors(what: str) -> Iterator[None]:
    """Makes everything but a full pool a CardCallError that says `what` on the card."""
    from torch import OutOfMemoryError

    try:
        with vendor.panics_raised(keep=(OutOfMemoryError,)):
            yield
    except vendor.VendorError as error:
        raise CardCallError(
            f"{what} the card: {error}", hint="`check` looks for what a card needs: nodes, driver, io_uring"
        ) from error


def signature(loaded: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Arguments and results of `deserialize`'s result, named by position."""
    inputs, outputs, sizes = vendor.layout().shapes
    return (
        _specs(getattr(loaded, inputs), sizes, "arg"),
        _specs(getattr(loaded, outputs), sizes, "out"),
    )


def _specs(shapes: Sequence[Any], sizes: str, prefix: str) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(f"{prefix}{i}", str(shape.dtype).removeprefix("torch."), tuple(getattr(shape, sizes)))
        for i, shape in enumerate(shapes)
    )


class HostExecutor:
    """A lowered graph (an artifact's `dfg`), run on the host by the vendor's own executor. Single calls, any thread.

    Under another fusion of the process than it was lowered for, the executor returns wrong values and says nothing
    (a 4,194,304-element AdamW lowered for 8 and run under 1: off by 77 %), so the fusion has to be given.
    """

    def __init__(self, dfg: bytes | memoryview, *, fusion: int) -> None:
        """Raises FusionError when the process uses another fusion, CorruptError when the bytes cannot be read."""
        set_fusion(fusion)
        try:
            with vendor.panics_raised():
                self._executor = vendor.resolve(vendor.layout().executor).deserialize(bytes(dfg))
        except vendor.VendorError as error:
            raise CorruptError(f"a lowered graph of {len(dfg)} bytes that the runtime cannot read: {error}") from error

    @classmethod
    def of(cls, artifact: Artifact) -> HostExecutor:
        """The executor of an artifact under the fusion of its key; fixes this process's fusion at it."""
        return cls(artifact.dfg, fusion=int(artifact.key.parts["fusion"]))

    def execute(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results of one call, as new CPU tensors. Raises HostExecutionError.

        inputs: CPU tensors of the shapes and dtypes that the graph was lowered for; their values stay as they are
        """
        try:
            with vendor.panics_raised():
                return list(self._executor.execute([t.contiguous() for t in inputs]))
        except vendor.VendorError as error:
            shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in inputs)
            raise HostExecutionError(f"the host executor failed on {shapes}: {error}") from error


def memory_is_shared() -> bool:
    """Whether an allocation by this thread would land in DRAM_SHARED, which has no byte on a single-chip card."""
    memory = _memory()
    if hasattr(memory, "_is_dram_shared_mode"):
        return bool(memory._is_dram_shared_mode())
    return bool(memory._get_memory_type() == memory.MemoryType.DramShared)


@contextmanager
def shared_memory() -> Iterator[None]:
    """Sets the memory type flag to DRAM_SHARED for a while, as every call of a compiled graph does inside."""
    memory = _memory()
    if hasattr(memory, "_set_dram_shared_mode"):
        before = memory._set_dram_shared_mode()
    else:
        before = memory._set_memory_type(memory.MemoryType.DramShared)
    try:
        yield
    finally:
        memory._set_memory_type(before)


@cache
def flag_is_shared_by_threads() -> bool:
    """Whether the memory type flag is one for the whole process, so that graph calls and allocations must take turns.

    Asked of the runtime itself, once: set here, read in another thread. Call it before other threads allocate.
    """
    seen: list[bool] = []
    reader = threading.Thread(target=lambda: seen.append(memory_is_shared()))
    with shared_memory():
        reader.start()
        reader.join()
    # A reader that died has seen nothing: then take turns.
    return seen != [False]


def _memory() -> Any:
    return vendor.resolve(vendor.layout().memory)


def _device_config() -> Any:
    return vendor.resolve(vendor.layout().device_config)
