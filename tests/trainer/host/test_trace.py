"""Programs made at random: what is traced and compiled computes what torch does when it runs the same lines."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.host.row_form import RowForm
from trainer.host.trace import Input, Value

FLOAT = torch.float32
OPERATIONS = (
    *("add", "subtract", "multiply", "scale", "exp", "sigmoid", "rsqrt", "softmax", "sum", "mean", "amax"),
    *("swap", "halves", "vector", "column", "round"),
)


def program(steps, x, vector, column):
    """One row-wise function of x [R, n], vector [n] and column [R], of tensors or of traced values; n is even.

    Each step makes a new value [R, n] of two earlier ones; all stay between about -10 and 10.
    """
    values = [x]
    for operation, first, second in steps:
        a, b = values[first % len(values)], values[second % len(values)]
        half = a.shape[-1] // 2
        match operation:
            case "add":
                new = a + b * 0.5
            case "subtract":
                new = 1.0 - a * 0.5
            case "multiply":
                new = torch.sigmoid(a) * b
            case "scale":
                new = a * 0.3 - b * 0.2
            case "exp":
                new = torch.exp(torch.sigmoid(a) * 2.0 - 2.0)
            case "sigmoid":
                new = torch.sigmoid(a + b)
            case "rsqrt":
                new = a * torch.rsqrt((b * b).mean(-1, keepdim=True) + 1.0)
            case "softmax":
                new = torch.softmax(a, -1) + b
            case "sum":
                new = b - torch.sigmoid(a).sum(-1, keepdim=True) * 0.01
            case "mean":
                new = a - b.mean(-1, keepdim=True)
            case "amax":
                new = torch.exp(a - a.amax(-1)[:, None]) + b * 0.1
            case "swap":
                new = torch.cat((a[:, half:], b[:, :half]), -1)
            case "halves":
                left, right = a.chunk(2, 1)
                new = torch.cat((left * right, torch.sigmoid(left)), 1)
            case "vector":
                new = a * 0.5 + vector
            case "column":
                new = a * 0.5 + column[:, None]
            case "round":
                new = a.to(torch.bfloat16).to(FLOAT)
        values.append(torch.sigmoid(new) * 4.0 - 2.0)
    last = values[-1]
    return last, last.to(torch.bfloat16), last.sum(-1), (last * x).amax(-1)


steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(steps, st.integers(1, 9), st.integers(1, 60), st.integers(0, 2**31))
def test_a_random_program_computes_what_torch_does(made, rows, half, seed) -> None:
    torch.manual_seed(seed)
    arguments = torch.randn(rows, 2 * half), torch.randn(2 * half), torch.randn(rows)
    traced = program(made, *(Input(tuple(a.shape), FLOAT, source=i) for i, a in enumerate(arguments)))
    assert all(isinstance(value, Value) for value in traced)
    for ours, theirs in zip(RowForm(traced)(*arguments), program(made, *arguments), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        # A step that rounds to bfloat16 may round a number that is one unit off to the other side.
        rounds = ours.dtype == torch.bfloat16 or any(operation == "round" for operation, _, _ in made)
        tolerance = (0.05 if rounds else 1e-4) * max(1.0, theirs.float().abs().max().item())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_what_a_later_loop_needs_of_an_exponential_is_kept_also_in_another_order() -> None:
    x = torch.randn(5, 70)

    def turned(x):
        powers = torch.softmax(x, -1)
        return torch.cat((powers[:, 35:], powers[:, :35]), -1)

    (found,) = RowForm((turned(Input((5, 70), FLOAT)),))(x)
    torch.testing.assert_close(found, turned(x))
