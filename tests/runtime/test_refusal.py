"""Each way to reach a compile, while compiles are refused, and that all is as before afterwards.

Runs against the installed release; `test_releases.py` runs it against the other one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcache.errors import ToolchainError
from graphcache.runtime import furiosa, refusal
from graphcache.runtime.refusal import CompileRefusedError, compiles_refused
from graphcache.vendor import layouts as vendor


class Double(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.fixture(autouse=True)
def fusion() -> None:
    """Some of these tests get as far as to read it, which would fix it at 1 for all later tests of the process."""
    furiosa.set_fusion(8)


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Double(), (torch.empty(4),), strict=False)


@pytest.fixture
def on_device() -> Tensor:
    """A tensor of the vendor's device type without memory: enough to see which kernel an operator would run."""
    furiosa.register()
    return torch._C._acc.create_empty_tensor((2, 2), torch.float32)


@pytest.fixture
def refused() -> Iterator[None]:
    with compiles_refused():
        yield


def every_call() -> list[str]:
    return list(vendor.layout().compile_calls)


def found(path: str) -> Any:
    owner, attribute = refusal._owner(path)
    return getattr(owner, attribute)


@pytest.mark.parametrize("path", every_call())
def test_the_vendors_own_calls(refused: None, path: str) -> None:
    with pytest.raises(CompileRefusedError, match=path.replace(":", ".")):
        found(path)(None)


def test_the_vendors_modules(refused: None, exported: torch.export.ExportedProgram) -> None:
    package = vendor.resolve(vendor.PACKAGE)
    for make in (package.CompileModule.from_exported, package.LowerModule.from_exported):
        with pytest.raises(CompileRefusedError):
            make(exported)
    with pytest.raises(CompileRefusedError):
        package.CompileModule.from_module(Double(), (torch.empty(4),))


def test_the_vendors_backend_of_torch_compile(refused: None) -> None:
    backend = vendor.resolve(vendor.PACKAGE).backend
    with pytest.raises(CompileRefusedError):
        backend(torch.fx.symbolic_trace(Double()), (torch.ones(4),))(torch.ones(4))


def test_torch_compile(refused: None) -> None:
    with pytest.raises(CompileRefusedError, match=r"torch\.compile"):
        torch.compile(Double())
    with pytest.raises(CompileRefusedError, match=r"torch\.compile"):
        Double().compile()


def test_functions_that_were_wrapped_before() -> None:
    wrapped = torch.compile(Double(), backend="eager")
    with compiles_refused(), pytest.raises(RuntimeError, match="fail_on_recompile"):
        wrapped(torch.ones(2))


EAGER: dict[str, Callable[[Tensor], object]] = {
    "add": lambda x: x + x,
    "in place": lambda x: x.add_(1),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
    "matmul": lambda x: x @ x,
    "reduction": lambda x: x.sum(),
    "fill": lambda x: x.zero_(),
    "clone": lambda x: x.clone(),
    "concatenation": lambda x: torch.cat([x, x]),
    "softmax": lambda x: torch.softmax(x, 0),
    "comparison": lambda x: torch.equal(x, x),
    "sort": lambda x: x.sort(),
    "norm": torch.linalg.norm,
    "random": lambda x: x.uniform_(),
    "printing": repr,
    "fused optimizer": lambda x: torch._fused_adamw_(
        [x], [x], [x], [x], [], [torch.ones(1)],
        lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.1, eps=0.1, amsgrad=False, maximize=False,
    ),
    "zeros": lambda x: torch.zeros(2, device=x.device),
    "rand": lambda x: torch.rand(2, device=x.device),
    "full": lambda x: torch.full((2,), 1.0, device=x.device),
}  # fmt: skip


@pytest.mark.parametrize("operator", EAGER)
def test_eager_operators(refused: None, on_device: Tensor, operator: str) -> None:
    with pytest.raises(CompileRefusedError, match=r"eager aten::\w+"):
        EAGER[operator](on_device)


def test_views_copies_and_allocations_are_let_through(refused: None, on_device: Tensor) -> None:
    """They reach the vendor's code, which finds no driver here."""
    assert on_device.view(4).shape == (4,)
    for reach in (on_device.cpu, lambda: on_device.copy_(torch.ones(2, 2)), lambda: torch.empty_like(on_device)):
        with pytest.raises(RuntimeError):
            reach()


def test_host_tensors_are_left_alone(refused: None) -> None:
    assert torch.equal(torch.ones(2) + torch.ones(2), torch.full((2,), 2.0))
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_it_holds_in_every_thread(refused: None, on_device: Tensor) -> None:
    caught: list[BaseException] = []

    def reach() -> None:
        for attempt in (lambda: found(every_call()[0])(None), lambda: on_device + on_device):
            try:
                attempt()
            except CompileRefusedError as error:
                caught.append(error)

    thread = threading.Thread(target=reach)
    thread.start()
    thread.join()
    assert len(caught) == 2


def test_it_holds_until_the_last_device_is_closed() -> None:
    path = every_call()[0]
    first, second = compiles_refused(), compiles_refused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(CompileRefusedError):
        found(path)(None)
    second.__exit__(None, None, None)
    assert not isinstance(attempt(lambda: found(path)(None)), CompileRefusedError)


def attempt(reach: Callable[[], object]) -> Exception | None:
    try:
        reach()
    except Exception as error:
        return error
    return None


def test_everything_is_as_before_afterwards() -> None:
    furiosa.register()
    before = [found(path) for path in every_call()]
    compile_before, stance = torch.compile, torch._dynamo.eval_frame._stance
    with compiles_refused():
        assert all(found(path) is not original for path, original in zip(every_call(), before, strict=True))
    assert [found(path) for path in every_call()] == before
    assert torch.compile is compile_before
    assert torch._dynamo.eval_frame._stance == stance


def test_operators_are_the_vendors_again_afterwards() -> None:
    furiosa.register()
    with compiles_refused():
        pass
    error = attempt(lambda: torch.zeros(2, device=furiosa.device_type()))
    assert error is not None
    assert not isinstance(error, CompileRefusedError)


def test_no_reference_to_a_refused_function_is_left_in_the_vendors_modules() -> None:
    furiosa.register()
    originals = [found(path) for path in every_call()]
    with compiles_refused():
        left = [(path, refusal._references(o)) for path, o in zip(every_call(), originals, strict=True)]
    assert [references for _, references in left if references] == []


def test_a_way_that_is_not_where_it_should_be_refuses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(path: str) -> tuple[Any, str]:
        raise ToolchainError(f"{path} is not there")

    monkeypatch.setattr(refusal, "_owner", without)
    original = torch.compile
    with pytest.raises(ToolchainError), compiles_refused():
        pytest.fail("it was entered")
    monkeypatch.undo()
    assert torch.compile is original
    with compiles_refused(), pytest.raises(CompileRefusedError):
        torch.compile(Double())


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ToolchainError, match="a compile through it could not be refused"):
        refusal._owner(f"{vendor.PACKAGE}:no_such_function")


def test_a_vendor_without_operators_refuses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.library, "_impls", set())
    with pytest.raises(ToolchainError, match="no operator"):
        refusal._operators()
