from __future__ import annotations

import json
import os
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny import SPECIAL, byte_tokenizer
from trainer.data.corpus import IGNORED, Corpus
from trainer.data.errors import DataError
from trainer.data.kept_tokens import tokens_of
from trainer.data.token_file import Writer, open_tokens
from trainer.data.tokens import Tokens, joined


@pytest.fixture
def tokenizer(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    byte_tokenizer().save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[0]}))
    (model / "config.json").write_text('{"model_type": "llama"}')
    return model


def read_corpus(path, seq, model):
    return Corpus(tokens_of(path, model, (), None, print), seq)


def corpus(*counts, seq=4):
    """Documents with these flags of counting tokens; token ids count up through all of them."""
    documents, next_id = [], 0
    for line, flags in enumerate(counts, 1):
        ids = np.arange(next_id, next_id + len(flags), dtype=np.int32)
        documents.append(Tokens(line, ids, np.asarray(flags, dtype=bool)))
        next_id += len(flags)
    return Corpus(in_file(documents), seq)


def in_file(documents):
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder, "tokens"))
        writer.add(joined(documents))
        writer.finish({"template_date": None, "never_stops": False})
        return open_tokens(Path(folder, "tokens"))


def predicted(found, *, seed=0, micro_batch=2, accum=2, epoch=0):
    """Every label of one pass, and the token before it, in order of labels."""
    pairs = []
    steps = found.steps_per_epoch(micro_batch * accum)
    for step in range(epoch * steps, (epoch + 1) * steps):
        for batch in found.step(step, seed=seed, micro_batch=micro_batch, accum=accum):
            rows = zip(batch.tokens.flatten().tolist(), batch.labels.flatten().tolist(), strict=True)
            pairs.extend((label, token) for token, label in rows if label != IGNORED)
    return sorted(pairs)


documents_of_flags = st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=8)


@given(documents_of_flags, st.integers(1, 7), st.integers(1, 3), st.integers(1, 3), st.integers(0, 5))
def test_a_pass_predicts_each_token_that_counts_once_from_the_one_before(counts, seq, micro_batch, accum, seed):
    flags = [flag for document in counts for flag in document]
    expected = [(i, i - 1) for i, flag in enumerate(flags) if flag and i > 0]
    if not expected:
        with pytest.raises(DataError, match="no token counts"):
            corpus(*counts, seq=seq)
        return
    found = corpus(*counts, seq=seq)
    for epoch in (0, 1):
        assert predicted(found, seed=seed, micro_batch=micro_batch, accum=accum, epoch=epoch) == expected
    assert found.facts.label_tokens == len(expected)


@given(documents_of_flags.filter(lambda d: any(f for x in d for f in x[1:])), st.integers(1, 40))
def test_no_step_is_without_a_label(counts, seq):
    found = corpus(*counts, seq=seq)
    for step in range(found.steps_per_epoch(1)):
        assert [batch.label_tokens > 0 for batch in found.step(step, seed=1, micro_batch=1, accum=1)] == [True]


def test_the_order_is_a_function_of_seed_and_step_alone():
    flags = [True] * 50  # 13 sequences of 4: a pass is 7 steps

    def order(found, seed, steps):
        return [[b.where for b in found.step(step, seed=seed, micro_batch=1, accum=2)] for step in steps]

    straight = order(corpus(flags), 3, range(14))
    assert order(corpus(flags), 3, range(9, 14)) == straight[9:]
    assert order(corpus(flags), 4, range(14)) != straight
    assert sorted(chain(*straight[:7])) == sorted(chain(*straight[7:]))
    assert straight[:7] != straight[7:]


