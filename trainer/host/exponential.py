"""exp of float32 vectors, within one unit in the last place of the true value.

Cody & Waite's reduction x = n ln 2 + r with ln 2 in two parts, then the polynomial of Cephes' expf
(https://www.netlib.org/cephes/, single/expf.c) for exp(r) on [-ln 2 / 2, ln 2 / 2].
"""

from __future__ import annotations

from trainer.host.lanes import FLOAT, Lanes

LOG2_E = 1.44269504088896341
# ln 2: n times the first part is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# The smallest x whose exp is a normal float32, and one whose exp is infinite.
LOWEST, HIGHEST = -87.33654, 89.0


def exp(x: Lanes) -> Lanes:
    """exp(x) float32; exp(NaN) is NaN.

    0 where exp(x) is subnormal: a CPU takes 100 times as long for those, and masked scores would be full of them.
    """
    # Not LLVM's maxnum and minnum, which take three instructions each to give a NaN's partner: NaN is put back below.
    inside = _where("ogt", x, x.constant(LOWEST), x, x.constant(LOWEST))
    inside = _where("olt", inside, x.constant(HIGHEST), inside, x.constant(HIGHEST))
    n = (inside * x.constant(LOG2_E) + x.constant(0.5)).call("floor")
    r = n.call("fmuladd", x.constant(-LN2_HIGH), inside)
    r = n.call("fmuladd", x.constant(-LN2_LOW), r)
    sum_ = x.constant(POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        sum_ = sum_.call("fmuladd", r, x.constant(coefficient))
    near_one = sum_.call("fmuladd", r * r, r) + x.constant(1.0)
    result = _where("olt", x, x.constant(LOWEST), x.constant(0.0), _times_power_of_two(near_one, n))
    return _where("uno", x, x, x, result)


def _times_power_of_two(value: Lanes, n: Lanes) -> Lanes:
    """value * 2^n in two steps: 2^n alone may be infinite where the product is finite."""
    block, bits, floats = value.block, value.block.vector("i32"), value.block.vector("float")
    whole = block.emit(f"fptosi {floats} {n.name} to {bits}")
    half = block.emit(f"ashr {bits} {whole}, {block.all('i32', 1)}")
    for part in (half, block.emit(f"sub {bits} {whole}, {half}")):
        biased = block.emit(f"add {bits} {part}, {block.all('i32', 127)}")
        shifted = block.emit(f"shl {bits} {biased}, {block.all('i32', 23)}")
        value = value * Lanes(block, block.emit(f"bitcast {bits} {shifted} to {floats}"), FLOAT)
    return value


def _where(condition: str, a: Lanes, b: Lanes, yes: Lanes, no: Lanes) -> Lanes:
    """`yes` in the lanes in which LLVM's fcmp condition holds between a and b, `no` in the others."""
    block, floats = a.block, a.block.vector("float")
    holds = block.emit(f"fcmp {condition} {floats} {a.name}, {b.name}")
    chosen = block.emit(f"select {block.vector('i1')} {holds}, {floats} {yes.name}, {floats} {no.name}")
    return Lanes(block, chosen, FLOAT)
