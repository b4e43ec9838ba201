"""Python numbers beside vectors, and what has no form."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.host.lanes import FLOAT, Block, HostFormError, intrinsics, modelled
from trainer.host.machine import compile_ir

# In float32 none of these rounds a number as another one does.
FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "x + 0.1": lambda x, _: x + 0.1,
    "0.1 + x": lambda x, _: 0.1 + x,
    "x - 0.3": lambda x, _: x - 0.3,
    "0.3 - x": lambda x, _: 0.3 - x,
    "2 * x": lambda x, _: 2 * x,
    "x * 0.7": lambda x, _: x * 0.7,
    "0.7 * x * y": lambda x, y: 0.7 * x * y,
    "x / 3": lambda x, _: x / 3,
    "x / y": lambda x, y: x / y,
}


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_rounded_as_torch_rounds_them(form):
    function, lanes = FORMS[form], 8
    block = Block(lanes, "b")
    result = function(block.load("%x", FLOAT), block.load("%y", FLOAT))
    block.store(result, "%out")
    lines = "\n".join(block.lines)
    engine = compile_ir(f"{intrinsics(lanes)}\ndefine void @f(ptr %x, ptr %y, ptr %out) {{\n{lines}\n  ret void\n}}")
    x, y, out = torch.randn(lanes), torch.randn(lanes), torch.empty(lanes)
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(engine.get_function_address("f"))(
        x.data_ptr(), y.data_ptr(), out.data_ptr()
    )
    assert torch.equal(out, function(x, y))


@pytest.mark.parametrize("form", [lambda x: 1.0 / x, lambda x: x.tanh(), lambda x: x**2])
def test_what_has_no_form_is_named(form):
    named = pytest.raises(HostFormError, match=r"test_lanes:<lambda> has no form for the host: \w+Error")
    with named, modelled(form, "write it otherwise"):
        form(Block(8, "b").load("%x", FLOAT))
