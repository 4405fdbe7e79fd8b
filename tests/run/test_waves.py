"""Two waves on every device: the product against figure 9 of Wavelet, written out in a loop."""

import pytest
import torch

from hocket.run.engines.inline import run_inline
from hocket.run.rule_loop import rule_loop
from tests.run.plans import Case, captured

ONE_EACH = Case("tick_tock", (2,), batch_size=8, microbatch_size=2)  # a microbatch for each replica of a wave


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_devices_give_the_very_bits_of_the_declared_rule(optimizer, dtype):
    """A microbatch a replica, halves of equal size: what differs from the loop is a power of two, so that nothing is rounded otherwise."""
    graph = captured("gpt", optimizer, dtype)
    plan = ONE_EACH.plan(graph)
    program = plan.compile(graph)
    result = run_inline(graph, plan, program, 4)
    expected = rule_loop(graph, plan, program.rule, len(result.losses))
    assert result.losses == expected.losses
    for weights in result.weights.values():
        for name, tensor in weights.items():
            assert torch.equal(tensor, expected.weights[name]), name
