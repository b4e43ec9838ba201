"""The ways of the layer's and the head's graphs: row tiles, one sequence at a time, other settings. No torch.

Products, norms, SwiGLU and the head see rows: a graph for R rows serves every T that R divides. Only attention's core
sees sequences, and a graph for one serves any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from graphcache.graph import Combined, Graph, TensorSpec, Way

# What sequences and micro-batches are multiples of. Fewer rows keep a card's units waiting, and cost a call's overhead
# more often.
TILE_ROWS = (2_048, 1_024, 512, 256, 128, 64)
LEAST_ROWS = 8
# Products that the compiler refuses with the settings that are the quickest to compile are tried with these at last.
OTHER_SETTINGS: tuple[Mapping[str, str], ...] = ({"tactic": "compute-bound", "unique-shapes": "16"}, {})
FLOAT = "float32"


def row_tiles(rows: int) -> list[int]:
    """Numbers of rows that divide `rows`, the largest first: those of TILE_ROWS, else halves of halves."""
    found = [tile for tile in TILE_ROWS if tile < rows and rows % tile == 0]
    if found:
        return found
    while rows % 2 == 0 and rows // 2 >= LEAST_ROWS:
        rows //= 2
        found.append(rows)
    return found


def with_tiles(whole: Mapping[str, Graph], tiles: Mapping[int, Mapping[str, Graph]]) -> dict[str, Graph]:
    """Graphs by part with their ways; `tiles` are the same parts for fewer rows, by how many of them make the whole.

    The part `x_add`, which sees no rows, adds two results of the part `x_grad` where that is a weight's gradient.
    """
    found = dict(whole)
    for part, graph in whole.items():
        if not part.endswith("_add"):
            add = whole.get(part.removesuffix("_grad") + "_add")
            found[part] = with_ways(graph, {calls: each[part] for calls, each in tiles.items()}, add)
    return found


def with_ways(graph: Graph, tiles: Mapping[int, Graph], add: Graph | None = None) -> Graph:
    """The graph with its ways: tiles first, by the number of calls, then other settings where it is a product.

    add: what adds two of its results where those are sums over rows
    """
    tiled = (Way(tile, calls, _results(graph, calls, add)) for calls, tile in tiles.items())
    return replace(graph, ways=(*tiled, *(Way(other) for other in _with_other_settings(graph))))


def _with_other_settings(graph: Graph) -> list[Graph]:
    """A product with settings that take the compiler longer; other graphs have the defaults already."""
    settings = graph.settings or {}
    if "unique-shapes" not in settings:
        return []
    kept = {name: value for name, value in settings.items() if name not in ("tactic", "unique-shapes")}
    return [
        replace(graph, name=f"{graph.name} {_words(other)}", settings={**other, **kept}) for other in OTHER_SETTINGS
    ]


def _words(settings: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in settings.items()) or "tactic=default"


def _results(graph: Graph, calls: int, add: Graph | None) -> tuple[Combined, ...]:
    """How the results of `calls` tiles become the graph's."""
    name = graph.function.partition(":")[2]
    if name == "weight_grad":
        assert add is not None
        return (Combined("sum", add),)
    joined = tuple(Combined("join", join_rows(graph.catalog, spec, calls)) for spec in _RESULTS[name](graph))
    # A vector's gradient is added to the first argument.
    return (*joined, Combined("carry", argument=0)) if name in ("norm_backward", "bias_grad") else joined


def join_rows(catalog: str, whole: TensorSpec, calls: int) -> Graph:
    """Tiles, flat, to the tensor whose rows they are: it moves memory and computes nothing."""
    tile = TensorSpec("", whole.dtype, (whole.elements // calls,))
    args = tuple(replace(tile, name=f"tile{i}") for i in range(calls))
    sizes = "x".join(map(str, whole.shape))
    name = f"{catalog}.join_rows[{sizes} of {calls}{' float32' if whole.dtype == FLOAT else ''}]"
    return Graph(name, catalog, "trainer.graphs.tiles:join", args, constants={"shape": list(whole.shape)}, settings={})


def _like(*places: int) -> Callable[[Graph], list[TensorSpec]]:
    """Results with the dtypes and shapes of these arguments."""
    return lambda graph: [graph.args[place] for place in places]


def _product(side: int) -> Callable[[Graph], list[TensorSpec]]:
    """One result: a row for each of the first argument's, as wide as that side of the weight, the second argument."""

    def results(graph: Graph) -> list[TensorSpec]:
        x, weight, *_ = graph.args
        return [replace(x, shape=(x.shape[0], weight.shape[side]))]

    return results


def _split_heads(graph: Graph) -> list[TensorSpec]:
    (rows,), q, kv = graph.args, int(graph.constants["q_width"]), int(graph.constants["kv_width"])
    tokens = rows.elements // (q + 2 * kv)
    return [replace(rows, shape=(tokens, width)) for width in (q, kv, kv)]


def _join_heads(graph: Graph) -> list[TensorSpec]:
    return [replace(graph.args[0], shape=(graph.args[0].shape[0], sum(spec.shape[1] for spec in graph.args)))]


def _scores(graph: Graph) -> list[TensorSpec]:
    q, (heads, kv_heads, sequence) = graph.args[0], _heads(graph)
    sequences = q.shape[0] // (heads * sequence)
    return [replace(q, shape=(sequences * kv_heads, heads // kv_heads * sequence, sequence))]


def _attend(graph: Graph) -> list[TensorSpec]:
    """[T, n*d] from v [T*k, d]"""
    v, (heads, kv_heads, _) = graph.args[1], _heads(graph)
    return [replace(v, shape=(v.shape[0] // kv_heads, heads * v.shape[1]))]


def _attend_backward(graph: Graph) -> list[TensorSpec]:
    """[T, k*d] from rows [T*n, d]"""
    rows, (heads, kv_heads, _) = graph.args[1], _heads(graph)
    return [replace(rows, shape=(rows.shape[0] // heads, kv_heads * rows.shape[1]))]


def _swiglu(graph: Graph) -> list[TensorSpec]:
    (gate_up,) = graph.args
    return [replace(gate_up, shape=(gate_up.shape[0], gate_up.shape[1] // 2))]


def _heads(graph: Graph) -> tuple[int, int, int]:
    return graph.constants["heads"], graph.constants["kv_heads"], graph.constants["sequence"]


def _chunk_forward(graph: Graph) -> list[TensorSpec]:
    """Logits [T, C], and two numbers a token."""
    (logits,) = _product(0)(graph)
    vector = TensorSpec("vector", FLOAT, logits.shape[:1])
    return [logits, vector, vector]


# The results with a row for each of the arguments' rows, by the name of the function.
_RESULTS: Mapping[str, Callable[[Graph], list[TensorSpec]]] = {
    "rms_norm": _like(0),
    "norm_backward": _like(2),
    "linear": _product(0),
    "linear_residual": _product(0),
    "input_grad": _product(1),
    "bias_grad": _like(),
    "rotate": _like(0),
    "split_heads": _split_heads,
    "join_heads": _join_heads,
    "scores": _scores,
    "softmax": _like(0),
    "softmax_backward": _like(0),
    "attend": _attend,
    "attend_backward": _attend_backward,
    "swiglu": _swiglu,
    "swiglu_backward": _like(1, 0),
    "chunk_forward": _chunk_forward,
    "chunk_softmax_backward": _like(0),
    "chunk_input_grad": _like(0),
}
