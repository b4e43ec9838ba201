"""Refusing to compile, in this whole process, whichever way a compile is reached.

A card that waits for a compiler is a card that nobody can use, and the vendor compiles in silence: every eager op on a
device tensor does. Four barriers, because no single one covers both releases (docs/backend.md):

1. each function and method that a Python caller can compile by, wherever the vendor's modules have bound it
2. each aten operator on a device tensor but allocation, copies and views; some run on the host in silence instead
3. `torch.compile`: new ones, and functions wrapped before
4. 2026.4's own refusal, which its native code asks before it compiles

It fails closed: where a barrier cannot be put up, `compiles_refused` raises and nothing is opened.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn

import torch

from graphcache.errors import GraphcacheError, ToolchainError
from graphcache.runtime import furiosa
from graphcache.vendor import layouts as vendor

# What a device backend does to device tensors itself, and what the vendor does to load a graph.
ALLOWED_OPERATORS = frozenset(
    {"empty.memory_format", "empty_strided", "_copy_from", "_copy_from_and_resize", "_to_copy"}
)
_KEYS = ("PrivateUse1", "AutogradPrivateUse1")
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class CompileRefusedError(GraphcacheError):
    """Something would have compiled, or run eagerly on a device, while a device is open."""

    name = "compile-refused"


_lock = threading.Lock()
_holders = 0
_barriers = ExitStack()


class _Refused(AbstractContextManager[None]):
    """Not a generator: one that a forgotten backend leaves behind would be finished while Python shuts down."""

    def __enter__(self) -> None:
        global _holders, _barriers
        with _lock:
            if _holders == 0:
                _barriers = _put_up()
            _holders += 1

    def __exit__(self, *_error: object) -> None:
        global _holders
        with _lock:
            _holders -= 1
            if _holders == 0:
                _barriers.close()


def compiles_refused() -> AbstractContextManager[None]:
    """While any thread is inside, a compile anywhere in the process is an error.

    Entering it imports and registers the vendor, and raises ToolchainError when a barrier cannot be put up.
    """
    return _Refused()


def _put_up() -> ExitStack:
    furiosa.register()
    with ExitStack() as stack:
        _refuse_vendor_calls(stack)
        _refuse_operators(stack)
        _refuse_torch_compile(stack)
        _require_cache_hits(stack)
        return stack.pop_all()


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise CompileRefusedError(
            f"{what} was reached while a device is open",
            hint="a run calls compiled graphs only (graphcache build); compute anything else on host tensors",
        )

    return refuse


def _refuse_vendor_calls(stack: ExitStack) -> None:
    for path in vendor.layout().compile_calls:
        owner, attribute = _owner(path)
        original = getattr(owner, attribute)
        refuse = _refusing(path.replace(":", "."))
        # Modules that did `from ... import compile` hold the same object under names of their own.
        for place, name in [(owner, attribute), *_references(original)]:
            _replace(stack, place, name, refuse)


def _owner(path: str) -> tuple[Any, str]:
    """The object that holds the last name of `module:name` or `module:Class.method`. Raises ToolchainError."""
    module, _, names = path.partition(":")
    *outer, attribute = names.split(".")
    owner = vendor.resolve(":".join([module, *outer]))
    if not callable(getattr(owner, attribute, None)):
        raise ToolchainError(
            f"{path} is not there, so a compile through it could not be refused; no device is opened",
            hint=f"{vendor.DISTRIBUTION} {vendor.installed_version()} is not laid out as its release was",
        )
    return owner, attribute


def _references(original: Any) -> list[tuple[Any, str]]:
    """Where else the vendor's loaded modules have bound `original`."""
    root = vendor.PACKAGE.partition(".")[0]
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == root and m is not None]
    return [(m, name) for m in modules for name, value in list(vars(m).items()) if value is original]


def _replace(stack: ExitStack, owner: Any, attribute: str, value: Any) -> None:
    before = getattr(owner, attribute)
    if before is value:
        return
    setattr(owner, attribute, value)
    stack.callback(setattr, owner, attribute, before)


def _refuse_operators(stack: ExitStack) -> None:
    """Puts a refusing kernel over each of the vendor's. Torch calls the newest, and the one below when that is gone."""
    library = torch._C._dispatch_library("IMPL", "aten", "", __file__, 1)
    stack.callback(library.reset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a kernel is overridden
        for name, key in _operators():
            library.impl(name, key, _refusing(f"eager aten::{name} on a device tensor"))


def _operators() -> list[tuple[str, str]]:
    """Operators to refuse, with their dispatch key: the vendor's Python kernels, and those that only a fallback serves.

    Raises ToolchainError when the vendor registered none: then something else runs its operators.
    """
    registered = [impl.split("/") for impl in torch.library._impls]
    own = [(name, key) for space, name, key in registered if space == "aten" and key in _KEYS]
    if not own:
        raise ToolchainError(
            f"{vendor.DISTRIBUTION} has registered no operator, so none could be refused; no device is opened"
        )
    return [(name, key) for name, key in own + _left_to_a_fallback() if not _harmless(name, key)]


def _left_to_a_fallback() -> list[tuple[str, str]]:
    """Operators without a kernel for the device or one made of others: 2026.2 copies them to the host and back."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    lonely = [name for name in names if not any(has(name, key) for key in (_KEYS[0], *_COMPOSITE))]
    return [(name.removeprefix("aten::"), _KEYS[0]) for name in lonely]


def _harmless(name: str, key: str) -> bool:
    """Allocation and copies; views, which compute nothing (and whose compile, in 2026.2, meets the first barrier)."""
    if name in ALLOWED_OPERATORS:
        return True
    packet, _, overload = name.partition(".")
    schema = torch._C._get_schema(f"aten::{packet}", "" if overload == "default" else overload)
    views = [r for r in schema.returns if r.alias_info is not None and not r.alias_info.is_write]
    return key == _KEYS[0] and bool(views)


def _refuse_torch_compile(stack: ExitStack) -> None:
    _replace(stack, torch, "compile", _refusing("torch.compile"))
    # Functions that were wrapped before compile at their first call, or for new shapes; torch itself refuses that then.
    stance = torch.compiler.set_stance("fail_on_recompile")
    stack.callback(stance.__exit__, None, None, None)


def _require_cache_hits(stack: ExitStack) -> None:
    """2026.4 refuses what is not in its cache, in native code; the cache that it gets is an empty folder."""
    if not vendor.layout().cache_settings:
        return
    settings = vendor.resolve(vendor.layout().cache_settings)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="no-compiles-"))
    before = settings.set_cache_config(settings.CacheConfig(root_dir=folder, ensure=True))
    stack.callback(settings.set_cache_config, before)
    if not settings.get_cache_config().ensure:
        raise ToolchainError("the vendor's own refusal to compile could not be turned on; no device is opened")


__all__ = ["CompileRefusedError", "compiles_refused"]
