"""Clipping by the norm of all gradients.

A plan gives the result of `torch.nn.utils.clip_grad_norm_` in one process.
"""

from dataclasses import replace

import pytest
import torch

from hocket.errors import RefusedError
from hocket.profiling.capture.capture import Captured, capture
from hocket.program.check.check import check
from hocket.program.instruction import Kind
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import plain_loop, rule_loop
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured
from tests.tiers import alternating

STEPS = 4
CASES = [
    Case("data_parallel", (1,)),
    Case("data_parallel", (3,), batch_size=7),
    Case("gpipe", (1, 1, 1), recompute=True),
    Case("flush", (1, 1)),
    Case("flush", (2, 2)),
    Case("flush", (2, 1), batch_size=7),
    Case("interleaved", (1, 1), rounds=2),
    Case("interleaved", (2, 2), rounds=2),
]


def with_norm(model: str, norm: float | None, optimizer: str = "momentum", size: int = 2) -> Captured:
    """A model of the tests, its gradients clipped to this norm."""
    return capture(replace(captured(model, optimizer).job, clip_grad_norm=norm), size)


# Twice as often with the GPT, of which two stages share a weight.
@pytest.mark.parametrize(("case", "model", "norm"), alternating(CASES, [("gpt", 0.25), ("gpt", 0.25), ("lstm", 0.05)]))
@pytest.mark.thinned(most=2)
def test_every_plan_clips_as_one_process(model: str, norm: float, case: Case) -> None:
    """Every plan clips as one process does, to 1e-8.

    Cases: stages, replicas, chunks, tied weights and a ragged microbatch. Losses and weights are compared.
    """
    graph = with_norm(model, norm)
    plan = case.plan(graph)
    program = plan.compile(graph)
    assert check(program) == ()
    repeats = -(-STEPS * plan.microbatches // program.stride)
    found = run_inline(Executable(graph, plan.layout(graph), program), repeats)
    expected = rule_loop(graph, plan, program.rule, program.microbatches(repeats))
    assert_same_losses(found.losses, expected.losses, 1e-8)
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, 1e-8)


@pytest.mark.parametrize("norm", [0.25, 1.4])
def test_the_rule_clips_as_torch_does(norm: float) -> None:
    """The rule clips as torch does.

    An update accumulated over microbatches and clipped equals the clipped update of a whole batch. This holds if all
    or few updates are clipped.
    """
    graph = with_norm("gpt plain", norm)
    plan = Case("flush", (1, 1)).plan(graph)
    found = rule_loop(graph, plan, plan.compile(graph).rule, STEPS * plan.microbatches)
    expected = plain_loop(graph.job, 8, STEPS)
    assert_same_weights(found.weights, expected.weights, 1e-9)
    unclipped = plain_loop(with_norm("gpt plain", None).job, 8, STEPS)
    assert any(not torch.allclose(expected.weights[n], t, rtol=1e-6) for n, t in unclipped.weights.items())


def test_a_norm_that_nothing_reaches_changes_nothing() -> None:
    """The factor is never above one: to the bit."""
    case = Case("flush", (2, 1))
    results = []
    for norm in (None, 1e9):
        graph = with_norm("gpt", norm)
        plan = case.plan(graph)
        results.append(run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 2))
    assert results[0].losses == results[1].losses
    for device, weights in results[0].weights.items():
        assert all(torch.equal(tensor, results[1].weights[device][name]) for name, tensor in weights.items())


def test_one_norm_a_device_and_one_sum() -> None:
    """Each device computes one norm, and all devices share one sum.

    A device of several stages combines their squares. A single device needs no sum.
    """
    for case, norms, sums in ((Case("interleaved", (1, 1), rounds=2), 2, 2), (Case("data_parallel", (1,)), 1, 0)):
        graph = with_norm("gpt untied", 0.25)
        kinds = [(i.kind, i.writes[0].what) for _, i in case.plan(graph).compile(graph).instructions() if i.writes]
        assert sum(kind is Kind.NORM for kind, _ in kinds) == norms
        assert sum(pair == (Kind.ALL_REDUCE, "norm") for pair in kinds) == sums


@pytest.mark.parametrize(
    "case",
    [
        Case("pipedream", (1, 1)),
        Case("pipedream", (2, 1), options={"in_flight": 1}),
        Case("pipedream", (1, 1), options={"naive": True}),
        Case("two_bw", (1, 1)),
        Case("two_bw", (2, 2)),
    ],
    ids=str,
)
def test_strategies_without_a_common_moment_are_refused(case: Case) -> None:
    """Clipping is refused for stages that update at different times.

    They never know the norm of one update. The error names the strategies and an alternative.
    """
    graph = with_norm("gpt untied", 0.25)
    with pytest.raises(
        RefusedError,
        match=r"clip_grad_norm with pipedream or two_bw: the norm needs the gradients of all stages .* use flush",
    ):
        case.plan(graph).compile(graph)
