"""The graphs of the head: final norm, and the parts of one chunk of the vocabulary. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphcache.catalog import CatalogOptions
from graphcache.errors import UsageError
from graphcache.graph import Graph, Listing, TensorSpec, Use
from trainer.architecture.config import ModelConfig
from trainer.catalogs.layer import ROWWISE, products, sizes_text
from trainer.catalogs.row_tiles import row_tiles, with_tiles

if TYPE_CHECKING:
    from graphcache.header.table import TensorTable

MODULE = "trainer.graphs.head"
FLOAT = "float32"
# A chunk has at most this many rows of the vocabulary. Powers of two are the quickest to compile and, by the compiler's
# estimate, to run: 16,032 rows, an eighth of Llama 3's, cost nearly twice as much (docs/compiler-workarounds.md).
CHUNK_ROWS = 16_384
ROWS_MULTIPLE = 2_048


@dataclass(frozen=True)
class Chunks:
    """The vocabulary as `count` chunks of `rows` each; the last one ends in `padding` rows that are no token's."""

    count: int
    rows: int
    padding: int

    @classmethod
    def of(cls, vocab: int) -> Chunks:
        """A vocabulary that fits into one chunk is one, unpadded."""
        if vocab <= CHUNK_ROWS:
            return cls(1, vocab, 0)
        count = -(-vocab // CHUNK_ROWS)
        rows = -(-vocab // (count * ROWS_MULTIPLE)) * ROWS_MULTIPLE
        return cls(count, rows, count * rows - vocab)


def parts(config: ModelConfig, options: CatalogOptions) -> dict[str, Graph]:
    """Graph by part of the step, each with its ways: every chunk shares one set."""
    tokens = options.micro_batch * options.sequence
    tiles = {tokens // rows: _parts(config, options, rows) for rows in row_tiles(tokens)}
    return with_tiles(_parts(config, options, tokens), tiles)


def _parts(config: ModelConfig, options: CatalogOptions, tokens: int) -> dict[str, Graph]:
    hidden, chunks = config.hidden, Chunks.of(config.vocab)
    rows = chunks.rows

    def tensor(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, options.dtype, shape)

    def wide(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, FLOAT, shape)

    def graph(
        name: str,
        *args: TensorSpec,
        sizes: Iterable[int],
        settings: Mapping[str, str] | None = None,
        function: str = "",
        **constants: Any,
    ) -> Graph:
        settings = products(*args) if settings is None else settings
        name_ = f"head.{name}[{sizes_text(sizes)}]"
        return Graph(name_, "head", function or f"{MODULE}:{name}", args, constants=constants, settings=settings)

    x, norm, weight = tensor("x", tokens, hidden), tensor("norm", hidden), tensor("weight", rows, hidden)
    bias = (tensor("bias", rows),) if chunks.padding else ()
    dhidden, logits = wide("dhidden", tokens, hidden), tensor("logits", tokens, rows)
    per_token = wide("log_sum_exp", tokens), wide("coefficient", tokens)
    product = tokens, rows, hidden
    layer = "trainer.graphs.layer"
    return {
        "final_norm": graph(
            "final_norm", x, norm, sizes=x.shape, settings=ROWWISE, function=f"{layer}:rms_norm", eps=config.eps
        ),
        "chunk_forward": graph("chunk_forward", x, weight, *bias, sizes=product),
        "chunk_softmax_backward": graph(
            "chunk_softmax_backward", logits, *per_token, sizes=logits.shape, settings=ROWWISE
        ),
        "chunk_input_grad": graph("chunk_input_grad", dhidden, logits, weight, sizes=product),
        "chunk_grad": graph("chunk_grad", logits, x, sizes=product, function=f"{layer}:weight_grad"),
        "chunk_add": graph(
            "chunk_add",
            *(wide("total", rows, hidden), wide("grad", rows, hidden)),
            sizes=(rows, hidden),
            settings=ROWWISE,
            function=f"{layer}:add",
        ),
        "final_norm_backward": graph(
            "final_norm_backward",
            *(wide("total", hidden), dhidden, x, norm),
            sizes=x.shape,
            settings=ROWWISE,
            function=f"{layer}:norm_backward",
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
    chunks = Chunks.of(model.vocab).count
    found = parts(model, options)
    uses = (Use(g.name, "head", 1, chunks if part.startswith("chunk") else 1) for part, g in found.items())
    return Listing(tuple(found.values()), tuple(uses))
