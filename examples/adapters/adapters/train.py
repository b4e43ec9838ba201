"""Trains the adapter or the MLP on the host from the cache alone: python -m adapters.train adapter|mlp [STEPS]"""

from __future__ import annotations

import sys

import torch

import graphcache
from adapters.catalog import ADAMW

TOKENS, WIDTH = 32, 256
# Shapes of the two weights.
MODELS = {"adapter": ((16, WIDTH), (WIDTH, 16)), "mlp": ((128, WIDTH), (WIDTH, 128))}


def train(model: str, steps: int) -> list[float]:
    """The loss of each step. Raises MissingGraphsError, whose hint is the command that builds what is missing."""
    no_table = graphcache.TensorTable.from_groups(())
    listing = graphcache.list_graphs(["adapters"], no_table, None, graphcache.CatalogOptions())
    call = graphcache.Cache().require(listing.graphs, command="graphcache build --only adapters")
    forward, backward = (call[f"{name}[{TOKENS}x{WIDTH}]"] for name in (model, f"{model}_backward"))

    torch.manual_seed(0)
    x, target = torch.randn(TOKENS, WIDTH) / WIDTH**0.5, torch.randn(TOKENS, WIDTH) / WIDTH**0.5
    weights = [torch.randn(shape) / shape[1] ** 0.5 for shape in MODELS[model]]
    moments = [(torch.zeros(w.numel()), torch.zeros(w.numel())) for w in weights]
    losses = []
    for step in range(1, steps + 1):
        results = forward(x, *weights)
        inner, y = results if model == "mlp" else (weights[0], results)
        error = y - target
        losses.append(float((error * error).sum() / 2))
        rate, root = ADAMW["lr"] / (1 - ADAMW["beta1"] ** step), (1 - ADAMW["beta2"] ** step) ** 0.5
        for i, grad in enumerate(backward(error, x, inner, weights[1])):
            update, scalars = call[f"adamw[{grad.numel()}]"], (torch.tensor([rate]), torch.tensor([root]))
            new, mean, square = update(weights[i].reshape(-1), grad.reshape(-1), *moments[i], *scalars)
            weights[i], moments[i] = new.view_as(weights[i]), (mean, square)
    return losses


def main(argv: list[str]) -> None:
    for step, loss in enumerate(train(argv[0], int(argv[1]) if argv[1:] else 20), 1):
        print(f"step {step}  loss {loss:.6f}")


if __name__ == "__main__":
    main(sys.argv[1:])
