"""Vectors that stand for tensors while a graph's own lines are turned into LLVM IR.

Called with `Lanes` instead of tensors a graph's function writes down IR instructions, so the host's code is the graph
by construction: the same operations, in the same order, each rounded to float32 as eager torch rounds it. No flag
allows LLVM to contract or reorder any of them, but for sums over a row and inside the exponential.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from graphcache.errors import GraphcacheError

FLOAT, BFLOAT = torch.float32, torch.bfloat16
# How a tensor's elements lie in memory: bfloat16 as its bits.
ELEMENT = {FLOAT: "float", BFLOAT: "i16"}
# Two AVX-512 registers of float32, so that 32 bfloat16 numbers fill a line of 64 bytes. LLVM splits the vectors for a
# CPU with narrower registers.
WIDE = 32


class HostFormError(GraphcacheError):
    """A graph's function does something that its machine code for the host has no form for."""

    name = "host-form"


@contextmanager
def modelled(function: Callable[..., Any], hint: str) -> Iterator[None]:
    """What `function` does to values like these in the block and they do not know becomes HostFormError."""
    try:
        yield
    except (TypeError, AttributeError, AssertionError, NotImplementedError) as error:
        name = f"{function.__module__}:{function.__qualname__}"
        raise HostFormError(f"{name} has no form for the host: {type(error).__name__}: {error}", hint=hint) from error


@dataclass
class Block:
    """Instructions on vectors of `lanes` elements, in the order in which they were asked for."""

    lanes: int
    prefix: str
    lines: list[str] = field(default_factory=list)

    def vector(self, element: str) -> str:
        return f"<{self.lanes} x {element}>"

    def all(self, element: str, value: int | str) -> str:
        """A vector of one constant."""
        return f"<{', '.join([f'{element} {value}'] * self.lanes)}>"

    def floats(self, number: float) -> str:
        """A vector of the float32 nearest to a number."""
        return self.all("float", hexadecimal(number))

    def load(self, address: str, dtype: torch.dtype) -> Lanes:
        vector = self.vector(ELEMENT[dtype])
        return Lanes(self, self.emit(f"load {vector}, ptr {address}, align {dtype.itemsize}"), dtype)

    def store(self, value: Lanes, address: str, how: str = "") -> None:
        """how: LLVM's words for a store that is not an ordinary one: alignment first"""
        how = how or f"align {value.dtype.itemsize}"
        self.do(f"store {self.vector(ELEMENT[value.dtype])} {value.name}, ptr {address}, {how}")

    def emit(self, instruction: str) -> str:
        """Write down an instruction; the name of its result."""
        name = f"%{self.prefix}{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Write down an instruction without a result."""
        self.lines.append(f"  {instruction}")


def loop(block: Block, begin: str, entered_from: str, end: str, following: str) -> str:
    """`for (i = begin; i < end; i += lanes) block`: the block's prefix names the loop, and its counter `%<prefix>i`."""
    name = block.prefix
    lines = "\n".join(block.lines)
    return f"""
{name}:
  %{name}i = phi i64 [ {begin}, %{entered_from} ], [ %{name}next, %{name}body ]
  %{name}more = icmp ult i64 %{name}i, {end}
  br i1 %{name}more, label %{name}body, label %{following}
{name}body:
{lines}
  %{name}next = add i64 %{name}i, {block.lanes}
  br label %{name}
"""


def intrinsics(*lanes: int) -> str:
    """Declarations of every function of LLVM that vectors of so many elements may call."""
    lines = []
    for n in lanes:
        vector = f"<{n} x float>"
        lines += [f"declare {vector} @llvm.{name}.v{n}f32({vector})" for name in ("sqrt", "floor")]
        lines += [
            f"declare {vector} @llvm.{name}.v{n}f32({vector}, {vector})" for name in ("minnum", "maxnum", "maximum")
        ]
        lines.append(f"declare {vector} @llvm.fmuladd.v{n}f32({vector}, {vector}, {vector})")
        lines.append(f"declare float @llvm.vector.reduce.fadd.v{n}f32(float, {vector})")
        lines.append(f"declare float @llvm.vector.reduce.fmaximum.v{n}f32({vector})")
    return "\n".join(lines)


