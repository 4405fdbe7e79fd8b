"""A transformer's layers as operators: published operations and bytes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.profiling.analytic.operators import MemoryPass, Product, flops_of
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.analytic.transformer_blocks import BlockCost, blocks_of

GPT3 = Transformer("gpt3", 96, 12288, 96, 51200, 2048)


def flops(blocks: tuple[BlockCost, ...], again: bool) -> float:
    """Operations of a forward and a backward; recomputed blocks run two forwards."""
    return sum(
        flops_of(block.forward) * (2 if again and block.kind == "block" else 1) + flops_of(block.backward)
        for block in blocks
    )


@given(st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_operations_are_those_of_equation_4_2(samples: int, tensor: int, again: bool) -> None:
    """Operations equal equation 4.2, with and without recomputation, divided evenly."""
    found = flops(blocks_of(GPT3, samples, tensor), again) * tensor
    assert found == pytest.approx(GPT3.model_flops(samples, again), rel=1e-12)


@given(st.integers(1, 4), st.sampled_from([1, 2, 4, 8]))
def test_what_a_block_keeps(samples: int, tensor: int) -> None:
    """A block keeps the bytes of Korthikanti et al. 2022, equations 2 and 4.

    With selective recomputation, equation 6.
    """
    s, h, heads = GPT3.sequence, GPT3.hidden, GPT3.heads
    block = blocks_of(GPT3, samples, tensor)[1]
    assert block.stash_bytes == samples * s * h * (10 + 24 / tensor + 5 * heads * s / (h * tensor))
    block = blocks_of(GPT3, samples, tensor, sequence_parallel=True)[1]
    assert block.stash_bytes == samples * s * h / tensor * (34 + 5 * heads * s / h)
    assert block.stash_bytes - block.again_bytes == 34 * samples * s * h / tensor


def test_reductions() -> None:
    """A block has two all-reduces each way; embedding and output have one each.

    See section 4.2.3 of the dissertation. A single device has none.
    """
    assert [block.reductions for block in blocks_of(replace(GPT3, layers=2), 1, 4)] == [(1, 0), (2, 2), (2, 2), (0, 1)]
    assert {block.reductions for block in blocks_of(GPT3, 1)} == {(0, 0)}


def test_gathers_of_slices() -> None:
    """With slices, each all-reduce becomes an all-gather and a reduce-scatter.

    A backward also gathers the input of both column-parallel products of a block again. Norms work on slices, so their
    gradients are summed. See Korthikanti et al. 2022, section 4.2.
    """
    blocks = blocks_of(replace(GPT3, layers=2), 3, 4, sequence_parallel=True)
    assert [block.gathers for block in blocks] == [(0, 1), (4, 6), (4, 6), (1, 0)]
    assert {block.gathered_bytes for block in blocks} == {3 * GPT3.sequence * GPT3.hidden * 2}
    assert blocks[1].reductions == (0, 2)
    assert {block.gathers for block in blocks_of(GPT3, 3, 4)} == {(0, 0)}


def test_a_backward_has_two_products_for_each() -> None:
    """A backward has two products for each forward product; fused attention one more."""
    for block in blocks_of(GPT3, 1):
        forward, backward = (
            [one for one in part if isinstance(one, Product)] for part in (block.forward, block.backward)
        )
        assert len(backward) == 2 * len(forward)
        assert flops_of(backward) == 2 * flops_of(forward)
    fused = blocks_of(replace(GPT3, fused_attention=True, causal=False), 1)[1]
    scores = 2.0 * GPT3.sequence**2 * GPT3.hidden
    assert flops_of(fused.backward) - 2 * flops_of(fused.forward) == scores


def test_what_fusing_saves() -> None:
    """Without fusion there are more passes over more bytes.

    Fused attention moves no scores and keeps none.
    """

    def moved(model: Transformer) -> float:
        block = blocks_of(model, 1)[1]
        return sum(one.moved_bytes for one in (*block.forward, *block.backward) if isinstance(one, MemoryPass))

    fused, unfused = moved(GPT3), moved(replace(GPT3, fused_passes=False))
    attention = moved(replace(GPT3, fused_attention=True))
    assert attention < fused < unfused
    scores = GPT3.heads * GPT3.sequence**2
    assert fused - attention >= scores * 2 * 2
    kept = [blocks_of(model, 1)[1].stash_bytes for model in (GPT3, replace(GPT3, fused_attention=True))]
    assert kept[0] - kept[1] == 5 * scores - 4 * GPT3.heads * GPT3.sequence  # but one exact number a row


def test_a_network_with_gates() -> None:
    """A gated network has three products instead of two, and fewer keys than queries."""
    llama = Transformer("70b", 80, 8192, 64, 32000, 4096, 8, 28672, True, False, False, False, False)
    block = blocks_of(llama, 1)[1]
    tokens, h = llama.sequence, llama.hidden
    attention = 2 * tokens * h * (h + 2 * 1024) + 2 * tokens * h * h + 4 * tokens**2 * h
    assert flops_of(block.forward) == attention + 3 * 2 * tokens * h * 28672
