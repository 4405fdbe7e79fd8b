"""Clipping by the norm of each stage.

Every plan gives the result of one process that clips the gradients of the stages separately.
"""

import copy
from dataclasses import replace

import pytest
import torch

from hocket.errors import InputError, RefusedError
from hocket.planning.predict.update_semantics import updates_of
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.program.check.check import check
from hocket.program.instruction import Kind
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.nan_guard.guard import with_norm
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import Trained, rule_loop
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured, uneven_weight

STEPS = 4
NORM = 0.1
APART = [
    Case("pipedream", (1, 1)),
    Case("pipedream", (2, 1)),
    Case("pipedream", (1, 2), batch_size=7),
    Case("pipedream", (1, 1), options={"naive": True}),
    Case("pipedream", (1, 1), options={"vertical_sync": True}),
    Case("two_bw", (1, 1, 1), batch_size=7),
]
TOGETHER = [
    Case("flush", (1, 1)),
    Case("flush", (2, 1), batch_size=7),
    Case("interleaved", (1, 1), rounds=2),
    Case("waves", (2, 2), rounds=2),
    Case("harmony", (2,), rounds=3, swap="task"),
    Case("tick_tock", (1,)),
]


def clipped(
    over: str = "stage", norm: float | None = NORM, precision: str | None = None, weighted: bool = False
) -> Captured:
    """A job that clips, or not if there is no norm."""
    dtype = torch.float64 if precision is None else torch.float32
    job = captured("gpt plain untied", "momentum", dtype).job
    weight = uneven_weight if weighted else None
    over = over if norm is not None else "model"
    job = replace(job, clip_grad_norm=norm, clip_grad_norm_over=over, precision=precision, loss_weight=weight)
    return capture(job, 2)


def trained(graph: Captured, case: Case) -> tuple[Result, Trained]:
    """At least so many steps of a case, and those of the plain loop."""
    plan = case.plan(graph)
    program = plan.compile(graph)
    assert check(program) == ()
    repeats = -(-STEPS * plan.microbatches // program.stride)
    found = run_inline(Executable(graph, plan.layout(graph), program), repeats)
    return found, rule_loop(graph, plan, program.rule, program.microbatches(repeats))


def assert_same(found: Result, expected: Trained, tolerance: float) -> None:
    """Losses and weights agree."""
    assert_same_losses(found.losses, expected.losses, tolerance)
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, tolerance)


def apart(one: Trained, other: Trained) -> float:
    """Largest relative difference of two runs' losses."""
    return max(abs(a - b) / abs(b) for (_, a, _), (_, b, _) in zip(one.losses, other.losses, strict=True))


@pytest.mark.parametrize("case", [*APART, *TOGETHER], ids=str)
@pytest.mark.thinned(most=2)
def test_each_stage_clips_as_one_process(case: Case) -> None:
    """Losses and weights are those of the plain loop, to 1e-12, and not those without clipping."""
    found, expected = trained(clipped(), case)
    assert_same(found, expected, 1e-12)
    plan = case.plan(clipped(norm=None))
    program = plan.compile(clipped(norm=None))
    free = rule_loop(clipped(norm=None), plan, program.rule, len(expected.losses))
    assert apart(expected, free) > 1e-3


def test_the_loop_clips_each_stage_as_torch_does() -> None:
    """A plain loop with one call of torch for the parameters of each stage, written here again."""
    graph, case = clipped(), Case("flush", (1, 1))
    plan = case.plan(graph)
    found = rule_loop(graph, plan, plan.compile(graph).rule, STEPS * plan.microbatches)
    job = replace(graph.job, model=copy.deepcopy(graph.job.model))
    own = [
        {name for layer in stage.layers for name in graph.layers[graph.index_of(layer)].parameters}
        for stage in plan.stages
    ]
    assert own[0]
    assert own[1]
    assert not own[0] & own[1]
    weights = dict(job.model.named_parameters())
    optimizer = job.optimizer(weights.values())
    for step in range(STEPS):
        loss = job.loss_of(job.batch_at(step * 8, 8))
        optimizer.zero_grad()
        loss.backward()
        norms = [torch.nn.utils.clip_grad_norm_([weights[n] for n in names], NORM) for names in own]
        assert min(norms) > NORM
        optimizer.step()
    assert_same_weights({n: p.detach() for n, p in weights.items()}, found.weights, 1e-10)


def test_one_stage_is_the_whole_model() -> None:
    """With a single stage, both norms are one."""
    case = Case("data_parallel", (2,))
    assert_same(trained(clipped("stage"), case)[0], trained(clipped("model"), case)[1], 1e-12)


