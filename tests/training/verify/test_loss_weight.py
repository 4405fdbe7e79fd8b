"""Losses that are not a mean over samples, with `Job.loss_weight`.

Every plan gives the same result as one process with whole batches.
"""

from math import isnan
from typing import Any

import pytest
import torch

import hocket
from hocket.errors import InputError, RefusedError
from hocket.planning.predict.update_semantics import synchronous_strategies
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Tokens, loss_weight
from hocket.program.check.check import check
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.stage.executable import Executable
from hocket.strategies.base.strategy import members
from hocket.training.verify.reference_loop import Trained, plain_loop, rule_loop, step_losses
from tests.runtime.helpers import uneven
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights

STEPS = 3
TOKENS = hocket.tokens(1)
# One or two a strategy: replicas, stages, ragged microbatches, and single samples that have no label that counts.
CASES = {
    "data_parallel": [
        Case("data_parallel", (1,), 8, 1),
        Case("data_parallel", (2,), 8, 3),
        Case("data_parallel", (4,), 8, 1, shard="optimizer"),
    ],
    "model_parallel": [Case("model_parallel", (1, 1))],
    "gpipe": [Case("gpipe", (1, 1, 1), 8, 3, recompute=True), Case("gpipe", (1, 2), 8, 1, shard="full")],
    "flush": [Case("flush", (2, 1), 8, 1), Case("flush", (1, 1), 8, 3)],
    "interleaved": [Case("interleaved", (1, 1), rounds=2)],
    "fully_sharded": [Case("fully_sharded", (2,), rounds=3, shard="full")],
    "waves": [Case("waves", (2, 2))],
    "burst_parallel": [Case("burst_parallel", (2, 1, 2), 8, 2)],
    "harmony": [Case("harmony", (2,), rounds=2, options={"just_in_time": False}, swap="task")],
    "pipedream": [Case("pipedream", (1, 1)), Case("pipedream", (2, 1))],
    "two_bw": [Case("two_bw", (1, 1))],
    "tick_tock": [Case("tick_tock", (1,), 8, 2)],
}
SYNCHRONOUS = [case for name in synchronous_strategies() for case in CASES[name]]
LATE = [case for name in members() if name not in synchronous_strategies() for case in CASES[name]]


def run(job: Job, case: Case) -> tuple[Result, Trained, int]:
    """Return the results of the plan and of its declared rule.

    The third value is the number of microbatches in a step.
    """
    graph = capture(job, case.microbatch_size)
    plan = case.plan(graph)
    program = plan.compile(graph)
    assert check(program) == ()
    repeats = max(1, STEPS * plan.microbatches // program.stride)
    expected = rule_loop(graph, plan, program.rule, program.microbatches(repeats))
    return run_inline(Executable(graph, plan.layout(graph), program), repeats), expected, plan.microbatches


def assert_one_process(job: Job, case: Case) -> None:
    """Losses and weights of the plainest loop over whole batches, to 1e-9."""
    found, _, microbatches = run(job, case)
    losses = step_losses(found.losses, microbatches)
    expected = plain_loop(job, 8, len(losses))
    assert losses == pytest.approx([loss for _, loss, _ in expected.losses], rel=1e-9)
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, 1e-9)


@pytest.mark.parametrize("clip_grad_norm", [None, 0.05])
@pytest.mark.parametrize("case", SYNCHRONOUS, ids=str)
@pytest.mark.thinned
def test_a_mean_over_tokens_is_that_of_one_process(case: Case, clip_grad_norm: float | None) -> None:
    """A mean over tokens equals that of one process, to 1e-9.

    This holds under every synchronous strategy, with and without clipping. The numbers of counted labels differ
    between microbatches.
    """
    assert_one_process(uneven.job(loss_weight=TOKENS, clip_grad_norm=clip_grad_norm), case)


def test_without_weights_it_is_not() -> None:
    """Without weights, losses depend on the microbatch size.

    The difference is far above rounding errors.
    """
    found, _, microbatches = run(uneven.job(), Case("data_parallel", (1,), 8, 2))
    losses, expected = step_losses(found.losses, microbatches), plain_loop(uneven.job(), 8, STEPS).losses
    assert max(abs(a - b) / b for a, (_, b, _) in zip(losses, expected, strict=True)) > 1e-3


@pytest.mark.parametrize("case", LATE, ids=str)
def test_strategies_that_update_at_other_moments_are_refused(case: Case) -> None:
    """With the reason, and what to do instead."""
    graph = capture(uneven.job(loss_weight=TOKENS), 2)
    with pytest.raises(
        RefusedError, match=r"loss_weight with pipedream, two_bw or tick_tock: .* leave loss_weight out"
    ):
        case.plan(graph).compile(graph)


