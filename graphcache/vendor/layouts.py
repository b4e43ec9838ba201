"""The vendor's modules, by version: the one file that names them.

furiosa-torch moves its Python API between minor releases, so each release that works is a row of `LAYOUTS`, and any
other one is refused before it is imported. `graphcache.runtime.furiosa` and `graphcache.toolchain.furiosa` ask for a
role (`runnable`, `executor`) and get the object; only they do.

Names that begin with an underscore are the vendor's private ones. There is no public way to the memory type flag, or
to the host executor, in either version.
"""

from __future__ import annotations

import getpass
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from graphcache.errors import GraphcacheError, ToolchainError
from graphcache.vendor.text import named_nodes, readable, whole

DISTRIBUTION = "furiosa-torch"
# Where doctor looks, and what a look for torch's backends would import by itself.
PACKAGE = "furiosa.torch"
# Set to 0, torch does not import and register the vendor when it is imported itself: 1.4 s less.
AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Below the XDG cache folder; 2026.4 fills and trusts it unless told otherwise (docs/compiler.md).
DEFAULT_CACHE = "furiosa/compiler"
# Nodes of RNGD cards; whether the driver library is there says nothing about a card.
CARD_NODES = "/dev/rngd/npu*"
CROSS_GCC = "aarch64-linux-gnu-gcc"
# Comes with the driver's Debian packages, not from PyPI; loaded when a device is first used.
DRIVER_LIBRARY = "librenegade.so"


@dataclass(frozen=True)
class Layout:
    """Where one release keeps what we use: `module:attribute`, `module` alone, or a plain name where it says so.

    device:            the plain name of its torch device
    torch:             the plain version of torch that it pins
    register:          registers that device with torch; may be called again
    runnable:          what a card loads; `deserialize(bytes)`, `serialize()`
    device_module:     the torch module that puts one on a card and calls it
    shapes:            plain attributes of a runnable: its inputs, its outputs; then those of one: sizes
    executor:          runs a lowered graph on the host; `deserialize(bytes)`
    memory:            the module of the memory type flag
    device_config:     the module with `set_fusion`, `get_mesh_kind`
    compiler:          the module with `compile`, `lower`, `version`
    passes:            what the vendor runs over an exported program before a compile: a list, or a function
    config:            the class of compiler settings
    hints:             the enumeration of its tactic hints
    tactics:           our words for a tactic to plain names in `hints`
    cache_context:     chooses the folder of the vendor's own cache
    does_without:      plain names of packages that it imports when they are there, at its own start, and does without
    call_with_list:    plain: whether a device module takes its arguments as one list
    compile_calls:     what a Python caller can reach a compile by: functions, and methods as `module:Class.method`
    cache_settings:    the module with `set_cache_config` and `CacheConfig(ensure=)`, which refuses a compile that the
                       cache cannot serve; empty where the release has no such refusal
    """

    release: str
    device: str
    torch: str
    register: str
    runnable: str
    device_module: str
    shapes: tuple[str, str, str]
    executor: str
    memory: str
    device_config: str
    compiler: str
    passes: str
    config: str
    hints: str
    tactics: tuple[tuple[str, str], ...]
    cache_context: str
    does_without: tuple[str, ...]
    call_with_list: bool
    compile_calls: tuple[str, ...]
    cache_settings: str