def test_cuts_change_the_result() -> None:
    """With several stages, the norms differ from that of the model, and those of other cuts."""
    two, three = (trained(clipped(), Case("flush", widths))[1] for widths in ((1, 1), (1, 1, 1)))
    whole = trained(clipped("model"), Case("flush", (1, 1)))[1]
    assert apart(two, whole) > 1e-4
    assert apart(two, three) > 1e-4


@pytest.mark.parametrize("case", [Case("flush", (1, 1)), Case("interleaved", (1, 1), rounds=2)], ids=str)
@pytest.mark.parametrize(
    ("precision", "weighted"), [(None, True), ("float16", False), ("float16", True), ("bfloat16", False)]
)
@pytest.mark.thinned(most=3)
def test_scaled_and_weighted_gradients_are_clipped_as_means(case: Case, precision: str | None, weighted: bool) -> None:
    """The norm is that of the mean gradients: divided by the sum of loss weights and by the loss scale."""
    found, expected = trained(clipped(precision=precision, weighted=weighted), case)
    assert_same(found, expected, 1e-12 if precision is None else 1e-5)


def test_a_norm_of_the_model_can_be_measured_beside() -> None:
    """With `on_nan: skip`, all devices know the norm of the model; each stage still clips by its own."""
    case = Case("flush", (1, 1))
    graph = with_norm(clipped())
    plan = case.plan(graph)
    program = plan.compile(graph)
    assert Kind.NORM in {instruction.kind for _, instruction in program.instructions()}
    assert_same(run_inline(Executable(graph, plan.layout(graph), program), STEPS), trained(clipped(), case)[1], 1e-12)


@pytest.mark.parametrize("case", [*APART[:2], *TOGETHER[:2]], ids=str)
def test_no_device_waits_for_a_norm(case: Case) -> None:
    """The program has the instructions of a job without clipping; its stages say how they clip."""
    program, free = (case.plan(graph).compile(graph) for graph in (clipped(), clipped(norm=None)))
    assert list(program.instructions()) == list(free.instructions())
    assert all(stage.clips_alone and not stage.needs_norm for stage in program.stages)
    assert str(program) != str(free)


@pytest.mark.parametrize(
    ("model", "case", "reason"),
    [
        ("gpt", Case("flush", (1, 1)), "with weights tied across stages: .* put the layers that share weights on one"),
        ("gpt untied", Case("flush", (2, 1), shard="optimizer"), "with shard: optimizer: .* use shard: none"),
        ("gpt untied", Case("fully_sharded", (2,), shard="full"), "with shard: full: .* use shard: none"),
    ],
)
def test_gradients_that_no_stage_has_whole_are_refused(model: str, case: Case, reason: str) -> None:
    """The error says what to use instead."""
    job = replace(captured(model).job, clip_grad_norm=NORM, clip_grad_norm_over="stage")
    graph = capture(job, 2)
    with pytest.raises(RefusedError, match=f"clip_grad_norm_over: stage {reason}"):
        case.plan(graph).compile(graph)


def test_the_refusal_of_the_models_norm_names_the_stages_norm() -> None:
    """Who asks PipeDream for the norm of the model is told of the other one."""
    graph = clipped("model")
    with pytest.raises(RefusedError, match="clip_grad_norm_over: stage"):
        Case("pipedream", (1, 1)).plan(graph).compile(graph)


def job_with(**more: object) -> Job:
    """A small job with these settings."""
    return replace(captured("gpt plain untied").job, **more)


def test_wrong_settings_of_a_job() -> None:
    """Another word, and a rule without a norm."""
    with pytest.raises(InputError, match=r"Job\.clip_grad_norm_over: found 'layer'; expected 'model' or 'stage'"):
        job_with(clip_grad_norm=1.0, clip_grad_norm_over="layer")
    with pytest.raises(InputError, match=r"'stage' without a norm; expected clip_grad_norm as well"):
        job_with(clip_grad_norm_over="stage")


def test_a_plan_says_that_it_depends_on_its_cuts() -> None:
    """In the column "as one process", for plans with several stages; a single stage has the norm of the model."""
    graph = clipped()
    said = {}
    for case in (Case("flush", (1, 1)), Case("data_parallel", (2,)), Case("tick_tock", (1,)), Case("two_bw", (1, 1))):
        updates = updates_of(case.strategy, case.plan(graph).shapes(graph), 8, 2, {})
        said[case.strategy] = updates.text, [one.kind for one in updates.differences]
    assert said == {
        "flush": ("same but clipping", ["clipping"]),
        "data_parallel": ("same", []),
        "tick_tock": ("two waves", []),
        "two_bw": ("1 update old", ["clipping"]),
    }
