"""Profiles that are worked out."""

from dataclasses import replace

import pytest

from hocket.cost.analytic.transformer import RECOMPUTE, Precision, analytic
from hocket.cost.kernels import seconds
from hocket.errors import InputError
from hocket.hardware import catalog
from hocket.profiling.analytic.operators import MemoryPass, flops_of
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.analytic.transformer_blocks import blocks_of
from hocket.profiling.profile import ModelProfile

A100 = catalog.device_type("a100-80gb")
GPT = Transformer("gpt", 4, 2304, 24, 51200, 2048)


def test_layers_have_their_operators_seconds() -> None:
    """For every microbatch size; operations are those of products; a profile as any other, with its text."""
    profile = analytic(GPT, A100, microbatch_sizes=(1, 4))
    for k, size in enumerate((1, 4)):
        for layer, block in zip(profile.layers, blocks_of(GPT, size), strict=True):
            assert layer.forward_s[k] == seconds(block.forward, A100, "float16")
            assert layer.backward_s[k] == seconds(block.backward, A100, "float16")
            assert layer.flops[k] == flops_of(block.forward)
    assert ModelProfile.from_json(profile.to_json()) == profile


def test_gradients_that_are_added_in_a_pass_of_their_own() -> None:
    """Backwards of all layers take that pass longer, however large the microbatch is; nothing else does."""
    own, without = (
        analytic(GPT, A100, precision=Precision(adding_bytes=moved), microbatch_sizes=(1, 4)) for moved in (10, 0)
    )
    for k, size in enumerate((1, 4)):
        for layer, block in zip(own.layers, blocks_of(GPT, size), strict=True):
            adding = MemoryPass(10 * block.parameters)
            assert layer.backward_s[k] == seconds((*block.backward, adding), A100, "float16")
    for one, other in zip(own.layers, without.layers, strict=True):
        assert replace(one, backward_s=other.backward_s) == other


def test_bytes_of_weights_and_state() -> None:
    """18 bytes a parameter, of which the tied embedding has two copies that are counted once."""
    profile = analytic(GPT, A100)
    assert profile.unique_weights_bytes == 2 * (GPT.parameters + GPT.vocabulary * GPT.hidden)
    untied = analytic(Transformer("gpt", 4, 2304, 24, 51200, 2048, tied=False), A100)
    held = sum(layer.weights_bytes + layer.gradients_bytes + layer.optimizer_bytes for layer in untied.layers)
    assert held == 18 * (GPT.parameters + GPT.vocabulary * GPT.hidden)
    assert profile.ties == ((0, 5),)


@pytest.mark.parametrize("tensor", [1, 2])
def test_recomputation_trades_seconds_for_bytes(tensor: int) -> None:
    """Nothing, what attention keeps, all but a block's input; what is made again is there while the backward runs."""
    blocks = [analytic(GPT, A100, tensor=tensor, recompute=how).layers[1] for how in RECOMPUTE]
    kept = [block.stash_bytes[0] for block in blocks]
    assert kept[0] > kept[1] > kept[2] == 2 * GPT.sequence * GPT.hidden
    assert [block.stash_bytes[0] + block.working_bytes[0] for block in blocks] == pytest.approx(
        [kept[0] + blocks[0].working_bytes[0]] * 3
    )
    assert blocks[0].backward_s[0] < blocks[1].backward_s[0] < blocks[2].backward_s[0]
    assert blocks[2].backward_s[0] == blocks[0].backward_s[0] + blocks[0].forward_s[0]
    again = 2 if tensor > 1 else 0
    assert [block.reductions for block in blocks] == [(again, again), (again, again), (again, 2 * again)]


def test_what_is_refused() -> None:
    """A word that is none, a width that does not divide, numbers that there is no rate for."""
    with pytest.raises(InputError, match=r"^recompute: found 'some'; expected one of none, selective, full"):
        analytic(GPT, A100, recompute="some")
    with pytest.raises(InputError, match=r"^tensor: found 5; expected a divisor of heads, 24"):
        analytic(GPT, A100, tensor=5)
    with pytest.raises(InputError, match=r"^device a100-80gb: dtype: found 'float8'"):
        analytic(GPT, A100, precision=Precision("float8"))
