from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.graphs.layer import MASKED
from trainer.model.rope import causal_mask, document_mask


@given(st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(1, n), max_size=n))))
def test_a_token_sees_its_own_document_up_to_itself(sequence_and_starts) -> None:
    sequence, found = sequence_and_starts
    starts = sorted(start for start in found if start < sequence)
    document = [sum(start <= position for start in starts) for position in range(sequence)]
    mask = document_mask(sequence, starts, group=2)
    assert mask.shape == (2 * sequence, sequence)
    assert torch.equal(mask[:sequence], mask[sequence:])
    for query in range(sequence):
        for key in range(sequence):
            seen = key <= query and document[key] == document[query]
            assert mask[query, key] == (0 if seen else MASKED)
    if not starts:
        assert torch.equal(mask, causal_mask(sequence, 2))
