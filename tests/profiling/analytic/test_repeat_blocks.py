"""A profile with added blocks equals the profile of the deeper model."""

from dataclasses import replace

import pytest

from hocket import models
from hocket.profiling.analytic.repeat_blocks import LEAST, RepeatedBlock, lengthened, repeated_block
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.layer import Tensor
from hocket.profiling.profile import ModelProfile


def sketched(blocks: int) -> ModelProfile:
    """Sketch a small GPT with this number of blocks."""
    return sketch(models.small_job("gpt", n_layer=blocks, dropout=0.0, tied=False), (2,)).profile


def facts(tensor: Tensor) -> tuple[object, ...]:
    """All facts of a profile except its name."""
    return (tensor.source, tensor.targets, tensor.kept_by, tensor.size_bytes, tensor.gradient, tensor.gradient_until)


@pytest.mark.slow
def test_a_deeper_gpt_is_a_deeper_gpt() -> None:
    """Three blocks scaled to five, and to three, equal real models.

    Graph, bytes and parameters are compared.
    """
    of = {blocks: sketched(blocks) for blocks in (3, 5)}
    block = repeated_block(of[3])
    assert block == RepeatedBlock(3, 7, 3)
    for blocks in (3, 5):
        found, expected = lengthened(of[3], block, blocks), of[blocks]
        assert sorted(map(facts, found.tensors)) == sorted(map(facts, expected.tensors))
        for one, other in zip(found.layers, expected.layers, strict=True):
            names = ("kind", "weights_bytes", "gradients_bytes", "optimizer_bytes", "stash_bytes", "working_bytes")
            names += ("backward_bytes", "fresh_bytes", "step_bytes")
            assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        assert found.unique_weights_bytes == expected.unique_weights_bytes
        assert ModelProfile.from_json(found.to_json()) == found


def test_what_repeats_nothing() -> None:
    """A block needs three repetitions and weights; the one with most weights counts."""
    assert repeated_block(chain(LEAST - 1)) is None
    assert repeated_block(chain(4, weights_bytes=[1e6, 2e6, 3e6, 4e6])) is None
    assert repeated_block(chain(4, weights_bytes=0.0)) is None
    assert repeated_block(chain(7, weights_bytes=[1e6, 1e6, 1e6, 5e6, 9e6, 9e6, 9e6])) == RepeatedBlock(4, 1, 3)


@pytest.mark.parametrize("times", [1, LEAST, 9])
def test_a_mask_that_all_blocks_read(times: int) -> None:
    """A tensor from before the blocks that all blocks read is read by all copies."""
    masked = chain(6, weights_bytes=[2e6, *[1e6] * 4, 3e6], skips=[(0, 2), (0, 3), (0, 4)])
    block = repeated_block(masked)
    assert block == RepeatedBlock(1, 1, 4)
    found = lengthened(masked, block, times)
    blocks = max(times, LEAST)
    assert found.notes[-1] == f"{blocks} blocks instead of 4"
    assert found.tensors[1].targets == tuple(range(1, blocks + 1))
    assert [tensor.targets for tensor in found.tensors[2:]] == [(k + 1,) for k in range(1, blocks + 1)]


def test_variances_grow_as_seconds_do() -> None:
    """Twelve layers instead of six, with equal seconds, have twice the variance."""
    short = replace(chain(6), whole_forward_std_s=(3.0, 3.0, 3.0, 3.0))
    block = repeated_block(short)
    assert block is not None
    deep = lengthened(short, block, 12)
    assert len(deep.layers) == 12
    assert deep.whole_forward_std_s == pytest.approx([3.0 * 2**0.5] * 4)
    assert deep.whole_backward_std_s == ()
