"""Compute in bfloat16 or float16, with weights and sums in a longer type.

Every plan gives the same result as one process that rounds at the same places.
"""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from hocket.profiling.capture.capture import Captured, capture
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import rule_loop
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured, uneven_weight
from tests.tiers import alternating, in_turn

STEPS = 5
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


SYNCHRONOUS = [
    Case("data_parallel", (3,)),
    Case("flush", (1, 1)),
    Case("gpipe", (2, 1), batch_size=7),
    Case("interleaved", (1, 1), rounds=2),
    Case("fully_sharded", (2,), rounds=2, shard="full"),
    Case("harmony", (2,), rounds=3, options={"just_in_time": False}, swap="task"),
    Case("harmony", (1, 1), rounds=2, options={"mode": "pipeline", "just_in_time": False}, swap="task"),
    Case("waves", (2, 2), rounds=2),
]


@cache
def half(optimizer: str, loud: float = 1.0, clip: float | None = None, weighted: bool = False) -> Captured:
    """A job of float32 that computes in float16.

    Arguments:
        loud: factor of the loss; gradients of a large loss overflow.
    """
    job = captured("gpt untied", optimizer, torch.float32).job
    loss = job.loss
    assert loss is not None

    def louder(*args: torch.Tensor) -> torch.Tensor:
        return loud * loss(*args)

    weight = uneven_weight if weighted else None
    return capture(replace(job, precision="float16", loss=louder, clip_grad_norm=clip, loss_weight=weight), 2)


@pytest.mark.parametrize(
    ("case", "loud", "clip", "weighted"),
    alternating(SYNCHRONOUS, [(1.0, None, False), (20.0, 0.25, False), (0.5, None, True)]),
)
@pytest.mark.thinned(most=3)
def test_losses_are_scaled_as_by_torch(case: Case, loud: float, clip: float | None, weighted: bool) -> None:
    """Losses, weights and skipped updates are those of a plain loop with `torch.amp.GradScaler`.

    With a large loss, the first updates overflow and are skipped on all devices.
    """
    graph = half("momentum", loud, clip, weighted)
    found, microbatches = run(graph, case)
    plan = case.plan(graph)
    expected = rule_loop(graph, plan, plan.compile(graph).rule, microbatches)
    tolerance = 1e-6 if max(case.widths) == 1 else 1e-2  # sums of replicas have another order
    assert_same_losses(found.losses, expected.losses, tolerance)
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, tolerance)
    scalers = [device.scaler for device in found.devices.values()]
    assert len({(scaler.state, scaler.skipped) for scaler in scalers if scaler is not None}) == 1
    skipped = 0 if scalers[0] is None else scalers[0].skipped
    assert (skipped > 0) == (loud > 1 or weighted)
    assert skipped < STEPS


def test_small_gradients_are_not_lost() -> None:
    """Gradients that float16 rounds to zero arrive, because the loss is scaled before they are computed."""
    case = Case("flush", (1, 1))
    found = run(half("momentum", 1e-5), case)[0]
    before = dict(half("momentum", 1e-5).job.own.model.named_parameters())  # type: ignore[union-attr]
    bare = half("momentum", 1e-5)
    lost = run(replace(bare, loss_scaled=False), case)[0]

    def moved(result: Result) -> float:
        weights = {name: tensor for device in result.weights.values() for name, tensor in device.items()}
        return sum(float((tensor - before[name].detach()).abs().sum()) for name, tensor in weights.items())

    assert moved(found) > 2 * moved(lost)


@pytest.mark.parametrize("policy", ["stop", "skip", "go"])
def test_gradients_that_stay_infinite_are_the_guards_business(policy: str) -> None:
    """At the smallest scale, the policy of the run decides; weights stay finite in any case."""
    graph = half("momentum", 1e30)
    plan = Case("flush", (1, 1)).plan(graph)
    program = plan.compile(graph)
    told: list[dict[str, Any]] = []
    guards = {number: Guard(policy, told.append) for number in program.devices}
    found = run_inline(Executable(graph, plan.layout(graph), program), 20, guards=guards)
    assert all(t.isfinite().all() for weights in found.weights.values() for t in weights.values())
    kinds = {event["kind"] for event in told}
    assert kinds == {"overflow", {"stop": "halt", "skip": "skipped", "go": "warning"}[policy]}


def test_a_scale_is_resumed_with_the_state() -> None:
    """All devices of a pipeline have one scale, also where a device has no weights to train."""
    job = captured("gpt untied", "momentum", torch.float32).job
    frozen = copy.deepcopy(job.model)
    for parameter in list(frozen.parameters())[-2:]:
        parameter.requires_grad_(False)
    loss = job.loss
    assert loss is not None
    graph = capture(replace(job, model=frozen, precision="float16", loss=lambda *args: 2e3 * loss(*args)), 2)
    found = run(graph, Case("flush", (1, 1, 1)))[0]
    states = {device.scaler.state for device in found.devices.values() if device.scaler is not None}
    assert len(states) == 1
    assert states.pop().scale < 65536


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
