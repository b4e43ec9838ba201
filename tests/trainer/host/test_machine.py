"""The compiler comes, makes code and leaves the process's memory again."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from trainer.host.machine import compile_ir


def seven(number: int) -> str:
    return f"define i32 @f() {{\n  %x = add i32 {number}, 7\n  ret i32 %x\n}}"


def call(engine: Any) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(engine.get_function_address("f"))()


@pytest.mark.parametrize("optimize", [False, True])
def test_functions_of_one_name_in_several_modules(optimize: bool) -> None:
    engines = [compile_ir(seven(number), optimize=optimize) for number in range(3)]
    assert [call(engine) for engine in engines] == [7, 8, 9]


def test_threads_take_turns() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda n=n: found.append(call(compile_ir(seven(n))))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [7, 8, 9, 10, 11, 12]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_compilers_code_does_not_stay_in_memory() -> None:
    """And a second compile after it was given back is the test above."""
    engine = compile_ir(seven(0))  # kept: what takes it apart is the compiler's code
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    code = [m for m in mappings if "libllvmlite" in m.splitlines()[0] and " r-xp " in m.splitlines()[0]]
    assert code
    assert kilobytes("Rss", code) < kilobytes("Size", code) / 10
    assert call(engine) == 7


def kilobytes(what: str, mappings: list[str]) -> int:
    return sum(int(found) for m in mappings for found in re.findall(rf"^{what}:\s+(\d+)", m, re.MULTILINE))
