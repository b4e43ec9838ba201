"""LLVM IR of a traced graph: for each row the loops of `trainer.host.passes`, one after the other.

What one loop computes the next one computes again, unless it is an exponential, which is kept. Every number of a row is
written down where it is used; LLVM's passes hoist and share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile

import torch

from trainer.host.lanes import ELEMENT, FLOAT, Block, Lanes, intrinsics, loop
from trainer.host.passes import Pass, passes, powers
from trainer.host.trace import Applied, Constant, Input, Joined, NotTracedError, Reduced, Sliced, Value


@dataclass(frozen=True, eq=False)
class Accumulator:
    """Where one loop collects its part of a reduction: a vector on the stack."""

    reduced: Reduced
    name: str
    lanes: int


@dataclass(frozen=True)
class Kept:
    """A row of exponentials on the stack, written in loop number `first`."""

    name: str
    columns: int
    first: int


class RowCode:
    """IR of one graph. Its arrays are the inputs, then the outputs; rows of an input with fewer of them come again.

    Row r of rms_norm with 1000 columns, say, by the labels of the IR:

        enter0:   part0, part1 = 32 zeros, 8 zeros
        p0c0x:    for i = 0, 32, ... 960:  part0 += x[r, i:i+32] squared
        p0c992x:  for i = 992:             part1 += x[r, i:i+8] squared
        p1c0x:    for i = 0, 32, ... 960:  out[r, i:i+32] = x[r, i:i+32] * rsqrt(all parts / 1000 + eps) * norm[i:i+32]
        p1c992x:  for i = 992:             the same for 8 columns
    """

    def __init__(self, inputs: Sequence[Input], outputs: Sequence[Value]) -> None:
        """Raises NotTracedError unless row r of each output is made of row r of each input, modulo its rows."""
        outers = {output.outer for output in outputs}
        if len(outers) != 1:
            raise NotTracedError(f"results with rows of {sorted(outers)}: one kind is needed")
        (outer,) = outers
        for value in inputs:
            if not _come_again(value.outer, outer):
                raise NotTracedError(f"an argument {value.shape} along rows of {outer}")
        self.row_count = math.prod(outer)
        self.inputs = inputs
        self.arrays: list[Value] = [*inputs, *outputs]
        self.numbers = {value: number for number, value in enumerate(self.arrays)}
        self.outputs = outputs
        self.passes = passes(outputs)
        self.kept = self._kept_powers()
        self.accumulators: list[Accumulator] = []

    def text(self) -> str:
        """A module with the function `team(ptr data)`, for each thread of an OpenMP team to call.

        data: 64 bits each: the first row that no thread has taken (0), how many a thread takes at a time, the number of
        rows, then an address for each array
        """
        loops = [part for number, one in enumerate(self.passes) for part in self._loops(number, one)]
        declarations = intrinsics(*sorted({1, *(block.lanes for block, _, _ in loops)}))
        return "\n".join((declarations, self._rows(loops), _team(len(self.arrays))))

    def _rows(self, loops: Sequence[tuple[Block, int, int]]) -> str:
        """`rows(array0, ..., first, end)`: the loops of each of these rows."""
        bodies = "".join(
            f"  br label %{block.prefix}\n{loop(block, str(begin), f'enter{number}', str(end), f'enter{number + 1}')}"
            f"enter{number + 1}:\n"
            for number, (block, begin, end) in enumerate(loops)
        )
        return f"""
