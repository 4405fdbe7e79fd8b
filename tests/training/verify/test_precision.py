"""Compute in bfloat16, with weights and sums in a longer type.

Every plan gives the same result as one process that rounds at the same places.
"""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

from hocket.profiling.capture.capture import Captured, capture
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import rule_loop
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured
from tests.tiers import in_turn

STEPS = 6
EXACT = [
    Case("data_parallel", (1,)),
    Case("flush", (1, 1)),
    Case("flush", (1, 1, 1), batch_size=7, recompute=True),
    Case("interleaved", (1, 1), rounds=2),
    Case("pipedream", (1, 1)),
    Case("pipedream", (1, 1, 1), options={"naive": True}),
    Case("two_bw", (1, 1)),
]
REPLICAS = [Case("flush", (2, 1), batch_size=7), Case("data_parallel", (3,)), Case("pipedream", (2, 1))]
JOBS = [("gpt untied", "adam"), ("lstm", "momentum"), ("inception", "gentle")]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Short products are spread over threads at a loss."""
    torch.set_num_threads(1)


@cache
def short(model: str, optimizer: str, clip: float | None = None) -> Captured:
    """A job of float32 that computes in bfloat16."""
    job = captured(model, optimizer, torch.float32).job
    return capture(replace(job, precision="bfloat16", clip_grad_norm=clip), 2)


def run(graph: Captured, case: Case) -> tuple[Result, int]:
    """A case for at least so many updates; how many microbatches that are."""
    plan = case.plan(graph)
    program = plan.compile(graph)
    repeats = -(-STEPS * max(program.rule.batch) // program.stride)
    return run_inline(Executable(graph, plan.layout(graph), program), repeats), program.microbatches(repeats)


def check(graph: Captured, case: Case, tolerance: float) -> None:
    """Losses and weights are those of the plain loop."""
    found, microbatches = run(graph, case)
    plan = case.plan(graph)
    expected = rule_loop(graph, plan, plan.compile(graph).rule, microbatches)
    assert_same_losses(found.losses, expected.losses, tolerance)
    for weights in found.weights.values():
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
        assert_same_weights(weights, expected.weights, tolerance)


@pytest.mark.parametrize(("model", "optimizer", "case"), in_turn(EXACT, *JOBS))
@pytest.mark.thinned(most=2)
def test_pipelines_round_as_one_process_does(model: str, optimizer: str, case: Case) -> None:
    """A pipeline rounds as one process does.

    Without replicas, every sum has the same order. Only the last bit of float32 may differ.
    """
    check(short(model, optimizer), case, 1e-6)


@pytest.mark.parametrize("case", REPLICAS, ids=str)
@pytest.mark.parametrize(("model", "optimizer"), JOBS)
@pytest.mark.thinned
def test_replicas_add_up_in_float32(model: str, optimizer: str, case: Case) -> None:
    """Replicas add gradients in float32.

    Another order of sums in float32 may change the last bit of a weight in bfloat16, and no more.
    """
    check(short(model, optimizer), case, 2e-2)


@pytest.mark.parametrize("case", [Case("flush", (1, 1)), Case("interleaved", (1, 1), rounds=2)], ids=str)
def test_clipped_gradients_are_those_of_float32(case: Case) -> None:
    """The norm is that of the sums."""
    check(short("gpt untied", "momentum", 0.25), case, 1e-6)


def test_small_steps_are_not_lost() -> None:
    """Steps that are nothing to a weight of 8 bits are there in its master."""
    rate = 1e-5
    job = replace(captured("gpt untied", "momentum", torch.float32).job, precision="bfloat16")
    graph = capture(replace(job, optimizer=lambda p: torch.optim.SGD(p, lr=rate)), 2)
    found, _ = run(graph, Case("flush", (1, 1)))
    before = dict(job.model.named_parameters())
    weights = {name: tensor for device in found.weights.values() for name, tensor in device.items()}
    moved = [name for name, tensor in weights.items() if not torch.equal(tensor, before[name])]
    stuck = [n for n in moved if torch.equal(weights[n].bfloat16(), before[n].bfloat16())]
    assert stuck


def test_losses_are_near_those_of_float32_and_not_the_same() -> None:
    """Losses in bfloat16 are near those in float32, but not equal.

    So the model computes in another type.
    """
    case = Case("flush", (1, 1))
    long = run(captured("gpt untied", "adam", torch.float32), case)[0].losses
    found = run(short("gpt untied", "adam"), case)[0].losses
    apart = [abs(a - b) / b for (_, a, _), (_, b, _) in zip(found, long, strict=True)]
    assert 0 < max(apart) < 1e-2


def test_state_moves_between_precisions() -> None:
    """Training continues in another precision.

    Weights are in float32, and the optimizer state moves with them.
    """
    case = Case("flush", (1, 1))
    graph = short("gpt untied", "adam")
    first, _ = run(graph, case)
    state = {"weights": {}, "frozen": {}, "buffers": {}, "optimizer": {}}
    for device in first.devices.values():
        for part, entries in device.model.state().items():
            state[part].update(copy.deepcopy(dict(entries)))
    assert {t.dtype for t in state["weights"].values()} == {torch.float32}
    losses = []
    for other in (captured("gpt untied", "adam", torch.float32), short("gpt untied", "adam")):
        plan = Case("gpipe", (1, 1, 1)).plan(other)
        program = plan.compile(other)
        begun = run_inline(Executable(other, plan.layout(other), program), 0)
        for device in begun.devices.values():
            device.model.load(state)
        weights = {name: t for device in begun.devices.values() for name, t in device.model.tensors().items()}
        assert all(torch.equal(tensor, state["weights"][name]) for name, tensor in weights.items())
        more = run_inline(Executable(other, plan.layout(other), program), 1, first.position, begun.devices)
        losses.append(more.losses)
    again = run_inline(
        Executable(graph, case.plan(graph).layout(graph), case.plan(graph).compile(graph)),
        1,
        first.position,
        first.devices,
    )
    assert_same_losses(losses[0], again.losses, 1e-2)
    assert_same_losses(losses[1], again.losses, 1e-6)
