"""Tokens are made once and kept: never half of them, never those of something else."""

from __future__ import annotations

import errno
import json
import multiprocessing.synchronize
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.families import FAMILIES
from trainer.data import files, kept_tokens, make_tokens
from trainer.data.corpus import Corpus
from trainer.data.errors import DataError
from trainer.data.kept_tokens import tokens_of
from trainer.data.tokenize import _counts, _counts_by_offsets, read_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return FAMILIES["qwen-2.5"].write(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data.jsonl", 60)


def write(path: Path, records: int) -> Path:
    kinds = [r for r in FAMILIES["qwen-2.5"].records if "tools" not in r] + [{"text": "plain"}, {"text": ""}]
    path.write_text("".join(json.dumps(kinds[i % len(kinds)] | {"id": i}) + "\n" for i in range(records)))
    return path


def same(one, other) -> bool:
    names = ("ids", "counts", "starts", "lines")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names) and one.facts == other.facts


def kept(cache: Path) -> list[Path]:
    """Folders of tokens that have their names."""
    found = Path(os.environ["XDG_CACHE_HOME"]).glob("graphcache/local/*/tokens/*")
    return sorted(p for p in found if p.is_dir())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(make_tokens, "PROGRESS_SECS", 1e9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "cache"


def test_a_second_start_makes_nothing(model, data, cache, monkeypatch):
    said = []
    first = tokens_of(data, model, (), str(cache), said.append)
    monkeypatch.setattr(make_tokens, "make_tokens", None)
    second = tokens_of(data, model, (), str(cache), said.append)
    assert same(first, second)
    assert not said
    assert not Path(cache).exists()  # a cache of graphs is none of ours to make


def test_they_follow_from_all_that_makes_them(model, data, cache, tmp_path, monkeypatch):
    def key(ignored=(), path=data, folder=model):
        return kept_tokens._key(path, folder, ignored)

    first = key()
    assert key(ignored=("id",)) != first
    other = tmp_path / "other.jsonl"
    other.write_bytes(data.read_bytes())
    assert key(path=other) == first  # the same file somewhere else
    other.write_bytes(data.read_bytes() + b"\n")
    assert key(path=other) != first
    text = tmp_path / "data.txt"
    text.write_bytes(data.read_bytes())
    assert key(path=text) != first
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"):
        folder = FAMILIES["qwen-2.5"].write(tmp_path / name)
        (folder / name).write_text((folder / name).read_text() + " " if (folder / name).exists() else "x")
        assert key(folder=folder) != first
    monkeypatch.setattr(kept_tokens, "_version", lambda package: "0")
    assert key() != first


@pytest.mark.parametrize("name", ["ids", "counts", "starts", "lines", "facts.json"])
@pytest.mark.parametrize("fault", ["flipped", "cut", "gone"])
def test_what_is_damaged_is_made_again(model, data, cache, name, fault):
    said = []
    first = tokens_of(data, model, (), str(cache), said.append)
    (folder,) = kept(cache)
    content = (folder / name).read_bytes()
    (folder / name).unlink()  # what is written below is another file: the first one is still mapped
    if fault != "gone":
        (folder / name).write_bytes(content[:-1] if fault == "cut" else bytes([content[0] ^ 1]) + content[1:])
    assert same(tokens_of(data, model, (), str(cache), said.append), first)
    assert (len(said) == 1) == (fault != "gone")
    assert (kept(cache)[0] / name).read_bytes() == content


@pytest.mark.parametrize("name", ["many.jsonl", "many.txt"])
def test_processes_make_what_this_one_makes(model, tmp_path, cache, monkeypatch, name):
    """Of a text several blocks, in which a document goes on."""
    data = write(tmp_path / name, 600)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 11)
    here = tokens_of(data, model, (), str(cache), print)
    monkeypatch.setattr(make_tokens, "SMALL_BYTES", 1 << 12)
    monkeypatch.setattr(make_tokens, "CHUNK_BYTES", 1 << 11)
    monkeypatch.setattr(make_tokens, "available_cpus", lambda: 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    made = tokens_of(data, model, (), str(cache), print)
    assert same(made, here)
    if name.endswith(".txt"):
        assert (made.facts["documents"], made.starts.tolist(), made.lines.tolist()) == (1, [0], [1])
        return
    text = data.read_text().splitlines()
    text[400] = '{"text": "a", "rejected": "b"}'
    data.write_text("\n".join(text))
    with pytest.raises(DataError, match=r"many\.jsonl:401: has rejected beside text") as raised:
        tokens_of(data, model, (), str(cache), print)
    assert "--ignore-fields rejected" in raised.value.hint


def test_without_shared_memory_this_process_makes_them(model, data, cache, monkeypatch):
    """A read-only root without /dev/shm has no locks between processes."""
    here = tokens_of(data, model, (), str(cache), print)

    def refuse(*_args, **_kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", refuse)
    monkeypatch.setattr(make_tokens, "SMALL_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "other"))
    said = []
    assert same(tokens_of(data, model, (), str(cache), said.append), here)
    assert said == []


MAKE = (
    "import sys\nfrom pathlib import Path\nfrom trainer.data import files, kept_tokens, make_tokens, token_file\n"
    "whole = token_file.Writer.finish\n"
    "def wait(self, notes):\n    print('writing', flush=True)\n    sys.stdin.read()\n    whole(self, notes)\n"
    "token_file.Writer.finish = wait\n"
    "kept_tokens.tokens_of(Path(sys.argv[1]), Path(sys.argv[2]), (), sys.argv[3], lambda line: None)\n"
)


def test_killed_while_writing_it_starts_again_clean(model, data, cache):
    argv = [sys.executable, "-c", MAKE, str(data), str(model), str(cache)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    assert [p.name.startswith(".tmp-") for p in kept(cache)] == [True]
    found = tokens_of(data, model, (), str(cache), print)
    assert [p.name.startswith(".tmp-") for p in kept(cache)] == [False]
    assert found.facts["documents"] == 50


def test_two_at_once_make_them_once(model, data, cache):
    argv = [sys.executable, "-c", MAKE.replace("'writing'", "'made'"), str(data), str(model), str(cache)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"made\n"
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as other:
            time.sleep(0.2)
            assert other.poll() is None
            process.communicate(b"")
            assert other.stdout.read() == b""
    assert (process.returncode, other.returncode) == (0, 0)
    assert len(kept(cache)) == 1


def test_without_a_place_to_keep_them_they_are_made_for_one_run(model, data, cache, tmp_path):
    (tmp_path / "xdg").write_text("a file where a folder is needed")
    said = []
    found = tokens_of(data, model, (), str(cache), said.append)
    assert found.facts["documents"] == 50
    assert len(said) == 1
    assert "cannot be kept" in said[0]


@pytest.mark.usefixtures("no_home")
def test_without_a_home_they_are_made_for_one_run(model, data, monkeypatch):
    monkeypatch.delenv("GRAPHCACHE_DIR", raising=False)
    assert tokens_of(data, model, (), None, print).facts["documents"] == 50


def test_what_nobody_used_for_a_month_goes(model, data, cache, tmp_path):
    tokens_of(data, model, (), str(cache), print)
    (old,) = kept(cache)
    os.utime(old, (0, 0))
    tokens_of(data, model, (), str(cache), print)  # a use
    assert old.stat().st_mtime > time.time() - 1000
    os.utime(old, (0, 0))
    tokens_of(write(tmp_path / "other.jsonl", 7), model, (), str(cache), print)
    assert old not in kept(cache)


def test_data_that_changes_while_it_is_read_is_an_error(model, data, cache, monkeypatch):
    made = make_tokens.make_tokens

    def change(*args):
        made(*args)
        data.write_text('{"text": "other"}\n')

    monkeypatch.setattr(make_tokens, "make_tokens", change)
    with pytest.raises(DataError, match="have changed while they were read"):
        tokens_of(data, model, (), str(cache), print)
    assert not kept(cache)


def test_memory_does_not_grow_with_the_data(model, tmp_path, cache):
    """Of a second start, with 25 MB of tokens: they are looked at, and not held."""
    data = tmp_path / "long.txt"
    data.write_text("some text in lines\n" * 260_000)
    Corpus(tokens_of(data, model, (), str(cache), print), 512)
    code = (
        "import sys, resource\nfrom pathlib import Path\nfrom trainer.data.corpus import Corpus\n"
        "from trainer.data.kept_tokens import tokens_of\nimport numpy\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "corpus = Corpus(tokens_of(Path(sys.argv[1]), Path(sys.argv[2]), (), sys.argv[3], print), 512)\n"
        "assert corpus.facts.tokens > 4_900_000\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    argv = [sys.executable, "-c", code, str(data), str(model), str(cache)]
    grown_kib = int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert grown_kib < 14_000


texts = st.lists(st.sampled_from(["a", " ", "\n", "é", "你", "😀", "<|im_end|>", "b c"]), max_size=12).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return read_tokenizer(FAMILIES["chatml"].write(tmp_path_factory.mktemp("chatml"))).tokenizer


@given(text=texts, bounds=st.lists(st.integers(0, 40), max_size=6))
def test_what_counts_is_what_all_offsets_say(tokenizer, text, bounds):
    cuts = sorted(min(bound, len(text)) for bound in bounds)
    spans = tuple((begin, end) for begin, end in zip(cuts[::2], cuts[1::2], strict=False) if end > begin)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    size = len(encoding.ids)
    expected = _counts_by_offsets(encoding, spans) if spans else np.zeros(size, dtype=bool)
    assert _counts(encoding, size, spans).tolist() == expected.tolist()


def test_documents_without_a_label_are_counted(model, tmp_path, cache):
    data = tmp_path / "data.jsonl"
    lines = [{"text": "a text"}, {"messages": [{"role": "user", "content": "q"}]}, {"text": ""}]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines * 5))
    assert Corpus(tokens_of(data, model, (), str(cache), print), 8).without_labels() == 5