define internal void @rows({_arrays(len(self.arrays), "ptr noalias")}, i64 %first, i64 %end) nounwind {{
entry:
{self._stack()}
  br label %row
row:
  %r = phi i64 [ %first, %entry ], [ %rnext, %rowend ]
  %rmore = icmp ult i64 %r, %end
  br i1 %rmore, label %enter0, label %done
enter0:
{self._row_begin()}
{bodies}
  br label %rowend
rowend:
{self._row_end()}
  %rnext = add i64 %r, 1
  br label %row
done:
  ret void
}}"""

    def _kept_powers(self) -> dict[Value, Kept]:
        """Exponentials that a loop later than the first one which computes the whole row needs again."""
        first: dict[Value, int] = {}
        again: set[Value] = set()
        for number, one in enumerate(self.passes):
            for power, whole in (found for job in one.jobs for found in powers(job.value)):
                if first.get(power, number) < number:
                    again.add(power)
                elif whole:
                    first[power] = number
        return {p: Kept(f"%kept{n}", p.columns, f) for n, (p, f) in enumerate(first.items()) if p in again}

    def _loops(self, number: int, one: Pass) -> Iterator[tuple[Block, int, int]]:
        """Blocks, each with its first column and the one after its last."""
        for begin, end, lanes in one.segments():
            body = Body(self, Block(lanes, f"p{number}c{begin}x"), number, begin)
            for job in one.jobs:
                value = body.at(job.value, 0)
                if job.into is None:
                    body.store(value, job.output, job.begin)
                else:
                    self._accumulate(job.into, value)
            yield body.block, begin, end

    def _accumulate(self, reduced: Reduced, value: Lanes) -> None:
        block = value.block
        mine = Accumulator(reduced, f"%part{len(self.accumulators)}", block.lanes)
        self.accumulators.append(mine)
        block.store(reduced.kind.step(block.load(mine.name, FLOAT), value), mine.name)

    def _stack(self) -> str:
        vectors = (f"{a.name} = alloca <{a.lanes} x float>, align 64" for a in self.accumulators)
        rows = (f"{kept.name} = alloca [{kept.columns} x float], align 64" for kept in self.kept.values())
        return _lines((*vectors, *rows))

    def _row_begin(self) -> str:
        """Where the row begins in each array, and accumulators as they are before a row."""
        block = Block(1, "begin")
        for number, array in enumerate(self.arrays):
            row = "%r" if array.rows == self.row_count else block.emit(f"urem i64 %r, {array.rows}")
            skipped = block.emit(f"mul i64 {row}, {array.columns}")
            block.do(f"%row{number} = getelementptr {ELEMENT[array.dtype]}, ptr %array{number}, i64 {skipped}")
        for part in self.accumulators:
            start = Block(part.lanes, "").floats(part.reduced.kind.start)
            block.do(f"store <{part.lanes} x float> {start}, ptr {part.name}, align 4")
        return "\n".join(block.lines)

    def _row_end(self) -> str:
        """Outputs of one number a row."""
        body = Body(self, Block(1, "end"), len(self.passes), None)
        for number, output in enumerate(self.outputs):
            if output.columns == 1:
                body.store(body.at(output, 0), number, 0)
        return "\n".join(body.block.lines)


class Body:
    """What the block of loop number `number` computes, at the columns from `begin` on; None: outside of any loop."""

    def __init__(self, code: RowCode, block: Block, number: int, begin: int | None) -> None:
        self.block = block
        self._code = code
        self._number = number
        self._begin = begin
        self._known: dict[tuple[Value, int], Lanes] = {}
        # For numbers that are the same in every column, in the same block.
        self._single = None if begin is None else Body(code, Block(1, block.prefix, block.lines), number, None)

    def at(self, value: Value, offset: int) -> Lanes:
        """The value's elements `offset` columns right of the loop's; of one with one column, in every lane."""
        key = value, offset
        if key not in self._known:
            if isinstance(value, Constant):
                self._known[key] = Lanes(self.block, self.block.floats(value.number), FLOAT)
            elif value.columns == 1 and self._single is not None:
                self._known[key] = self._spread(self._single.at(value, 0))
            else:
                self._known[key] = self._compute(value, offset)
        return self._known[key]

    def store(self, value: Lanes, output: int, offset: int) -> None:
        number = len(self._code.inputs) + output
        self.block.store(value, self._element(f"%row{number}", value.dtype, offset))

    def _compute(self, value: Value, offset: int) -> Lanes:
        match value:
            case Input():
                row = f"%row{self._code.numbers[value]}"
                return self.block.load(self._element(row, value.dtype, offset), value.dtype)
            case Reduced():
                return self._reduced(value)
            case Sliced():
                return self.at(value.operand, offset + value.begin)
            case Joined():
                return self._piece(value, offset)
            case Applied():
                return self._applied(value, offset)
        raise AssertionError(value)

    def _applied(self, value: Applied, offset: int) -> Lanes:
        kept = self._code.kept.get(value)
        if kept is not None and self._number > kept.first:
            return self.block.load(self._element(kept.name, FLOAT, offset), FLOAT)
        result = value.function(*(self.at(operand, offset) for operand in value.operands))
        if kept is not None and self._number == kept.first and offset == 0:
            self.block.store(result, self._element(kept.name, FLOAT, 0))
        return result

    def _piece(self, value: Joined, offset: int) -> Lanes:
        """Lanes of the piece that holds this column; `Pass.segments` cuts loops where pieces meet."""
        column, end = (self._begin or 0) + offset, 0
        for piece in value.pieces:
            begin, end = end, end + piece.columns
            if column < end:
                return self.at(piece, offset - begin)
        raise AssertionError(f"column {column} of {end}")

    def _reduced(self, value: Reduced) -> Lanes:
        block, total = self.block, None
        for part in self._code.accumulators:
            if part.reduced is value:
                vector = f"<{part.lanes} x float>"
                loaded = block.emit(f"load {vector}, ptr {part.name}, align 4")
                across = value.kind.across.format(vector=f"v{part.lanes}f32", operand=f"{vector} {loaded}")
                single = block.emit(f"insertelement <1 x float> poison, float {block.emit(across)}, i64 0")
                found = Lanes(block, single, FLOAT)
                total = found if total is None else value.kind.step(total, found)
        assert total is not None
        return total

    def _spread(self, single: Lanes) -> Lanes:
        """One number in every lane."""
        block, one = self.block, f"<1 x {ELEMENT[single.dtype]}>"
        zeros = f"<{block.lanes} x i32> zeroinitializer"
        name = block.emit(f"shufflevector {one} {single.name}, {one} poison, {zeros}")
        return Lanes(block, name, single.dtype)

    def _element(self, row: str, dtype: torch.dtype, offset: int) -> str:
        """The address of a row's element `offset` columns right of the loop's; outside of any loop, of its first."""
        column = "0" if self._begin is None else f"%{self.block.prefix}i"
        shifted = self.block.emit(f"add i64 {column}, {offset}")
        return self.block.emit(f"getelementptr {ELEMENT[dtype]}, ptr {row}, i64 {shifted}")


def _team(arrays: int) -> str:
    """`team(data)`: takes rows until none are left."""
    numbers = range(arrays)
    return f"""
