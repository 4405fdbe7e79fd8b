"""Weights shared by several stages of a device.

Each stage has its own copy, and steps with the sum of the gradients of all copies.
"""

from functools import cache
from itertools import pairwise

import pytest
import torch

from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured
from hocket.program.check.check import check
from hocket.program.order import together
from hocket.program.rule import Rule
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import Trained, rule_loop
from tests.runtime.helpers.everything_out import everything_out
from tests.runtime.helpers.plans import CLUSTER, assert_same_losses, assert_same_weights, captured

STEPS = 3
APART = {"grouping": False, "just_in_time": False}
CASES = [
    ("gpt", "harmony", [(0,)] * 3, {}),
    ("gpt", "harmony", [(0, 1)] * 3, {}),
    ("gpt", "harmony", [(0, 1)] * 4, APART),
    ("gpt", "harmony", [(0,), (1,), (0,)], {"mode": "pipeline"}),
    ("gpt clipped", "harmony", [(0, 1)] * 3, {"just_in_time": False}),
    ("gpt bfloat16", "harmony", [(0, 1)] * 3, {"just_in_time": False}),
    ("gpt", "interleaved", [(0,), (0,)], {}),
    ("gpt", "waves", [(0, 1), (1, 0)], {}),
    ("gpt clipped", "waves", [(0, 1), (1, 0), (0, 1)], {}),
    ("gpt", "fully_sharded optimizer", [(0, 1)] * 3, {}),
]


def plan_of(graph: Captured, strategy: str, devices: list[tuple[int, ...]], options: dict[str, object]) -> Plan:
    """Return a plan of stages with equally many layers.

    Stages on several devices have one gradient bucket, and one bucket for tied weights.
    """
    names, count = [layer.name for layer in graph.layers], len(devices)
    ends = [round(len(names) * k / count) for k in range(count + 1)]
    runs = [tuple(names[a:b]) for a, b in pairwise(ends)]
    stages = tuple(
        PlanStage(run, own, buckets=(run,) if len(own) > 1 else ()) for run, own in zip(runs, devices, strict=True)
    )
    name, _, shard = strategy.partition(" ")
    return Plan(name, "test", 8, 2, stages, CLUSTER, options, shard=shard or "none")


@cache
def one_process(model: str, dtype: torch.dtype) -> Trained:
    """The undivided model."""
    graph = captured(model, "adam", dtype)
    plan = plan_of(graph, "data_parallel", [(0,)], {})
    return rule_loop(graph, plan, Rule("sync", (plan.microbatches,), (0,)), STEPS * plan.microbatches)


@pytest.mark.parametrize(("model", "strategy", "devices", "options"), CASES, ids=str)
@pytest.mark.thinned(most=4)
def test_stages_of_one_device_that_share_weights_train_as_one_process(model, strategy, devices, options):
    """Stages of one device that share weights train as one process.

    The program is legal, and losses and weights match. The copies of shared weights stay bit-identical.
    """
    dtype = torch.float32 if "bfloat16" in model else torch.float64
    graph = captured(model, "adam", dtype)
    plan = plan_of(graph, strategy, devices, options)
    program = plan.compile(graph)
    assert check(program) == ()
    shared = [(s, b) for s, stage in enumerate(program.stages) for b, _ in stage.tied]
    assert shared
    assert all(len(together(program.stages, *one)) > 1 for one in shared)
    result = run_inline(Executable(graph, plan.layout(graph), program), STEPS)
    if not any(stage.sharded for stage in program.stages):
        swapped = run_inline(Executable(graph, plan.layout(graph), everything_out(program)), STEPS)
        assert swapped.losses == result.losses
        same_copies(swapped)
    expected, tolerance = one_process(model, dtype), 1e-9 if dtype is torch.float64 else 2e-2
    assert_same_losses(result.losses, expected.losses, tolerance)
    for weights in result.weights.values():
        assert_same_weights(weights, expected.weights, tolerance)
    same_copies(result)


def same_copies(result: Result) -> None:
    """Assert that all copies of a weight are equal on all devices.

    The same holds for their optimizer state.
    """
    seen: dict[str, torch.Tensor] = {}
    twice = set()
    for device in result.devices.values():
        for runner in device.stages.values():
            swapping, plain = device.swapping, not runner.part.shape.sharded
            state = runner.weights.state() if plain else {}
            own = {f"{n} {k}": v for n, entries in state.items() for k, v in entries.items()}
            found = runner.weights.whole() | own
            for name, tensor in (found if swapping is None else swapping.readable(found)).items():
                if name in seen:
                    twice.add(name)
                    assert torch.equal(tensor, seen[name]), name
                seen.setdefault(name, tensor)
    assert "tok.weight" in twice
