"""Parameter groups and learning rates under every strategy.

They equal a plain loop with torch's optimizer and scheduler.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import RefusedError
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.checks.elementwise_step import kept_keys
from hocket.profiling.data.source import order
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import scheduled
from hocket.profiling.job.optimizer import group_names
from hocket.program.rule import Rule
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from hocket.runtime.tensor_parallel.shard_model import Division, split_of
from hocket.runtime.update.sharding import check_sharing
from hocket.strategies.base.strategy import members
from hocket.training.verify.reference_loop import rule_loop
from hocket.training.worker.prepared import check_subtasks
from hocket.util.compatibility import Feature
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured
from tests.tiers import alternating

RATES, DECAYS = (0.01, 0.004), (0.3, 0.0)
BATCH = 8
CASES = {
    "burst_parallel": [Case("burst_parallel", (2, 1, 2))],
    "data_parallel": [
        Case("data_parallel", (2,)),
        Case("data_parallel", (3,), shard="optimizer"),
        Case("data_parallel", (2,), shard="full"),
    ],
    "flush": [Case("flush", (2, 1)), Case("flush", (1, 1), swap="task"), Case("flush", (2, 2), shard="optimizer")],
    "fully_sharded": [Case("fully_sharded", (2,), rounds=3)],
    "gpipe": [Case("gpipe", (1, 1), recompute=True)],
    "harmony": [Case("harmony", (1, 1), rounds=2, options={"mode": "pipeline"}, swap="task")],
    "interleaved": [Case("interleaved", (1, 1), rounds=2)],
    "model_parallel": [Case("model_parallel", (1, 1, 1))],
    "pipedream": [
        Case("pipedream", (1, 1)),
        Case("pipedream", (2, 1), shard="optimizer"),
        Case("pipedream", (3, 1)),  # an update of the first stage spans two steps now and then
        Case("pipedream", (1, 1), options={"naive": True}),
        Case("pipedream", (1, 1, 1), options={"vertical_sync": True}),
    ],
    "tick_tock": [Case("tick_tock", (2,)), Case("tick_tock", (1,), shard="none")],
    "two_bw": [Case("two_bw", (1, 1)), Case("two_bw", (2, 1), shard="optimizer")],
    "waves": [Case("waves", (2, 2), rounds=2)],
}
ALL = [case for cases in CASES.values() for case in cases]


class Noting(torch.optim.AdamW):
    """AdamW that notes the rates of its groups in each step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.noted: list[tuple[float, ...]] = []

    def step(self, closure: Any = None) -> Any:
        """Note, then step."""
        self.noted.append(tuple(group["lr"] for group in self.param_groups))
        return super().step(closure)


