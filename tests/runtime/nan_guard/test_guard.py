"""Guard against losses, gradients and weights that are not finite.

The guard finds them, keeps them out of the weights and traces their origin.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import inf, isfinite, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import RefusedError
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.nan_guard.guard import MOST_SKIPS, Finding, Guard, faults, judged_together
from hocket.runtime.nan_guard.not_finite import not_finite, origin
from hocket.runtime.stage.data_stream import Stream
from hocket.runtime.stage.executable import Executable
from hocket.strategies.base.strategy import members
from hocket.util.compatibility import REFUSED, Feature
from tests.runtime.helpers.plans import Case
from tests.tiers import alternating

BATCH, SIZE, STEPS = 8, 2, 5
BAD_STEP = 2
CASES = [
    Case("data_parallel", (1,)),
    Case("data_parallel", (2,), shard="optimizer"),
    Case("data_parallel", (2,), swap="task"),
    Case("fully_sharded", (2,), shard="full"),
    Case("gpipe", (1, 1), recompute=True),
    Case("flush", (2, 1)),
    Case("interleaved", (1, 1), rounds=2),
    Case("model_parallel", (1, 1)),
    Case("harmony", (1,)),
    Case("waves", (1, 1)),
    Case("burst_parallel", (2, 1)),
    Case("burst_parallel", (1, 2)),
    Case("pipedream", (1, 1)),
    Case("pipedream", (2, 1)),
    Case("two_bw", (1, 1)),
    Case("tick_tock", (1,)),
]
APART = [case for case in CASES if case.strategy in ("pipedream", "two_bw", "tick_tock")]
# Steps that wait for the norm of all gradients are not made just in time.
SYNCHRONOUS = [
    replace(case, options={"just_in_time": False}) if case.strategy == "harmony" else case
    for case in CASES
    if case not in APART
]


class Cube(nn.Module):
    """Overflows for large numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """To the third power."""
        return x * x * x


class Root(nn.Module):
    """Has no derivative at 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Root of the absolute value."""
        return x.abs().sqrt()


@cache
def job(bad: str, at: int = 0) -> Job:
    """Return a chain with a sample that gives a number that is not finite.

    Sample `at` gives it in a forward, in a backward or as an input.
    """
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(4, 6, bias=False), Root(), nn.Linear(6, 6)]
    layers += [Cube(), nn.BatchNorm1d(6) if bad == "statistics" else nn.LayerNorm(6), nn.Dropout(0.1), nn.Linear(6, 6)]
    model = nn.Sequential(*layers, nn.Tanh(), nn.Linear(6, 3)).double()
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(64, 4, generator=draw, dtype=torch.float64)
    if bad != "none":
        x[at] = {"forward": 1e300, "statistics": 1e300, "backward": 0.0, "input": nan}[bad]
    data = [(x[i], torch.tensor(i % 3)) for i in range(64)]
    return Job(model, nn.functional.cross_entropy, data, lambda p: torch.optim.Adam(p, lr=0.01), BATCH)


def bad_sample() -> int:
    """Return the fifth sample of the step that is to fail.

    A bundle may hold it on another device than its first.
    """
    made = job("none")
    return Stream(made, Case("data_parallel", (1,), BATCH, SIZE).plan(capture(made, SIZE)).batches).indices(
        BAD_STEP * 4 + 2
    )[0]


@cache
def graph(bad: str) -> Captured:
    """Captured, with the bad sample in the third step."""
    return capture(job(bad, bad_sample() if bad != "none" else 0), SIZE)


