"""Swap volumes of memory managers equal the formulas.

The counted bytes are those of docs/explanation/harmony.md, for every tensor of Figure 5(a).
"""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from hocket.cost.swapping.volumes import (
    Scheme,
    SwapKind,
    SwapLayer,
    data_parallel,
    harmony_data,
    harmony_pipeline,
    pipeline_parallel,
    swap_volumes,
)
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.program.instruction import ValueKind
from hocket.program.passes.swapping.settings import Swapping
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import CLUSTER, momentum

WIDTHS = (12, 20, 8, 16, 4)  # of what goes from layer to layer
SAMPLES = 2
KINDS = {
    ValueKind.WEIGHTS: SwapKind.WEIGHTS,
    ValueKind.ACCUMULATOR: SwapKind.GRADIENTS,
    ValueKind.REDUCED: SwapKind.GRADIENTS,
    ValueKind.OPTIMIZER: SwapKind.OPTIMIZER,
    ValueKind.GRADIENT: SwapKind.ACTIVATION_GRADIENTS,
}


def model(batch_size: int) -> Captured:
    """Linear layers."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(WIDTHS)))
    data = [(torch.randn(WIDTHS[0]), torch.randn(WIDTHS[-1])) for _ in range(32)]
    return capture(Job(layers, nn.MSELoss(), data, momentum, batch_size), SAMPLES)


def moved(devices: dict[int, Device]) -> Counter[ValueKind]:
    """Bytes that have gone to hosts and come from them so far."""
    found = Counter[ValueKind]()
    for device in devices.values():
        assert device.memory is not None
        found += device.memory.in_bytes + device.memory.out_bytes
    return found


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("scheme", "times"),
    [
        (data_parallel(1, 3), 14),  # (4m + 2)N
        (data_parallel(2, 2), 20),
        (harmony_data(2, 2), 6),  # 3N
        (pipeline_parallel(2, 2), 18),  # 4mN + 2
        (harmony_pipeline(2, 2), 3),
        (harmony_pipeline(3, 1), 3),
    ],
    ids=str,
)
def test_what_managers_count_is_the_formulas(scheme: Scheme, times: int, recompute: bool) -> None:
    """The counted bytes of a training run equal the formulas.

    Under the paper's assumptions, weights are as printed: (4m + 2)N|W|, 3N|W| and 3|W|. All other kinds are as
    derived. A manager does not know why an activation is swapped, so stash and activations are one sum. The batch is
    not swapped in.
    """
    own, count = len(WIDTHS) - 1, scheme.microbatches * scheme.devices
    graph = model(SAMPLES * count)
    names = [str(k) for k in range(own)]
    places = [(scheme.forward_device(k, own),) if scheme.pipeline else tuple(range(scheme.devices)) for k in range(own)]
    stages = tuple(
        PlanStage((name, "loss") if name == names[-1] else (name,), where, recompute)
        for name, where in zip(names, places, strict=True)
    )
    options: dict[str, Any] = {
        "mode": "pipeline" if scheme.pipeline else "data",
        "grouping": scheme.grouped,
        "just_in_time": scheme.just_in_time,
    }
    swap = Swapping("task", writes_clean=scheme.writes_clean)
    plan = Plan("harmony", "test", SAMPLES * count, SAMPLES, stages, CLUSTER, options, swap=swap)
    program = plan.compile(graph)
    first = run_inline(
        Executable(graph, plan.layout(graph), program), 1
    )  # before its first step an optimizer has no state
    before = moved(first.devices)
    second = run_inline(Executable(graph, plan.layout(graph), program), 1, first.position, first.devices)
    found = Counter[SwapKind]()
    for what, size in (moved(second.devices) - before).items():
        found[KINDS.get(what, SwapKind.STASH)] += size
    expected = {kind: volume.host_bytes for kind, volume in swap_volumes(layers(recompute), scheme).items()}
    expected[SwapKind.STASH] += expected.pop(SwapKind.ACTIVATIONS) - count * bytes_of(WIDTHS[0])
    assert expected == {kind: found[kind] for kind in expected}
    assert found[SwapKind.WEIGHTS] == times * sum(p.nbytes for p in graph.job.model.parameters())


def layers(recompute: bool) -> list[SwapLayer]:
    """Return the layers for the formulas, in single precision.

    A layer keeps its input, and the last layer keeps the inputs of the loss.
    """
    found = []
    for k, (a, b) in enumerate(pairwise(WIDTHS)):
        state, kept = 4.0 * (a + 1) * b, bytes_of(a)
        if k == len(WIDTHS) - 2:
            kept += bytes_of(b) * (1 if recompute else 2)  # the target, and what it is compared with
        found.append(SwapLayer(state, state, state, kept, bytes_of(a)))
    return found


def bytes_of(width: int) -> float:
    """Return the bytes of a microbatch with `width` numbers in each sample."""
    return 4.0 * SAMPLES * width
