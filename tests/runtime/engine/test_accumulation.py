"""Gradient accumulation: microbatches of a replica match a plain loop.

The plain loop accumulates gradients before each step.
"""

import copy

import pytest
from torch import Tensor

from hocket.profiling.data.source import order
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import Case, assert_same_weights, captured

STEPS = 4
MODEL = "gpt plain"


def accumulated(batch_size: int, size: int) -> tuple[list[float], dict[str, Tensor]]:
    """Train with a plain accumulation loop.

    Each microbatch's loss is weighted by its samples. There is one step for each batch.
    """
    job = captured(MODEL).job
    model = copy.deepcopy(job.model)
    optimizer = job.optimizer(model.parameters())
    losses = []
    for step in range(STEPS):
        indices = order(step, batch_size, len(job.data), job.seed)
        optimizer.zero_grad()
        whole = 0.0
        for first in range(0, batch_size, size):
            own = indices[first : first + size]
            args, _, targets, _ = job.split(job.batch(own))
            loss = job.loss(model(*args), *targets) * (len(own) / batch_size)
            loss.backward()
            whole += float(loss.detach())
        optimizer.step()
        losses.append(whole)
    return losses, {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("batch_size", "size"), [(8, 2), (8, 4), (7, 2), (7, 3)])
@pytest.mark.parametrize(
    ("strategy", "widths"), [("data_parallel", (1,)), ("data_parallel", (2,)), ("flush", (1, 1)), ("gpipe", (2, 1))]
)
@pytest.mark.thinned(most=6)
def test_every_plan_accumulates_as_one_process(
    strategy: str, widths: tuple[int, ...], batch_size: int, size: int
) -> None:
    """Every plan accumulates as one process does, to 1e-9.

    Cases: one and several replicas, one and several stages, and a smaller last microbatch. Losses and weights are
    compared.
    """
    graph = captured(MODEL)
    plan = Case(strategy, widths, batch_size, size).plan(graph)
    program = plan.compile(graph)
    found = run_inline(Executable(graph, plan.layout(graph), program), STEPS * plan.microbatches // program.stride)
    assert found.position == STEPS * batch_size
    losses, weights = accumulated(batch_size, size)
    each = [0.0] * STEPS
    for microbatch, loss, samples in found.losses:
        each[microbatch // plan.microbatches] += loss * samples / batch_size
    assert each == pytest.approx(losses, rel=1e-9)
    for device in found.weights.values():
        assert_same_weights(device, weights, 1e-9)