LAYOUTS = (
    Layout(
        release="2026.4",
        device="furiosa",
        torch="2.10.0",
        register="furiosa.torch._register:_register",
        runnable="furiosa.torch.ir:Runnable",
        device_module="furiosa.torch:Runnable",
        shapes=("input_dram_shapes", "output_dram_shapes", "host_sizes"),
        executor="furiosa.torch._C.executor:DfgExecutor",
        memory="furiosa.torch._C.memory",
        device_config="furiosa.torch._C.device",
        compiler="furiosa.torch.compiler",
        passes="furiosa.torch.export.exported_program:preprocess_exported_program",
        config="furiosa.torch.config:CompilerConfig",
        hints="furiosa.torch.config:TacticHintConfig",
        tactics=(
            ("default", "Default"),
            ("compute-bound", "ForLlmModelComputeBound"),
            ("io-bound", "ForLlmModelIOBound"),
        ),
        cache_context="furiosa.torch.config:cache_context",
        # For `furiosa.torch.ext.transformers`, an extra of its own that nothing here uses.
        does_without=("transformers",),
        call_with_list=False,
        compile_calls=(
            "furiosa.torch.compiler:compile",
            "furiosa.torch.compiler:lower",
            "furiosa.torch.compiler:compile_raw_dfg",
            "furiosa.torch.compiler:lower_raw_dfg",
            "furiosa.torch._C.compiler:compile",
            "furiosa.torch._C.compiler:lower",
            "furiosa.torch._C.compiler:compile_raw_dfg",
            "furiosa.torch._C.compiler:lower_raw_dfg",
            "furiosa.torch._C.compiler:differentiate",
            "furiosa.torch._C.ir:Dfg.compile",
            "furiosa.torch._C.ir:DifferentiatedDfg.compile",
            "furiosa.torch:compile_from_visa",
            "furiosa.torch:compile_from_visa_str",
        ),
        cache_settings="furiosa.torch._C.config.cache",
    ),
    Layout(
        release="2026.2",
        device="rngd",
        torch="2.10.0",
        register="furiosa.torch:_register",
        runnable="furiosa.native_torch.ir:Edf",
        device_module="furiosa.torch:EdfModule",
        shapes=("input_shapes", "output_shapes", "size"),
        executor="furiosa.native_torch.debug:DfgExecutor",
        memory="furiosa.native_torch.memory",
        device_config="furiosa.native_torch.device",
        compiler="furiosa.torch.compiler",
        passes="furiosa.torch.export:PASSES",
        config="furiosa.torch.compiler:Config",
        hints="furiosa.torch.compiler:TacticHintConfig",
        # Its names are of a model's phases: prefill is bound by arithmetic, decode by memory.
        tactics=(
            ("default", "Default"),
            ("compute-bound", "ForLlmModelPrefill"),
            ("io-bound", "ForLlmModelDecode"),
        ),
        cache_context="furiosa.torch.config:cache_context",
        does_without=(),
        call_with_list=True,
        compile_calls=(
            "furiosa.torch.compiler:compile",
            "furiosa.torch.compiler:lower",
            "furiosa.native_torch.compiler:compile",
            "furiosa.native_torch.compiler:lower",
        ),
        cache_settings="",
    ),
)

RELEASES = tuple(layout.release for layout in LAYOUTS)


def installed_version() -> str | None:
    """The version of furiosa-torch that would be imported, or None. Imports nothing of it."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def layout() -> Layout:
    """The layout of the installed version. Raises ToolchainError when it is none that we know, or not installed."""
    version = installed_version()
    if version is None:
        raise ToolchainError(
            f"{DISTRIBUTION} is not installed", hint="pip install 'graphcache[furiosa]' (Linux x86-64, Python 3.10+)"
        )
    return layout_of(version)


def layout_of(version: str) -> Layout:
    """The layout of `version`, `2026.4.0`. Raises ToolchainError for a release that is not in LAYOUTS."""
    for known in LAYOUTS:
        if version == known.release or version.startswith(known.release + "."):
            return known
    raise ToolchainError(
        f"{DISTRIBUTION} {version} is not a release that this program knows",
        hint=f"install one of {', '.join(RELEASES)}, or add its layout to graphcache/vendor/layouts.py",
    )


def resolve(path: str) -> Any:
    """The module or attribute at `path` of a Layout; imports the vendor. Raises ToolchainError when it is not there."""
    module, _, attribute = path.partition(":")
    name_the_user()
    try:
        # First, because 2026.2's native module finds torch's libraries only when they are loaded already.
        importlib.import_module("torch")
        with _hidden(layout().does_without):
            found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    except (ImportError, AttributeError, OSError) as error:
        version = installed_version()
        raise ToolchainError(
            f"{DISTRIBUTION} {version} has no usable {path}: {error}",
            hint=f"it needs torch=={layout().torch}; install both again: pip install {DISTRIBUTION}=={version}",
        ) from error
    except Exception as error:  # whatever the code that an import runs met on this machine
        raise ToolchainError(
            f"{module} of {DISTRIBUTION} cannot be imported here: {type(error).__name__}: {error}",
            hint="what it looks for, this machine does not have; graphcache doctor says what it sees",
        ) from error


def name_the_user() -> None:
    """Gives a user without a line in passwd (OpenShift, `docker run --user`) a name, since the vendor's import asks for
    one, through torch, which names a folder after it."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = f"uid-{os.getuid()}"


@contextmanager
def _hidden(packages: Iterable[str]) -> Iterator[None]:
    """Makes imports of `packages` fail for a while, unless they are loaded: transformers takes a quarter of a start."""
    hidden = [name for name in packages if name not in sys.modules]
    # None in sys.modules is Python's own way to say that a module is not to be found.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


class VendorError(RuntimeError):
    """The vendor's native code panicked or raised; the message is its own, made readable.

    nodes: the program's nodes that it lists
    """

    def __init__(self, text: str) -> None:
        super().__init__(readable(text))
        self.nodes = named_nodes(text)


@contextmanager
def panics_raised(*, keep: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Makes a panic in the vendor's Rust code, and any error but ours and `keep`, a VendorError.

    PyO3 raises a panic as a BaseException, past every `except Exception`, where it would end a worker or a trainer.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (GraphcacheError, *keep)):
            raise
        raise VendorError(whole(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise VendorError(f"panic in {DISTRIBUTION}: {error}") from error
