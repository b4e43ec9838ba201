"""The host's loops, as LLVM IR and then as machine code for the CPU that this process runs on.

One pass over memory: 14 bytes read and 14 written a parameter. The new weights are written past the caches (nobody on
this core reads them soon), which spares reading them first; docs/results/host-adamw.md has what that gains. The code is
made when an optimizer is constructed (`trainer.host.machine`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

import torch

from trainer.graphs.adamw import adamw
from trainer.host.lanes import ELEMENT, FLOAT, WIDE, Block, Lanes, intrinsics, loop, modelled
from trainer.host.machine import compile_ir
from trainer.optim.scalars import StepScalars

LINE_BYTES = 64
# How far ahead of the loop memory is asked for: the CPU itself looks ahead within a page of 4 kB alone.
AHEAD_BYTES = 2048
PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
STATE = ("master", "exp_avg", "exp_avg_sq")
SCALARS = tuple(f.name for f in fields(StepScalars))


@dataclass(frozen=True)
class Kernels:
    """C functions; all pointers are addresses, and a call holds no lock of Python's.

    update:     (master, exp_avg, exp_avg_sq, grad, weight, scalars, n) by the dtype of grad and weight
    square_sum: (grad, out, n) by dtype; out: WIDE + 1 float64 partial sums, to be added up in their order
    """

    update: dict[torch.dtype, Callable[..., None]]
    square_sum: dict[torch.dtype, Callable[..., None]]
    # Owns the code's memory.
    engine: Any


@cache
def kernels() -> Kernels:
    """The compiled loops. Callers that ask at the same time for the first time may each get their own."""
    engine = compile_ir(assembly())
    address, size = ctypes.c_void_p, ctypes.c_size_t
    update = ctypes.CFUNCTYPE(None, *[address] * 6, size)
    square_sum = ctypes.CFUNCTYPE(None, address, address, size)
    return Kernels(
        {dtype: update(engine.get_function_address(_name("update", dtype))) for dtype in ELEMENT},
        {dtype: square_sum(engine.get_function_address(_name("square_sum", dtype))) for dtype in ELEMENT},
        engine,
    )


def assembly() -> str:
    """LLVM IR of every kernel."""
    parts = [text for dtype in ELEMENT for text in (_update(dtype), _square_sum(dtype))]
    return "\n\n".join([*parts, intrinsics(WIDE, 1), PREFETCH, "!0 = !{i32 1}"])


def _name(kernel: str, dtype: torch.dtype) -> str:
    return f"{kernel}_{str(dtype).removeprefix('torch.')}"


def _update(dtype: torch.dtype) -> str:
    """Elements up to the first whole line of `weight`, then lines, then the elements that are left."""
    item_bytes = dtype.itemsize
    scalars = "\n".join(_splat(number, lanes) for number in range(len(SCALARS)) for lanes in (WIDE, 1))
    head = loop(_update_block(1, "head", dtype), "0", "entry", "%aligned", "wide")
    wide = loop(_update_block(WIDE, "wide", dtype), "%aligned", "head", "%whole", "tail")
    tail = loop(_update_block(1, "tail", dtype), "%whole", "wide", "%n", "done")
    pointers = ", ".join(f"ptr %{name}" for name in (*STATE, "grad", "weight", "scalars"))
    return f"""define void @{_name("update", dtype)}({pointers}, i64 %n) nounwind {{
entry:
{scalars}
  %address = ptrtoint ptr %weight to i64
  %negated = sub i64 0, %address
  %missing = and i64 %negated, {LINE_BYTES - 1}
  %before = udiv i64 %missing, {item_bytes}
  %short = icmp ult i64 %n, %before
  %aligned = select i1 %short, i64 %n, i64 %before
  %left = sub i64 %n, %aligned
  %lines = and i64 %left, {-WIDE}
  %whole = add i64 %aligned, %lines
  br label %head
{head}{wide}{tail}
done:
  fence seq_cst ; streaming stores are in no order with others until here
  ret void
}}"""


def _splat(number: int, lanes: int) -> str:
    """Scalar `number` in every lane, as `%s<number>x<lanes>`."""
    name, vector = f"%s{number}x{lanes}", f"<{lanes} x float>"
    return f"""  {name}p = getelementptr float, ptr %scalars, i64 {number}
  {name}v = load float, ptr {name}p, align 4
  {name}i = insertelement {vector} undef, float {name}v, i64 0
  {name} = shufflevector {vector} {name}i, {vector} undef, <{lanes} x i32> zeroinitializer"""


def _update_block(lanes: int, loop: str, dtype: torch.dtype) -> Block:
    """One vector of every array through the AdamW graph."""
    block = Block(lanes, loop)
    kinds = dict.fromkeys(STATE, FLOAT) | {"grad": dtype, "weight": dtype}
    at = {name: _at(block, name, kind) for name, kind in kinds.items()}
    if lanes == WIDE:
        for name in (*STATE, "grad"):
            _ask_ahead(block, at[name], WIDE * kinds[name].itemsize, written=name in STATE)
    inputs = [block.load(at[name], kinds[name]) for name in (*STATE, "grad")]
    scalars = [Lanes(block, f"%s{number}x{lanes}", FLOAT) for number in range(len(SCALARS))]
    with modelled(adamw, "write it with the operations of Lanes in trainer/host/lanes.py"):
        outputs = cast(Callable[..., tuple[Lanes, ...]], adamw)(*inputs, *scalars)
    for name, value in zip((*STATE, "weight"), outputs, strict=True):
        streamed = name == "weight" and lanes == WIDE
        how = f"align {LINE_BYTES}, !nontemporal !0" if streamed else ""
        block.store(value, at[name], how)
    return block


def _square_sum(dtype: torch.dtype) -> str:
    """Sum of squares in float64: one partial sum a lane, and one for what is left."""
    wide, tail = (_square_block(lanes, loop, dtype) for lanes, loop in ((WIDE, "wide"), (1, "tail")))
    sums = f"<{WIDE} x double>"
    return f"""define void @{_name("square_sum", dtype)}(ptr %grad, ptr %out, i64 %n) nounwind {{
entry:
  %whole = and i64 %n, {-WIDE}
  %last = getelementptr double, ptr %out, i64 {WIDE}
  store {sums} zeroinitializer, ptr %out, align 8
  store <1 x double> zeroinitializer, ptr %last, align 8
  br label %wide
{loop(wide, "0", "entry", "%whole", "tail")}{loop(tail, "%whole", "wide", "%n", "done")}
done:
  ret void
}}"""


def _square_block(lanes: int, loop: str, dtype: torch.dtype) -> Block:
    block = Block(lanes, loop)
    doubles = block.vector("double")
    value = block.load(_at(block, "grad", dtype), dtype).to(FLOAT)
    exact = block.emit(f"fpext {block.vector('float')} {value.name} to {doubles}")
    square = block.emit(f"fmul {doubles} {exact}, {exact}")
    where = "%out" if lanes == WIDE else "%last"
    before = block.emit(f"load {doubles}, ptr {where}, align 8")
    block.do(f"store {doubles} {block.emit(f'fadd {doubles} {before}, {square}')}, ptr {where}, align 8")
    return block


def _at(block: Block, array: str, dtype: torch.dtype) -> str:
    """The address of the loop's element of an array."""
    return block.emit(f"getelementptr inbounds {ELEMENT[dtype]}, ptr %{array}, i64 %{block.prefix}i")


def _ask_ahead(block: Block, address: str, size_bytes: int, *, written: bool) -> None:
    """Have the lines of a vector `AHEAD_BYTES` further on brought into the cache; harmless past an array's end."""
    for begin in range(0, size_bytes, LINE_BYTES):
        line = block.emit(f"getelementptr i8, ptr {address}, i64 {AHEAD_BYTES + begin}")
        block.do(f"call void @llvm.prefetch.p0(ptr {line}, i32 {int(written)}, i32 3, i32 1)")