def by_name(named: Sequence[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """No weight decay for norms and biases, which have a rate of their own."""
    free = [pair for pair in named if "norm" in pair[0] or pair[0].endswith("bias")]
    rest = [pair for pair in named if all(pair[1] is not p for _, p in free)]
    return grouped(rest, free)


def by_dimensions(params: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Return the same groups, by the number of dimensions of weights."""
    return grouped([p for p in params if p.ndim > 1], [p for p in params if p.ndim <= 1])


def grouped(*groups: Sequence[Any]) -> torch.optim.Optimizer:
    """A group of each."""
    found = [{"params": g, "lr": lr, "weight_decay": d} for g, lr, d in zip(groups, RATES, DECAYS, strict=True)]
    return Noting(found, lr=RATES[0])


def factor(step: int) -> float:
    """A warm-up, then a decay with no two factors alike."""
    return (step + 1) / 3 if step < 3 else 0.97 ** (step - 2)


class Net(nn.Module):
    """Layers with norms; the first and the last may share their weight."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6)
        self.middle = nn.Sequential(nn.Tanh(), nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))
        self.middle.add_module("norm", nn.LayerNorm(6))
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """(samples, 6) to (samples, 6)."""
        return self.last(self.norm(self.middle(self.first(x))))


def job(optimizer: Callable[..., Any] = by_name, tied: bool = False, **options: Any) -> Job:
    """A small job of double precision."""
    draw = torch.Generator().manual_seed(1)
    data = [tuple(torch.randn(6, generator=draw, dtype=torch.float64) for _ in range(2)) for _ in range(24)]
    return Job(Net(tied).double(), nn.MSELoss(), data, optimizer, BATCH, **options)


@cache
def graph_of(optimizer: Callable[..., Any] = by_name, tied: bool = False) -> Captured:
    """The job, captured, with a schedule."""
    return capture(job(optimizer, tied, lr_schedule=factor), 2)


@cache
def by_torch(steps: int, tied: bool) -> tuple[list[float], dict[str, Tensor], list[tuple[float, ...]]]:
    """Losses, weights and rates of an ordinary loop with torch's LambdaLR."""
    wanted = job(tied=tied)
    optimizer = by_name(list(wanted.model.named_parameters()))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses = []
    for step in range(steps):
        x, y = wanted.batch(order(step, BATCH, len(wanted.data), wanted.seed)).values()
        loss = wanted.loss(wanted.model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, {n: p.detach() for n, p in wanted.model.named_parameters()}, optimizer.noted


def noted(result: Any) -> dict[int, list[tuple[float, ...]]]:
    """The rates of every step of each stage."""
    runners = {s: runner for device in result.devices.values() for s, runner in device.stages.items()}
    return {s: r.weights.optimizer.noted for s, r in runners.items() if r.weights.optimizer is not None}


def test_every_strategy_is_tried() -> None:
    """The cases include every strategy of the registry."""
    assert sorted(CASES) == sorted(members())
    for name, cases in CASES.items():
        assert {case.strategy for case in cases} == {name}


@pytest.mark.parametrize(("case", "optimizer"), alternating(ALL, [by_name, by_dimensions]))
@pytest.mark.thinned
def test_groups_and_rates_are_those_of_a_plain_loop(case: Case, optimizer: Callable[..., Any]) -> None:
    """Groups and learning rates equal those of a plain loop.

    Under every strategy, each group has its own rate and decay. Losses and weights equal the plain loop of the
    declared rule, and for synchronous rules an ordinary loop with LambdaLR. In each update, the rate is bit-identical
    to base rate times factor.
    """
    graph = graph_of(optimizer)
    plan = case.plan(graph)
    program = plan.compile(graph)
    repeats = -(-6 * plan.microbatches // program.stride)
    found = run_inline(Executable(graph, plan.layout(graph), program), repeats)
    steps, rest = divmod(found.position, BATCH)
    expected = rule_loop(graph, plan, program.rule, program.microbatches(repeats))
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, 1e-9)
    rates = noted(found)
    if program.rule.synchronous:
        assert rest == 0
        losses, weights, by_lambda = by_torch(steps, False)
        assert all(own == by_lambda for own in rates.values())
        assert_same_weights(found.weights[0], weights, 1e-9)
        assert sum(loss * n for _, loss, n in found.losses) / BATCH == pytest.approx(sum(losses), rel=1e-9)
    else:
        assert_same_losses(found.losses, expected.losses, 1e-9)
    assert rates
    for stage, own in rates.items():
        first = [u * program.rule.batch[stage] // plan.microbatches for u in range(len(own))]
        assert own == [tuple(rate * factor(step) for rate in RATES) for step in first]
        assert len(own) >= 6


@pytest.mark.parametrize("case", [Case("flush", (1, 1)), Case("flush", (2, 1)), Case("two_bw", (1, 1))], ids=str)
def test_a_tied_weight_is_in_one_group(case: Case) -> None:
    """Under its first name on both stages that share it."""
    graph = graph_of(by_name, True)
    plan = case.plan(graph)
    program = plan.compile(graph)
    found = run_inline(Executable(graph, plan.layout(graph), program), 6)
    expected = rule_loop(graph, plan, program.rule, program.microbatches(6))
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, 1e-9)
    if program.rule.synchronous:
        assert_same_weights(found.weights[0], by_torch(found.position // BATCH, True)[1], 1e-9)


def test_a_later_segment_goes_on_with_its_steps_rates() -> None:
    """A later segment continues with the rates of its own steps.

    Two segments of a synchronous run equal one ordinary loop. In an asynchronous run, the second segment begins with
    the rates of its own first step, as a resumed run does.
    """
    for case in (Case("flush", (2, 1)), Case("pipedream", (1, 1)), Case("tick_tock", (2,))):
        graph = graph_of()
        plan = case.plan(graph)
        program = plan.compile(graph)
        repeats = 3 * plan.microbatches // program.stride
        first = run_inline(Executable(graph, plan.layout(graph), program), repeats)
        done = {stage: len(own) for stage, own in noted(first).items()}
        position = -(-first.position // BATCH) * BATCH
        second = run_inline(Executable(graph, plan.layout(graph), program), repeats, position, first.devices)
        for stage, own in noted(second).items():
            step = position // BATCH
            assert own[done[stage]] == tuple(rate * factor(step) for rate in RATES)
        if program.rule.synchronous:
            assert_same_weights(second.weights[0], by_torch(second.position // BATCH, False)[1], 1e-9)


def test_the_plain_rule_loop_is_an_ordinary_loop() -> None:
    """The loop by the synchronous rule is an ordinary loop.

    With microbatches, it has the weights of torch's optimizer with LambdaLR.
    """
    graph = graph_of()
    plan = Case("gpipe", (1, 1)).plan(graph)
    found = rule_loop(graph, plan, Rule("sync", (4, 4), (0, 0)), 7 * 4)
    assert_same_weights(found.weights, by_torch(7, False)[1], 1e-11)


def test_precision_and_subtasks_keep_the_groups() -> None:
    """Precision and subtasks keep the groups.

    Master weights are in the groups of their weights. All parts of a weight that is computed in subtasks are in its
    group.
    """
    for options, tolerance in (({"subtask_bytes": 200.0}, 1e-9), ({"precision": "bfloat16"}, 0.05)):
        wanted = job(lr_schedule=factor, **options)
        graph = capture(wanted, 2)
        plan = Case("flush", (1, 1)).plan(graph)
        if graph.parts:
            assert len({part.name for part in graph.parts.values()}) >= 2
            check_subtasks(wanted, plan.tensor)
        found = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 6)
        weights = {name: tensor for own in found.weights.values() for name, tensor in own.items()}
        expected = by_torch(6, False)[1]
        for name, part in graph.parts.items():
            rows = expected[part.name][part.first : part.first + len(weights[name])]
            assert torch.allclose(weights[name], rows, rtol=tolerance)
        if not graph.parts:
            assert_same_weights(weights, expected, tolerance)


def test_members_of_groups_have_their_part_in_the_whole_weights_group() -> None:
    """A member's part of a weight is in the group of the whole weight.

    This holds for matrices and biases, if groups are chosen by name or by number of dimensions.
    """
    for optimizer in (by_name, by_dimensions):
        graph = captured("gpt", "adam")
        whole = Job(graph.job.model, graph.job.loss, graph.job.data, optimizer, 8, inputs=graph.job.inputs)
        division = Division(whole, split_of(whole, 2), 1)
        own = {n: nn.Parameter(p.detach()) for n, p in division.job.model.named_parameters()}
        made = scheduled(division.job, own).optimizer
        names = {id(p): n for n, p in own.items()}
        found = [{names[id(p)] for p in group["params"]} for group in made.param_groups]
        assert found == [set(group) for group in group_names(whole)]
        assert own["blocks.0.mlp.up.bias"].shape != dict(whole.model.named_parameters())["blocks.0.mlp.up.bias"].shape
        assert division.divided


def test_an_optimizer_that_has_state_from_the_start() -> None:
    """An optimizer may have state from the start.

    Adagrad creates its state at construction. Replicas that share the step, and subtasks, begin with their parts of
    it.
    """

    def adagrad(named: Sequence[tuple[str, Tensor]]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(named, lr=0.05, initial_accumulator_value=0.3)

    for shard, options in (("optimizer", {}), ("full", {}), ("none", {"subtask_bytes": 200.0})):
        graph = capture(job(adagrad, **options), 2)
        plan = Case("data_parallel", (2,), shard=shard).plan(graph)
        found = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 4)
        expected = rule_loop(graph, plan, Rule("sync", (4,), (0,)), 16)
        for weights in found.weights.values():
            assert_same_weights(weights, expected.weights, 1e-9)
    whole = job(adagrad)
    plain = adagrad(list(whole.model.named_parameters()))
    for step in range(4):
        x, y = whole.batch_of_step(step).values()
        plain.zero_grad()
        whole.loss(whole.model(x), y).backward()
        plain.step()
    for weights in found.weights.values():  # of the last: parts of rows
        for name, part in graph.parts.items():
            rows = dict(whole.model.named_parameters())[part.name][part.first : part.first + len(weights[name])]
            assert torch.allclose(weights[name], rows, rtol=1e-9)


class ByNorm(torch.optim.SGD):
    """Divides gradients of groups that say so by their norms."""

    def step(self, closure: Any = None) -> Any:
        """Divide, then step."""
        for group in self.param_groups:
            for p in group["params"] if group["by_norm"] else ():
                p.grad = p.grad / p.grad.norm()
        return super().step(closure)


def test_a_single_group_that_looks_at_whole_weights_is_found() -> None:
    """A group whose optimizer needs whole weights is found.

    It may be any group. If no group needs whole weights, replicas may share the step. An optimizer that refuses a part
    of a weight is refused too.
    """

    def split(matrices: bool, vectors: bool) -> Callable[..., Any]:
        def made(params: Sequence[Tensor]) -> torch.optim.Optimizer:
            halves = ([p for p in params if p.ndim > 1], matrices), ([p for p in params if p.ndim <= 1], vectors)
            return ByNorm([{"params": own, "by_norm": norm} for own, norm in halves], lr=0.1)

        return made

    def muon(params: Sequence[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Muon([p for p in params if p.ndim == 2], lr=0.1)

    way = Feature.SHARD_OPTIMIZER
    check_sharing(job(split(False, False)), 2, way)
    for matrices, vectors in ((True, False), (False, True)):
        with pytest.raises(
            RefusedError, match="ByNorm: shard: optimizer with an optimizer that looks at whole weights"
        ):
            check_sharing(job(split(matrices, vectors)), 2, way)
    matrix = Job(nn.Linear(4, 4, bias=False), nn.MSELoss(), [(torch.ones(4), torch.ones(4))] * 4, muon, 2)
    with pytest.raises(RefusedError, match="Muon: shard: optimizer with an optimizer that looks at whole weights"):
        check_sharing(matrix, 2, way)


def test_what_is_kept_of_each_weight_follows_its_group_and_shape() -> None:
    """The state of a weight depends on its group and shape.

    Adafactor has other state for matrices than for vectors. Momentum may be set for one group only.
    """

    def mixed(params: Sequence[Tensor]) -> torch.optim.Optimizer:
        matrices, vectors = ([p for p in params if (p.ndim > 1) == big] for big in (True, False))
        return torch.optim.SGD([{"params": matrices, "momentum": 0.9}, {"params": vectors}], lr=0.1)

    kept = kept_keys(job(mixed))
    assert kept["first.weight"] == {"momentum_buffer"}
    assert kept["first.bias"] == frozenset()
    kept = kept_keys(job(lambda params: torch.optim.Adafactor(params, lr=0.1)))
    assert kept["first.weight"] != kept["first.bias"]


@pytest.mark.parametrize(("shard", "way"), [("optimizer", "shard: optimizer"), ("full", "shard: full")])
def test_a_device_refuses_to_share_such_a_step_by_the_way_of_the_plan(shard: str, way: str) -> None:
    """The error names what the plan says."""
    graph = capture(job(lambda params: ByNorm([{"params": list(params), "by_norm": True}], lr=0.1)), 2)
    plan = Case("data_parallel", (2,), shard=shard).plan(graph)
    with pytest.raises(RefusedError, match=f"ByNorm: {way} with an optimizer that looks at whole weights"):
        run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 1)
