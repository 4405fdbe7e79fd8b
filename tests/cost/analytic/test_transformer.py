"""Analytic profiles of transformers."""

from dataclasses import replace

import pytest

from hocket.cost.analytic.transformer import RECOMPUTE, BlockExecution, Precision, analytic
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
    """Layers have the seconds of their operators, for every microbatch size.

    Operations are those of products. The profile has an ordinary text form.
    """
    profile = analytic(GPT, A100, microbatch_sizes=(1, 4))
    for k, size in enumerate((1, 4)):
        for layer, block in zip(profile.layers, blocks_of(GPT, size), strict=True):
            assert layer.forward_s[k] == seconds(block.forward, A100, "float16")
            assert layer.backward_s[k] == seconds(block.backward, A100, "float16")
            assert layer.flops[k] == flops_of(block.forward)
    assert ModelProfile.from_json(profile.to_json()) == profile


def test_gradients_that_are_added_in_a_pass_of_their_own() -> None:
    """Backwards include a separate pass that adds gradients, if there is one.

    It takes the same time for any microbatch size, and changes nothing else.
    """
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
    """A parameter has 18 bytes; both copies of a tied embedding count once."""
    profile = analytic(GPT, A100)
    assert profile.unique_weights_bytes == 2 * (GPT.parameters + GPT.vocabulary * GPT.hidden)
    untied = analytic(Transformer("gpt", 4, 2304, 24, 51200, 2048, tied=False), A100)
    held = sum(layer.weights_bytes + layer.gradients_bytes + layer.optimizer_bytes for layer in untied.layers)
    assert held == 18 * (GPT.parameters + GPT.vocabulary * GPT.hidden)
    assert profile.ties == ((0, 5),)


@pytest.mark.parametrize("tensor", [1, 2])
def test_recomputation_trades_seconds_for_bytes(tensor: int) -> None:
    """Recomputation trades seconds for bytes: none, selective or full.

    Recomputed tensors are there while the backward runs.
    """
    blocks = [analytic(GPT, A100, BlockExecution(tensor, how)).layers[1] for how in RECOMPUTE]
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
    """Invalid arguments are refused.

    These are unknown words, widths that do not divide, and data types without a rate.
    """
    with pytest.raises(InputError, match=r"^recompute: found 'some'; expected one of none, selective, full"):
        analytic(GPT, A100, BlockExecution(recompute="some"))
    with pytest.raises(InputError, match=r"^tensor: found 5; expected a divisor of heads, 24"):
        analytic(GPT, A100, BlockExecution(5))
    with pytest.raises(InputError, match=r"^device a100-80gb: dtype: found 'float8'"):
        analytic(GPT, A100, precision=Precision("float8"))
