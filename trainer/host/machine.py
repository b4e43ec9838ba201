"""Machine code for the CPU that this process runs on, from LLVM IR.

It is made once a process, before the first step, and is not kept in a file: a cache of machine code would be something
that others can write and we execute. llvmlite is imported when code is first asked for.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from pathlib import Path
from typing import Any

_compiling = threading.Lock()


def compile_ir(text: str, *, optimize: bool = False) -> Any:
    """llvmlite's engine, which owns the code and gives addresses: `get_function_address(name)`. Any thread.

    optimize: run LLVM's passes over the IR first, which hoist and share what was written down more than once
    """
    with _compiling:  # LLVM crashes when two threads compile
        engine = _engine(text, optimize)
        _give_back_compiler()  # last: what was made on the way is taken apart by the compiler's code too
    return engine


def _engine(text: str, optimize: bool) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = llvm.parse_assembly(text)
    module.verify()
    if optimize:
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
        passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _give_back_compiler() -> None:
    """LLVM is 100 MB of code, needed for a second: its pages leave the process, and come again when they are run."""
    try:
        mappings = Path("/proc/self/maps").read_text().splitlines()
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for mapping in mappings:
        addresses, permissions, *_ = mapping.split(maxsplit=2)
        # Code alone is as it is in the file; in other parts the loader has written addresses, which would be lost.
        if "libllvmlite" in mapping and permissions == "r-xp":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            madvise(begin, end - begin, mmap.MADV_DONTNEED)