def hexadecimal(number: float) -> str:
    """A float32 as LLVM writes one: the bits of the float64 that equals it."""
    rounded = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


@dataclass(frozen=True)
class Lanes:
    """A vector register in a block. Has of a tensor's methods those that the graphs use, and no others."""

    block: Block
    name: str
    dtype: torch.dtype

    def constant(self, number: float) -> Lanes:
        """The float32 nearest to a number, in every lane of a vector like this one."""
        return Lanes(self.block, self.block.floats(number), FLOAT)

    def call(self, function: str, *others: Lanes) -> Lanes:
        """LLVM's own function of float32 vectors."""
        operands = (self, *others)
        assert all(operand.dtype == FLOAT for operand in operands)
        vector = self.block.vector("float")
        args = ", ".join(f"{vector} {operand.name}" for operand in operands)
        return Lanes(
            self.block, self.block.emit(f"call {vector} @llvm.{function}.v{self.block.lanes}f32({args})"), FLOAT
        )

    def _binary(self, operation: str, other: Lanes | float) -> Lanes:
        other = other if isinstance(other, Lanes) else self.constant(other)
        assert self.dtype == other.dtype == FLOAT
        vector = self.block.vector("float")
        return Lanes(self.block, self.block.emit(f"{operation} {vector} {self.name}, {other.name}"), FLOAT)

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._binary("fadd", other)

    def __radd__(self, other: float) -> Lanes:
        return self.constant(other) + self

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._binary("fsub", other)

    def __rsub__(self, other: float) -> Lanes:
        return self.constant(other) - self

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._binary("fmul", other)

    def __rmul__(self, other: float) -> Lanes:
        return self.constant(other) * self

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._binary("fdiv", other)

    def sqrt(self) -> Lanes:
        return self.call("sqrt")

    def to(self, dtype: torch.dtype) -> Lanes:
        if dtype == self.dtype:
            return self
        return self._widened() if dtype == FLOAT else self._rounded()

    def _widened(self) -> Lanes:
        """bfloat16 to float32: the upper half of the bits."""
        block, bits = self.block, self.block.vector("i32")
        wide = block.emit(f"zext {block.vector('i16')} {self.name} to {bits}")
        shifted = block.emit(f"shl {bits} {wide}, {block.all('i32', 16)}")
        return Lanes(block, block.emit(f"bitcast {bits} {shifted} to {block.vector('float')}"), FLOAT)

    def _rounded(self) -> Lanes:
        """float32 to bfloat16, to the nearest and ties to even, as torch does it on AVX2 and AVX-512: NaN is 0xffff.

        By integers, because the CPU's own instruction (vcvtneps2bf16) flushes subnormals to zero and torch does not.
        """
        block, bits, floats = self.block, self.block.vector("i32"), self.block.vector("float")
        word = block.emit(f"bitcast {floats} {self.name} to {bits}")
        upper = block.emit(f"lshr {bits} {word}, {block.all('i32', 16)}")
        odd = block.emit(f"and {bits} {upper}, {block.all('i32', 1)}")
        half = block.emit(f"add {bits} {odd}, {block.all('i32', 0x7FFF)}")
        moved = block.emit(f"add {bits} {word}, {half}")
        rounded = block.emit(f"lshr {bits} {moved}, {block.all('i32', 16)}")
        nan = block.emit(f"fcmp uno {floats} {self.name}, {self.name}")
        nans = block.all("i32", 0xFFFF)
        chosen = block.emit(f"select {block.vector('i1')} {nan}, {bits} {nans}, {bits} {rounded}")
        return Lanes(block, block.emit(f"trunc {bits} {chosen} to {block.vector('i16')}"), BFLOAT)
