"""Tokens of a 55 MB file of conversations, against the tokenizers library's own `encode_batch`.

A tokenizer of 8,000 byte pairs is trained here on the same text. Both sides are processes of their own. The library's
is timed without reading and rendering, which are part of ours: it is handed the texts that we would tokenize.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.bench.measure import Result, python
from tests.support.real_text import write_text
from tests.support.tiny import SPECIAL, TEMPLATE

SIZE_BYTES = 55_000_000
START = """
import sys, time, resource
from pathlib import Path
from trainer.data.corpus import Corpus
from trainer.data.kept_tokens import tokens_of
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
corpus = Corpus(tokens_of(Path(sys.argv[1]), Path(sys.argv[2]), (), sys.argv[3], print), 512)
took = time.perf_counter() - began
print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, corpus.facts.tokens)
"""
LIBRARY = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
records = [json.loads(line) for line in open(sys.argv[1])]
texts = [record["text"] for record in records]
began = time.perf_counter()
tokens = sum(len(e.ids) for e in tokenizer.encode_batch(texts, add_special_tokens=False))
print(time.perf_counter() - began, 0, tokens)
"""


def measure() -> list[Result]:
    """Seconds of one run each: the first start, the library, the second start; and the memory of the second."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        model, data, rendered = _model(folder / "model"), folder / "data.jsonl", folder / "rendered.jsonl"
        _write(data, rendered)
        os.environ["XDG_CACHE_HOME"] = str(folder / "xdg")
        arguments = (str(data), str(model), str(folder / "cache"))
        first_secs, _, tokens = _run(START, *arguments)
        library_secs, _, library_tokens = _run(LIBRARY, str(rendered), str(model / "tokenizer.json"))
        second_secs, grown_kib, _ = _run(START, *arguments)
    of = f"{tokens:,.0f} tokens"
    return [
        Result("tokens, first start / encode_batch", first_secs / library_secs, 4 / 3, True,
               f"{first_secs:.1f} s against {library_secs:.1f} s for {library_tokens:,.0f} tokens; {of}"),
        Result("tokens, second start, seconds", second_secs, 1.0, True, of),
        Result("tokens, second start, MB that the process grows", grown_kib / 1e3, 30.0, True, of),
    ]  # fmt: skip


def _run(code: str, *arguments: str) -> tuple[float, ...]:
    output = subprocess.run(python("-c", code, *arguments), stdout=subprocess.PIPE, text=True, check=True).stdout
    return tuple(float(value) for value in output.split()[-3:])


def _model(folder: Path) -> Path:
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, special_tokens=list(SPECIAL))
    tokenizer.train([str(write_text(folder / "text.txt"))], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[0], "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def _write(data: Path, rendered: Path) -> None:
    """Conversations of paragraphs, no two alike, and the texts that they are rendered to."""
    paragraphs = [p for p in (data.parent / "model" / "text.txt").read_text().split("\n\n") if len(p) > 200]
    written = 0
    with data.open("w") as file, rendered.open("w") as texts:
        for number in range(10**9):
            said = [paragraphs[(number * 7 + k * 13) % len(paragraphs)] + f" {number}" for k in range(4)]
            roles = ("user", "assistant", "user", "assistant")
            messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
            written += file.write(json.dumps({"messages": messages}) + "\n")
            text = "".join(f"<|turn|>{m['role']}\n{m['content']}<|end|>\n" for m in messages)
            texts.write(json.dumps({"text": text}) + "\n")
            if written >= SIZE_BYTES:
                return