def run(case: Case, captured: Captured, policy: str, steps: int = STEPS) -> tuple[Result, dict[int, Guard], list[Any]]:
    """Train a few steps under guards of each device; what these told."""
    plan = case.plan(captured)
    if policy == "skip":
        captured = judged_together(captured, plan.compile(captured).rule)
    program = plan.compile(captured)
    told: list[Any] = []
    guards = {d: Guard(policy, told.append) for d in program.devices}
    repeats = -(-steps * plan.microbatches // program.stride)
    return run_inline(Executable(captured, plan.layout(captured), program), repeats, guards=guards), guards, told


def weights_of(result: Result) -> Iterator[Tensor]:
    """Yield the weights of all devices."""
    return (tensor for weights in result.weights.values() for tensor in weights.values())


def test_every_strategy_is_tried() -> None:
    """A new strategy has to be added to the cases."""
    assert {case.strategy for case in CASES} == set(members())


@pytest.mark.parametrize(
    ("case", "bad", "place"),
    alternating(
        CASES,
        [
            ("forward", "the output of layer '3'"),
            ("backward", "in the backward of layer '1'"),
            ("input", "the input '"),
        ],
    ),
)
def test_the_first_one_is_named_and_no_weight_takes_it(case: Case, bad: str, place: str) -> None:
    """The first number that is not finite is named and changes no weight.

    Under every strategy, the error names the step, the layer and the samples. Every weight of every device stays
    finite.
    """
    captured = graph(bad)
    result, guards, told = run(case, captured, "stop")
    found = [guard.found for guard in guards.values() if guard.found is not None]
    assert found
    assert min(finding.step for finding in found) == BAD_STEP
    assert all(event["halt"] for event in told)
    assert all(bool(tensor.isfinite().all()) for tensor in weights_of(result))
    inspectors = [device.inspect() for device in result.devices.values()]
    plan = case.plan(captured)
    program = plan.compile(captured)
    before = [tensor.clone() for tensor in weights_of(result)]
    repeats = max(1, -(-plan.microbatches // program.stride))
    again = run_inline(Executable(captured, plan.layout(captured), program), repeats, BAD_STEP * BATCH, result.devices)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(again), strict=True))
    said = origin(captured, [fact for one in inspectors for fact in one.facts.values()])
    assert said is not None
    assert place in said
    assert str(bad_sample()) in said


@pytest.mark.parametrize("case", SYNCHRONOUS, ids=str)
def test_a_step_that_is_skipped_is_as_if_it_were_not(case: Case) -> None:
    """A skipped step changes nothing.

    All devices skip the same update, on whichever device the gradients are not finite. The weights have the updates of
    all other steps.
    """
    bad, guards, told = run(case, graph("backward"), "skip")
    assert {guard.skipped for guard in guards.values()} == {1}
    assert {event["step"] for event in told} == {BAD_STEP}
    first = run(case, graph("backward"), "skip", BAD_STEP)[0]
    plan = case.plan(graph("backward"))
    program = plan.compile(graph("backward"))
    repeats = -(-(STEPS - BAD_STEP - 1) * plan.microbatches // program.stride)
    rest = run_inline(
        Executable(graph("backward"), plan.layout(graph("backward")), program),
        repeats,
        (BAD_STEP + 1) * BATCH,
        first.devices,
    )
    for device, weights in bad.weights.items():
        for name, tensor in weights.items():
            assert torch.equal(tensor, rest.weights[device][name]), name


def test_running_statistics_of_a_skipped_step_are_left_out() -> None:
    """A skipped step does not change running statistics.

    They would be saved, and a model is evaluated with them.
    """
    case = Case("flush", (1, 1), BATCH, SIZE)
    result, guards, _ = run(case, graph("statistics"), "skip")
    assert {guard.skipped for guard in guards.values()} == {1}
    buffers = [b for device in result.devices.values() for b in device.model.buffers().values()]
    assert buffers
    assert all(bool(buffer.isfinite().all()) for buffer in buffers)


@pytest.mark.parametrize("case", APART, ids=str)
def test_skip_is_refused_where_updates_are_at_different_moments(case: Case) -> None:
    """With the reason of the table."""
    with pytest.raises(RefusedError) as caught:
        judged_together(graph("none"), case.plan(graph("none")).compile(graph("none")).rule)
    assert REFUSED[Feature.SKIP, Feature.ASYNCHRONOUS] in caught.value.found


def test_a_run_that_only_skips_ends() -> None:
    """After so many updates in a row, on all devices alike."""
    made = replace(job("none"), data=[(torch.zeros(4, dtype=torch.float64), torch.tensor(0))] * 64)
    result, guards, _ = run(Case("flush", (1, 1)), capture(made, SIZE), "skip", MOST_SKIPS + 2)
    assert {guard.skipped for guard in guards.values()} == {MOST_SKIPS}
    assert {guard.found for guard in guards.values()} == {
        Finding(MOST_SKIPS - 1, f"gradients are not finite for {MOST_SKIPS} steps in a row")
    }
    assert all(bool(tensor.isfinite().all()) for tensor in weights_of(result))


def test_go_goes_on_with_one_warning() -> None:
    """Losses go on as they do without a guard."""
    result, guards, told = run(Case("flush", (1, 1)), graph("forward"), "go")
    # Each device tells once, and the process of the display shows the first.
    assert [(event["step"], event["kind"], event["halt"]) for event in told] == [(BAD_STEP, "warning", False)] * 2
    assert guards[0].found is None
    assert not isfinite(result.losses[-1][1])


@pytest.mark.parametrize("clip", [None, 1.0])
def test_go_warns_of_gradients_before_they_spread(clip: float | None) -> None:
    """A finite loss with gradients that are not is told in its own step, with the weight.

    One step later the weights make the loss of innocent samples nan.
    """
    captured = capture(replace(graph("backward").job.as_written, clip_grad_norm=clip), SIZE)
    _, guards, told = run(Case("data_parallel", (1,)), captured, "go")
    assert [event["step"] for event in told] == [BAD_STEP]
    assert told[0]["text"].startswith(f"step {BAD_STEP + 1}: the gradients of ")
    assert told[0]["text"].endswith(" are not finite; training goes on")
    assert guards[0].found is None


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_guard_that_finds_nothing_changes_nothing(policy: str) -> None:
    """To the bit, also where the norm is summed up for it."""
    case = Case("flush", (2, 1))
    plain, guarded = run(case, graph("none"), "go")[0], run(case, graph("none"), policy)[0]
    assert plain.losses == guarded.losses
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(guarded), strict=True))


