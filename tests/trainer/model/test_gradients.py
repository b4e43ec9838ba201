"""Loss and every gradient of tiny random models against transformers, float32."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from graphcache.catalog import CatalogOptions
from graphcache.device.base import LoadedGraph
from graphcache.graph import Graph
from tests.trainer.model.fake_backend import FakeBackend
from tests.trainer.model.whole import loss_and_gradients
from trainer.catalogs import head
from trainer.model.head import WrongGraphError

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama-all-heads-have-keys": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 4})),
    "llama-wide-heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"head_dim": 16})),
    # 48 tokens where the base model had 16: every band of the scaling is at work.
    "llama-scaled-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=False)),
    "qwen2-tied": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
}


def random_model(name: str) -> torch.nn.Module:
    """Weights large enough that every part matters; biases and norms are not what they start as."""
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    return model


def random_batches(count: int, rows: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = []
    for _ in range(count):
        tokens = torch.randint(0, 96, (rows, length + 1))
        labels = tokens[:, 1:].clone()
        labels[torch.rand(labels.shape) < 0.3] = -100
        batches.append((tokens[:, :-1], labels))
    return batches


def reference(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """transformers' loss over all batches at once, gradients left in the model."""
    tokens, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    logits = model(tokens).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100)
    loss.backward()
    return loss.item()


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient(name: str) -> None:
    model = random_model(name)
    batches = random_batches(2, 2, 48)
    backend = FakeBackend()
    options = CatalogOptions(sequence=48, micro_batch=2, dtype="float32")
    state = {n: p.detach() for n, p in model.named_parameters()}
    loss, gradients = loss_and_gradients(backend, model.config.to_dict(), state, batches, options)

    assert loss == pytest.approx(reference(model, batches), rel=1e-6)
    expected = {n: p.grad for n, p in model.named_parameters()}
    assert gradients.keys() == expected.keys()
    errors = {n: ((gradients[n] - g).norm() / g.norm()).item() for n, g in expected.items()}
    assert max(errors.values()) < 1e-5, errors


def test_padded_chunks_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks of 60 rows for 96 tokens: the 24 rows of padding change no loss and no gradient."""
    monkeypatch.setattr(head, "CHUNK_ROWS", 50)
    monkeypatch.setattr(head, "ROWS_MULTIPLE", 20)
    assert head.Chunks.of(96) == head.Chunks(count=2, rows=60, padding=24)
    test_loss_and_every_gradient("llama")


class DoublesTheLargest(FakeBackend):
    """As the vendor's compiler does for 32 tokens and 16,384 rows (docs/compiler-workarounds.md)."""

    def load(self, graph: Graph) -> LoadedGraph:
        loaded = super().load(graph)
        if not graph.name.startswith("head.chunk_forward["):
            return loaded

        def wrong(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            logits, largest, total = loaded.program(*args)
            return logits, 2 * largest, total * torch.exp(-largest)

        return LoadedGraph(graph, (), wrong)


def test_sums_that_no_right_graph_gives_are_refused() -> None:
    model = random_model("llama")
    options = CatalogOptions(sequence=48, micro_batch=2, dtype="float32")
    state = {n: p.detach() for n, p in model.named_parameters()}
    with pytest.raises(WrongGraphError, match=r"head\.chunk_forward gives [\d.e-]+ for a sum"):
        loss_and_gradients(DoublesTheLargest(), model.config.to_dict(), state, random_batches(1, 2, 48), options)


@pytest.mark.parametrize(
    ("vocab", "chunks"),
    [
        (49152, head.Chunks(3, 16384, 0)),
        (128256, head.Chunks(8, 16384, 2816)),
        (151936, head.Chunks(10, 16384, 11904)),
        (32003, head.Chunks(2, 16384, 765)),
        (20000, head.Chunks(2, 10240, 480)),
        (512, head.Chunks(1, 512, 0)),
    ],
)
def test_chunks(vocab: int, chunks: head.Chunks) -> None:
    assert head.Chunks.of(vocab) == chunks
    assert chunks.count * chunks.rows - chunks.padding == vocab
