"""Arguments that show a mistake: from a seed, the same on every machine with the same torch.

A matrix (all but the last dimension are its rows) has, so that whatever is swapped, repeated, left out or counted twice
changes the result by more than roundings do:

- a scale for each row and each column, powers of two, and a heavy tail of magnitudes within them: a row of small
  numbers makes a softmax even, one of large numbers makes one of its terms rule;
- spikes: each row and each column has at least one element that outweighs the rest of both, by a permutation;
- in rows of more than LIT numbers, every other one nearly empty: the rounding that a long sum allows grows with the
  terms that are not zero, and among few terms each one shows. What is left includes the ends of every split of 2 to 64
  (a compiler cuts at such places), shared out among these rows;
- some rows of zeros, like masked tokens, and some of numbers that are small as a whole, beside which an eps counts.

A function `example_<name>(tensors, number)` beside the graph's own returns better ones, where the graph means something
only for some values (a second moment is not negative), or where a result depends on where its largest element is.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from graphcache.graph import Graph, TensorSpec

# Exponents of rows, columns, spikes.
ROWS, COLUMNS, SPIKE = (-6, 2), (-2, 1), 5
# Elements that are kept of every other row.
LIT = 256
# One row in so many is zero.
ZERO_ROWS = 32
# One in so many is scaled to where a norm's eps counts.
QUIET_ROWS, QUIET = 16, -12
SPLITS = 64


def example(graph: Graph, seed: int = 0, number: int = 0) -> list[Tensor]:
    """One CPU tensor for each argument; `number` is the set's. Integers and bools are 0 or 1."""
    tensors = [_tensor(spec, _generator(seed, number, place)) for place, spec in enumerate(graph.args)]
    module, _, name = graph.function.partition(":")
    better: Callable[[list[Tensor], int], list[Tensor]] | None
    better = getattr(importlib.import_module(module), f"example_{name}", None)
    return tensors if better is None else better(tensors, number)


def _generator(seed: int, number: int, place: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed << 20) + (number << 10) + place)


def _tensor(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 2, spec.shape, generator=generator).to(dtype)
    columns = spec.shape[-1] if spec.shape else 1
    rows = math.prod(spec.shape[:-1])
    return _matrix(rows, columns, generator).reshape(spec.shape).to(dtype)


def _matrix(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    if not rows or not columns:
        return torch.zeros(rows, columns)

    def exponents(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator).float()

    tail = torch.rand(rows, columns, generator=generator).clamp(min=2.0**-8).log2()
    power = exponents(*COLUMNS, columns) + tail + (exponents(*ROWS, rows, 1) if rows > 1 else 0.0)
    values = torch.exp2(power) * (torch.randint(0, 2, (rows, columns), generator=generator) * 2.0 - 1.0)
    if rows == 1:
        return values.masked_fill(torch.rand(1, columns, generator=generator) < 1 / ZERO_ROWS, 0.0)
    spikes = _spikes(rows, columns, generator)
    size = torch.exp2(SPIKE + torch.rand(int(spikes.sum()), generator=generator))
    values[spikes] = size * torch.where(torch.rand(len(size), generator=generator) < 0.25, -1.0, 1.0)
    if columns > LIT:
        values[1::2] *= spikes[1::2] | _lit(len(range(1, rows, 2)), columns, generator)
    order = torch.randperm(rows, generator=generator)
    values[order[: rows // ZERO_ROWS]] = 0.0
    values[order[rows // ZERO_ROWS : rows // ZERO_ROWS + rows // QUIET_ROWS]] *= 2.0**QUIET
    return values


def _spikes(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """At least one in each row and each column, as few as that takes. [rows, columns] bool"""
    down, across = torch.randperm(rows, generator=generator), torch.randperm(columns, generator=generator)
    period = min(rows, columns)
    return (down % period)[:, None] == (across % period)[None, :]


def _lit(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Ends of splits, each in one row, and others by chance: about LIT a row. [rows, columns] bool"""
    lit = torch.rand(rows, columns, generator=generator) < LIT / 2 / columns
    if rows:
        places = torch.tensor(ends(columns))
        lit[torch.arange(len(places)) % rows, places] = True
    return lit


@cache
def ends(size: int) -> tuple[int, ...]:
    """The first and last places of each part when `size` is cut into 2 to 64 equal parts; powers of two come first."""
    powers = [2**i for i in range(1, SPLITS.bit_length())]
    order = [*powers, *(n for n in range(2, SPLITS + 1) if n not in powers)]
    cuts = (size * part // parts for parts in order for part in range(1, parts))
    found = (place for cut in cuts for place in (cut - 1, cut))
    return tuple(dict.fromkeys(place for place in (0, size - 1, *found) if 0 <= place < size))