def test_gradients_whose_norm_alone_is_too_large_are_finite() -> None:
    """Gradients are finite if only their norm overflows.

    The norm in float32 overflows long before the gradients. Such a run is not ended.
    """
    guard = Guard("stop")
    guard.begin(run(Case("data_parallel", (1,)), graph("none"), "go", 1)[0].devices[0].stream)
    large = torch.full((4,), 1e30)
    assert guard.lets(0, [large], lambda: [("w", large)], None)
    assert not guard.lets(0, [large * 1e10], lambda: [("w", large * 1e10)], None)
    assert guard.found == Finding(0, "the gradients of w (4 infinite of 4) are not finite")


def test_faults() -> None:
    """Counted; integers have none."""
    assert faults(torch.tensor([1.0, nan, inf, -inf])) == "1 nan and 2 infinite of 4"
    assert faults(torch.ones(3)) == faults(torch.ones(3, dtype=torch.int64)) == ""


def test_a_mask_of_infinities_is_not_where_it_arose() -> None:
    """A mask of infinities is not reported as an origin.

    A later layer makes its result finite again.
    """

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.soft, self.cube, self.last = nn.Linear(4, 4), nn.Softmax(-1), Cube(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.inner(x).masked_fill(torch.arange(4) > 2, -inf)
            return self.last(self.cube(self.soft(scores) * 1e200))

    torch.manual_seed(0)
    data = [(torch.ones(4, dtype=torch.float64), torch.tensor(0))] * 8
    made = Job(Masked().double(), nn.functional.cross_entropy, data, lambda p: torch.optim.SGD(p, lr=0.1), 4)
    captured, case = capture(made, SIZE), Case("gpipe", (1, 1), 4)
    plan = case.plan(captured)
    program = plan.compile(captured)
    devices = run_inline(
        Executable(captured, plan.layout(captured), program), 1, guards={d: Guard("stop") for d in program.devices}
    ).devices
    inspectors = [device.inspect() for device in devices.values()]
    run_inline(Executable(captured, plan.layout(captured), program), 1, 0, devices)
    facts = [fact for one in inspectors for fact in one.facts.values()]
    assert any("infinite" in fact.faults and "cube" not in fact.name for fact in facts)
    said = origin(captured, facts)
    assert said is not None
    assert "'cube'" in said


@pytest.mark.parametrize("can_skip", [True, False])
def test_the_error_offers_only_what_the_strategy_supports(can_skip: bool) -> None:
    """The error suggests only options that the strategy supports.

    Asynchronous strategies refuse `--on-nan skip`, so it is not suggested for them. `go` is always suggested.
    """
    advice = not_finite(3, "the loss is nan", "in layer 0", None, can_skip).next_step
    assert ("--on-nan skip" in advice) is can_skip
    assert "--on-nan go" in advice
