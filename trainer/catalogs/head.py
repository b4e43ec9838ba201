"""The graphs of the head: final norm, and the parts of one chunk of the vocabulary. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphcache.catalog import CatalogOptions
from graphcache.errors import UsageError
from graphcache.graph import Graph, Listing, TensorSpec, Use
from trainer.catalogs.layer import PRODUCTS, ROWWISE
from trainer.model.config import ModelConfig

if TYPE_CHECKING:
    from graphcache.shapes import TensorTable

MODULE = "trainer.graphs.head"
FLOAT = "float32"
# A chunk has at most this many rows of the vocabulary: docs/results/graphs.md has compile times by size.
CHUNK_ROWS = 16_384
# A vocabulary whose divisors are all far from that (a prime one) is a single chunk rather than thousands.
CHUNKS_AT_MOST = 64


def chunk_count(vocab: int) -> int:
    """The fewest equal chunks of at most CHUNK_ROWS rows; 1 where no number up to CHUNKS_AT_MOST divides."""
    fewest = -(-vocab // CHUNK_ROWS)
    return next((n for n in range(fewest, CHUNKS_AT_MOST + 1) if vocab % n == 0), 1)


def parts(config: ModelConfig, options: CatalogOptions) -> dict[str, Graph]:
    """Graph by part of the step: every chunk shares one set."""
    tokens, hidden, rows = (
        options.micro_batch * options.sequence,
        config.hidden,
        config.vocab // chunk_count(config.vocab),
    )

    def policy(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, options.dtype, shape)

    def wide(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, FLOAT, shape)

    def graph(
        name: str, *args: TensorSpec, settings: Mapping[str, str], module: str = MODULE, **constants: Any
    ) -> Graph:
        function = "norm_backward" if name == "final_norm_backward" else name
        return Graph(f"head.{name}", "head", f"{module}:{function}", args, constants, settings)

    x, norm, weight = policy("x", tokens, hidden), policy("norm", hidden), policy("weight", rows, hidden)
    dhidden = wide("dhidden", tokens, hidden)
    logits = policy("logits", tokens, rows)
    per_token = wide("log_sum_exp", tokens), wide("coefficient", tokens)
    return {
        "final_norm": graph("final_norm", x, norm, settings=ROWWISE, eps=config.eps),
        "chunk_forward": graph("chunk_forward", x, weight, settings=PRODUCTS),
        "chunk_backward": graph(
            "chunk_backward",
            *(dhidden, wide("total", rows, hidden), logits, *per_token, x, weight),
            settings=PRODUCTS,
        ),
        "final_norm_backward": graph(
            "final_norm_backward",
            wide("total", hidden),
            dhidden,
            x,
            norm,
            settings=ROWWISE,
            module="trainer.graphs.layer",
            eps=config.eps,
        ),
    }


def catalog(table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing:
    """Entry point `head`.

    Raises UsageError without a config.json, and the errors of `ModelConfig.from_json`.
    """
    if config is None:
        raise UsageError(
            "the head's graphs need the model's config.json: a tensor table does not say eps",
            hint="pass the model's folder, or --only adamw",
        )
    model = ModelConfig.from_json(config)
    chunks = chunk_count(model.vocab)
    found = parts(model, options)
    uses = (Use(g.name, "head", 1, chunks if part.startswith("chunk") else 1) for part, g in found.items())
    return Listing(tuple(found.values()), tuple(uses))