define void @team(ptr %data) nounwind {{
entry:
  %atshare = getelementptr i64, ptr %data, i64 1
  %share = load i64, ptr %atshare, align 8
  %atrows = getelementptr i64, ptr %data, i64 2
  %rows = load i64, ptr %atrows, align 8
{_lines(f"%at{n} = getelementptr i64, ptr %data, i64 {n + 3}" for n in numbers)}
{_lines(f"%array{n} = load ptr, ptr %at{n}, align 8" for n in numbers)}
  br label %take
take:
  %first = atomicrmw add ptr %data, i64 %share monotonic, align 8
  %more = icmp ult i64 %first, %rows
  br i1 %more, label %taken, label %done
taken:
  %after = add i64 %first, %share
  %short = icmp ult i64 %rows, %after
  %end = select i1 %short, i64 %rows, i64 %after
  call void @rows({_arrays(arrays, "ptr")}, i64 %first, i64 %end)
  br label %take
done:
  ret void
}}"""


def _come_again(outer: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether row r of `whole` is, as dimensions are broadcast, row r modulo their number of `outer`."""
    own = tuple(dropwhile(lambda size: size == 1, outer))
    return own == tuple(whole)[len(whole) - len(own) :]


def _arrays(count: int, kind: str) -> str:
    return ", ".join(f"{kind} %array{n}" for n in range(count))


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