@pytest.mark.parametrize("case", [*SYNCHRONOUS, *LATE], ids=str)
@pytest.mark.thinned
def test_a_sum_is_the_whole_batchs(case: Case) -> None:
    """A summed loss is the sum over the whole batch, for any microbatches.

    Under a synchronous strategy it equals one process, and under the others the declared update rule.
    """
    job = uneven.job(uneven.sum_loss, loss_weight="sum", clip_grad_norm=None)
    found, expected, _ = run(job, case)
    if case.strategy != "burst_parallel":  # whose losses are those of bundles
        assert_same_losses(found.losses, expected.losses, 1e-9)
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, 1e-9)
    if case in SYNCHRONOUS:
        assert_one_process(job, case)


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (uneven.class_loss, uneven.class_weight),
        (uneven.shifted_loss, hocket.tokens(1, shift=1)),
        (uneven.divided_loss, TOKENS),
    ],
)
def test_other_means_have_other_weights(loss: Any, weight: Any) -> None:
    """Other means have other weights.

    Cases: weighted classes, labels shifted by one, and a mean over no labels with NaN gradients.
    """
    for case in (Case("flush", (2, 1), 8, 1), Case("data_parallel", (1,), 8, 1)):
        assert_one_process(uneven.job(loss, loss_weight=weight), case)


def test_gradients_in_a_shorter_type() -> None:
    """In bfloat16 the weights of losses are exact.

    A plan without replicas equals a loop that rounds at the same places.
    """
    job = uneven.job(dtype=torch.float32, loss_weight=TOKENS, precision="bfloat16")
    found, expected, _ = run(job, Case("flush", (1, 1), 8, 2))
    assert_same_losses(found.losses, expected.losses, 1e-6)
    assert_same_weights(found.weights[0], expected.weights, 1e-5)


def test_a_batch_without_any_weight_changes_nothing() -> None:
    """A batch with weight 0 changes nothing.

    Its loss is NaN, as the mean over no labels in one process, and its gradients are zero.
    """
    job = uneven.job(uneven.divided_loss, loss_weight=hocket.tokens(1))
    for _, labels in job.data:
        labels.fill_(-100)
    before = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    graph = capture(job, 2)
    plan = Case("flush", (2, 1)).plan(graph)
    program = plan.compile(graph)
    found = run_inline(Executable(graph, plan.layout(graph), program), 1)
    assert all(isnan(loss) for loss in step_losses(found.losses, plan.microbatches))
    for weights in found.weights.values():
        assert_same_weights(weights, before, 0.0)


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (lambda batch: batch["item1"], "for a microbatch of 2 samples"),
        (lambda batch: -1, "-1 for a microbatch of 2 samples"),
        (lambda batch: float("nan"), "nan for a microbatch"),
        (lambda batch: None, "None for a microbatch"),
        (hocket.tokens("labels"), "no 'labels' in the samples"),
    ],
)
def test_what_is_no_weight_is_refused(weight: Any, found: str) -> None:
    """An invalid weight is refused when it is computed.

    The error names the key of the job.
    """
    job = uneven.job(loss_weight=weight)
    with pytest.raises(InputError, match=found) as caught:
        loss_weight(job, job.batch([0, 1]), 2)
    assert caught.value.place == "Job.loss_weight"


@pytest.mark.parametrize("weight", ["mean", 2.0, True])
def test_a_key_that_says_nothing_is_refused(weight: Any) -> None:
    """A loss weight other than a function or "sum" is refused."""
    with pytest.raises(InputError, match="expected a function of a batch"):
        uneven.job(loss_weight=weight)


def test_tokens_are_counted_as_the_loss_counts_them() -> None:
    """Tokens are counted as the loss counts them.

    Labels are found by name or position. The ignored value does not count, and with shifted labels the first label of
    a sample does not count.
    """
    labels = torch.tensor([[1, -100, 3, 0], [-100, 2, -100, 0]])
    assert hocket.tokens("labels")({"labels": labels}) == 5
    assert hocket.tokens("labels", shift=1)({"labels": labels}) == 4
    assert hocket.tokens(1, ignore=0)({"item1": labels}) == 6
    assert hocket.tokens(1) == Tokens("item1")
    for given in (1.5, True, None):
        with pytest.raises(InputError, match="tokens: key"):
            hocket.tokens(given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tokens: shift"):
        hocket.tokens("labels", shift=-1)
