"""Programs that swap train bit-identically to programs that do not.

The inline engine runs them, with everything swapped out between any two instructions.
"""

import pytest
import torch

from hocket.profiling.capture.capture import Captured
from hocket.program.instruction import ValueKind
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.everything_out import everything_out
from tests.runtime.helpers.plans import Case, captured

CASES = [
    ("gpt", "adam", Case("data_parallel", (1,), 4)),
    ("gpt bfloat16", "adam", Case("data_parallel", (2,), 4)),
    ("gpt clipped", "momentum", Case("flush", (1, 1), 4)),
    ("gpt", "momentum", Case("gpipe", (2, 1), recompute=True)),
    ("lstm", "momentum", Case("interleaved", (1, 1), 4, rounds=2)),
    ("inception", "gentle", Case("data_parallel", (2,), 4)),
]


def both(graph: Captured, case: Case, repeats: int = 3) -> tuple[Result, Result]:
    """A case as it is, and with everything out."""
    plan = case.plan(graph)
    program = plan.compile(graph)
    return run_inline(Executable(graph, plan.layout(graph), program), repeats), run_inline(
        Executable(graph, plan.layout(graph), everything_out(program)), repeats
    )


@pytest.mark.parametrize(("model", "optimizer", "case"), CASES, ids=str)
@pytest.mark.thinned(most=3)
def test_swapped_training_is_the_same_to_the_bit(model, optimizer, case):
    """Swapped training is bit-identical.

    Losses, weights and optimizer state are compared, with dropout, tied weights, clipping, master weights and all
    tensors that autograd keeps.
    """
    plain, swapped = both(captured(model, optimizer, torch.float32), case)
    assert swapped.losses == plain.losses
    for device, weights in plain.weights.items():
        assert set(swapped.weights[device]) == set(weights)
        for name, tensor in weights.items():
            assert torch.equal(swapped.weights[device][name], tensor), name
    for number, device in plain.devices.items():
        _same(device, swapped.devices[number])


def _same(plain: Device, swapped: Device) -> None:
    expected, found = plain.model.state()["optimizer"], swapped.model.state()["optimizer"]
    for name, entries in expected.items():
        assert set(found[name]) == set(entries)
        for key, value in entries.items():
            same = (
                torch.equal(found[name][key], value) if isinstance(value, torch.Tensor) else found[name][key] == value
            )
            assert same, f"{name}: {key}"
    assert swapped.swapping is not None
    moved = swapped.swapping.memory.in_bytes
    kinds = {ValueKind.WEIGHTS, ValueKind.OPTIMIZER, ValueKind.STASH}
    assert all(moved[what] for what in kinds), "so much was swapped"
