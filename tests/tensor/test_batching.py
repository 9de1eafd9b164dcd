import torch
from hypothesis import given
from hypothesis import strategies as st

from heatproof.tensor.batching import blocks, chunks


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20))
def test_blocks_are_the_pairs_of_a_chunk(samples, variants, size):
    table = torch.arange(samples * variants).view(samples, variants)
    for sample, variant in chunks(samples, variants, size):
        chunk, parts = table[sample, variant], blocks(sample, variant, variants)
        assert len(parts) <= 3
        for part in parts:
            assert torch.equal(part.select(chunk), table[part.samples, part.variants])
        assert sum(part.select(chunk).numel() for part in parts) == len(chunk)