def test_fewer_tokens_than_one_sequence_are_padded_and_padding_never_counts():
    found = corpus([False, True, True], seq=8)
    (batch,) = found.step(0, seed=0, micro_batch=1, accum=4)
    assert batch.tokens.tolist() == [[0, 1, 0, 0, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [[1, 2] + [IGNORED] * 6]


def test_the_last_step_of_a_pass_has_fewer_micro_batches():
    found = corpus([True] * 25)
    assert found.facts.sequences == 6
    sizes = [len(found.step(s, seed=0, micro_batch=1, accum=4)) for s in range(4)]
    assert sizes == [4, 2, 4, 2]


def test_a_micro_batch_without_enough_sequences_is_padded_with_masked_ones():
    found = corpus([True] * 13)
    batches = found.step(0, seed=0, micro_batch=2, accum=2)
    assert [tuple(b.labels.shape) for b in batches] == [(2, 4), (2, 4)]
    assert batches[1].labels[1].tolist() == [IGNORED] * 4


def test_sequences_whose_labels_are_all_masked_are_left_out_and_counted():
    found = corpus([False] * 9 + [True] * 4)
    assert (found.facts.sequences, found.facts.sequences_without_labels) == (1, 2)
    assert predicted(found) == [(i, i - 1) for i in range(9, 13)]


def test_empty_documents_are_counted():
    facts = corpus([], [False, True], []).facts
    assert (facts.documents, facts.empty_documents, facts.tokens) == (1, 2, 2)


def test_a_batch_says_where_it_came_from():
    found = corpus([True] * 5, [True] * 3, [True] * 5)
    places = {b.where for s in range(3) for b in found.step(s, seed=0, micro_batch=1, accum=1)}
    assert places == {
        "sequence 0 (tokens 0-4, line 1)",
        "sequence 1 (tokens 4-8, lines 1-3)",
        "sequence 2 (tokens 8-12, line 3)",
    }


def test_a_token_without_a_row_is_an_error():
    found = corpus([True] * 12)
    found.check_vocabulary(12)
    with pytest.raises(DataError, match="gives token 11 and the model has 11 rows"):
        found.check_vocabulary(11)


def test_the_numbers_of_a_file_say_what_was_left_out(tmp_path, tokenizer):
    lines = [{"text": "abc"}, {"text": ""}, {"prompt": "a prompt of many sequences", "completion": "d"}]
    path = tmp_path / "data.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    facts = read_corpus(path, 4, tokenizer).facts.as_json()
    assert facts.pop("digest")
    assert facts == {
        "documents": 2,
        "empty_documents": 1,
        "tokens": 4 + 28,
        "label_tokens": 3 + 2,
        "sequences": 2,
        "sequences_without_labels": 6,
        "template_date": None,
        "never_stops": False,
    }


def test_data_without_anything_says_how_many_documents_are_empty(tmp_path, tokenizer):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": ""}\n{"text": ""}\n')
    with pytest.raises(DataError, match="0 documents, 2 empty ones, 0 tokens"):
        read_corpus(path, 4, tokenizer)


def test_a_pipe_is_refused_before_it_is_opened(tmp_path, tokenizer):
    os.mkfifo(tmp_path / "data.jsonl")  # opening it would wait for a writer
    with pytest.raises(DataError, match="not a regular file"):
        read_corpus(tmp_path / "data.jsonl", 4, tokenizer)
    with pytest.raises(DataError, match="not a regular file"):
        read_corpus(tmp_path, 4, tokenizer)
    with pytest.raises(DataError, match=r"no\.jsonl cannot be read"):
        read_corpus(tmp_path / "no.jsonl", 4, tokenizer)


def test_a_link_to_a_file_is_read(tmp_path, tokenizer):
    (tmp_path / "there.txt").write_text("some text")
    (tmp_path / "data.txt").symlink_to(tmp_path / "there.txt")
    assert read_corpus(tmp_path / "data.txt", 4, tokenizer).facts.documents == 1


def test_the_digest_is_of_tokens_and_what_counts():
    first = corpus([1, 1, 0, 1], [1, 1]).facts.digest
    assert corpus([1, 1, 0, 1], [1, 1], seq=8).facts.digest == first
    assert corpus([1, 1, 1, 1], [1, 1]).facts.digest != first
    assert corpus([1, 1, 0, 1], [1, 1, 1]).facts.digest != first


def test_other_files_and_tokenizers_have_other_digests(tmp_path, tokenizer):
    path = tmp_path / "data.txt"
    path.write_text("some text")
    first = read_corpus(path, 4, tokenizer).facts.digest
    path.write_text("some texts")
    assert read_corpus(path, 4, tokenizer).facts.digest != first
    path.write_text("some text")
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[1]}))
    assert read_corpus(path, 4, tokenizer).facts.digest != first
