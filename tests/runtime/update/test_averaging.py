"""Two waves on every device follow Wavelet's figure 9 and lemma 1.

Figure 9 is written as a loop.
"""

from dataclasses import replace
from functools import partial
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hocket.errors import RefusedError
from hocket.planning.predict.update_semantics import updates_of
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.program.check.check import check
from hocket.program.instruction import Kind
from hocket.program.memory_bound.untimed_run import Untimed
from hocket.program.text.parser import parse_program
from hocket.program.text.printer import print_program
from hocket.runtime.engine.inline import Interpreter, run_inline
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from hocket.strategies.base.strategy import compile_strategy
from hocket.strategies.schedules.tick_tock import ALIGN
from hocket.training.verify.reference_loop import rule_loop
from tests.program.helpers.programs import two_waves
from tests.program.helpers.symbolic import Run, Symbols
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured
from tests.tiers import examples

ONE_EACH = Case("tick_tock", (2,), batch_size=8, microbatch_size=2)  # a microbatch for each replica of a wave
CASES = [
    Case("tick_tock", (1,)),
    Case("tick_tock", (2,), batch_size=15),  # the second wave has a sample less
    Case("tick_tock", (2,), batch_size=16),
    Case("tick_tock", (3,), batch_size=12),
    Case("tick_tock", (4,), batch_size=16),
    Case("tick_tock", (2,), batch_size=16, options={"align": "forwards"}),
    Case("tick_tock", (2,), batch_size=15, recompute=True),
]


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_devices_give_the_very_bits_of_the_declared_rule(optimizer, dtype):
    """Two devices give bit-identical results to the declared rule.

    Each replica has one microbatch, of equal size. The results differ from the loop only by powers of two, which add
    no rounding error.
    """
    graph = captured("gpt", optimizer, dtype)
    plan = ONE_EACH.plan(graph)
    program = plan.compile(graph)
    result = run_inline(Executable(graph, plan.layout(graph), program), 4)
    expected = rule_loop(graph, plan, program.rule, len(result.losses))
    assert result.losses == expected.losses
    for weights in result.weights.values():
        for name, tensor in weights.items():
            assert torch.equal(tensor, expected.weights[name]), name


@pytest.mark.parametrize(
    ("model", "optimizer", "tolerance", "case"),
    [
        *(("gpt", "adam", 1e-9, case) for case in CASES),
        *(("gpt clipped", "adam", 1e-9, case) for case in (CASES[0], CASES[-1])),
        ("inception", "gentle", 1e-9, CASES[1]),
        ("gpt untied bfloat16", "adam", 2e-2, CASES[2]),
    ],
    ids=str,
)
@pytest.mark.thinned(most=2)
def test_any_number_of_devices_and_microbatches_follows_the_rule(model, optimizer, tolerance, case):
    """Any number of devices and microbatches follows the rule.

    Losses and weights equal the loop, with dropout and running statistics of batches. Gradients are clipped by the
    norm of the stepped gradients.
    """
    graph = captured(model, optimizer, torch.float32 if "bfloat16" in model else torch.float64)
    plan = case.plan(graph)
    program = plan.compile(graph)
    result = run_inline(Executable(graph, plan.layout(graph), program), 3)
    expected = rule_loop(graph, plan, program.rule, len(result.losses))
    assert_same_losses(result.losses, expected.losses, tolerance)
    for weights in result.weights.values():
        assert_same_weights(weights, expected.weights, tolerance)


class Noting(torch.optim.SGD):
    """SGD that keeps the gradients of every step."""

    def __init__(self, parameters, lr: float, notes: list[list[Tensor]]) -> None:
        super().__init__(parameters, lr=lr)
        self.notes = notes

    def step(self, closure=None):
        """Record the gradients, then step as SGD does."""
        self.notes.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        return super().step(closure)


def small(lr: float) -> tuple[Captured, list[list[Tensor]]]:
    """Return a small model in float64 and the gradients of its updates.

    The gradients are those of each wave of each device.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    draw = torch.Generator().manual_seed(1)
    data = [(torch.randn(4, generator=draw).double(), torch.randn(2, generator=draw).double()) for _ in range(64)]
    notes: list[list[Tensor]] = []
    return capture(Job(model, nn.MSELoss(), data, partial(Noting, lr=lr, notes=notes), 8), 2), notes


def test_lemma_1():
    """Lemma 1: an update of wave m uses the mean over 2 N tasks.

    The tasks are those of iterations m - 1 and m, as if 2 N devices had trained them.
    """
    graph, notes = small(lr=0.0)  # all tasks with the same weights: one process can compute any of them
    plan = ONE_EACH.plan(graph)
    program = plan.compile(graph)
    run_inline(Executable(graph, plan.layout(graph), program), 1)
    found = list(notes)
    notes.clear()
    rule = replace(program.rule, kind="sync", batch=(1, 1))
    rule_loop(
        graph,
        replace(plan, strategy="data_parallel", stages=plan.stages[:1]),
        replace(rule, batch=(1,), delay=(0,)),
        12,
    )
    alone = notes  # the gradient of each microbatch
    for m in range(6):
        tasks = alone[max(0, 2 * m - 2) : 2 * m + 2]
        expected = [torch.stack(each).mean(0) for each in zip(*tasks, strict=True)]
        same = [
            grads
            for grads in found
            if all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(grads, expected, strict=True))
        ]
        assert len(same) == 2, f"on both devices, iteration {m}"
    assert len(found) == 12


def test_waves_stay_half_a_gradient_apart():
    """The two waves stay half a gradient apart.

    With plain SGD, the sums of all updates of the two waves differ by half of the first and half of the last gradient,
    for any length of training.
    """
    graph, notes = small(lr=0.05)
    plan = Case("tick_tock", (1,), 8, 4).plan(graph)
    program = plan.compile(graph)
    device = Device(Executable(graph, plan.layout(graph), program), 0)
    Interpreter(program, {0: device}, 6, 0).run()
    own = [notes[0]]
    for stepped in notes[1:]:  # g' of each iteration, by equation 1
        own.append([2 * together - before for together, before in zip(stepped, own[-1], strict=True)])
    assert len(own) == 16
    tick, tock = (device.stages[s].weights.newest.data for s in (0, 1))
    for a, b, first, last in zip(tick, tock, own[0], own[-1], strict=True):
        assert torch.allclose(a - b, -0.05 * (first - last) / 2, rtol=0, atol=1e-13)
        assert float((a - b).abs().max()) > 1e-5


def test_a_segment_ends_with_one_model_from_which_any_device_goes_on():
    """A segment ends with one model for all devices.

    The weights and optimizer states of both waves become their mean. Continuing from them is bit-identical to
    continuing from a loaded state.
    """
    graph = captured("gpt", "adam")
    plan = ONE_EACH.plan(graph)
    program = plan.compile(graph)
    first = run_inline(Executable(graph, plan.layout(graph), program), 1)
    state = {
        key: {n: _copied(t) for n, t in entries.items()} for key, entries in first.devices[0].model.state().items()
    }
    more = run_inline(Executable(graph, plan.layout(graph), program), 1, first.position, first.devices)
    others = {d: Device(Executable(graph, plan.layout(graph), program), d) for d in program.devices}
    for device in others.values():
        device.model.load(state)
    again = run_inline(Executable(graph, plan.layout(graph), program), 1, first.position, others)
    assert again.losses == more.losses
    for device, weights in again.weights.items():
        assert all(torch.equal(tensor, more.weights[device][name]) for name, tensor in weights.items())
    alone = Case("data_parallel", (1,)).plan(graph)
    another = Device(Executable(graph, alone.layout(graph), alone.compile(graph)), 0)
    another.model.load(state)
    assert all(torch.equal(tensor, state["weights"][name]) for name, tensor in another.model.tensors().items())


def _copied(thing):
    if isinstance(thing, dict):
        return {key: _copied(value) for key, value in thing.items()}
    return thing.clone() if isinstance(thing, Tensor) else thing


@examples(10)
@given(
    count=st.integers(1, 3),
    turns=st.integers(1, 3),
    buckets=st.integers(1, 3),
    repeats=st.integers(0, 3),
    align=st.sampled_from(ALIGN),
    recompute=st.booleans(),
    clips=st.booleans(),
    rng=st.randoms(),
)
def test_any_interleaving_of_any_program_is_figure_9(count, turns, buckets, repeats, align, recompute, clips, rng):
    """Any interleaving of any program follows figure 9.

    The program is proven legal. The weights equal the loop on symbols, whichever lane is faster.
    """
    stages = tuple(replace(one, recompute=recompute, clips=clips) for one in two_waves(count, buckets))
    program = compile_strategy("tick_tock", stages, 2 * count * turns, {"align": align})
    assert check(program) == ()
    assert parse_program(print_program(program)) == program
    Run(program, repeats, rng, Symbols()).finish()


@pytest.mark.parametrize("align", ALIGN)
@pytest.mark.parametrize("recompute", [False, True])
def test_no_two_instructions_of_a_device_draw_random_numbers_at_once(align, recompute):
    """No two instructions of a device draw random numbers at once.

    Of any two forwards of a device, recomputed ones included, one ends before the other begins, because threads share
    one generator. In the paper's alignment, the same holds for two backwards and their recomputations.
    """
    stages = tuple(replace(one, recompute=recompute) for one in two_waves(2))
    program = compile_strategy("tick_tock", stages, 8, {"align": align})
    run = Untimed.start(program)
    for part, repetition in (("prologue", 0), ("period", 0), ("period", 1), ("epilogue", 2)):
        run.run(part, repetition)
    before: list[set[int]] = []
    for earlier in run.before:
        before.append(set(earlier).union(*(before[event] for event in earlier)))
    own = [(e, one) for e, ran in enumerate(run.ran) for one in ran if one.device == 0]
    drawing = [e for e, one in own if one.kind is Kind.FORWARD]
    assert len(drawing) == (2 if recompute else 1) * program.microbatches(2) // 2
    assert all(a in before[b] or b in before[a] for a, b in combinations(drawing, 2))
    stashes = [e for e, one in own if one.kind is Kind.BACKWARD or one.again]
    assert all(a in before[b] or b in before[a] for a, b in combinations(stashes, 2)) == (align == "both")


def test_a_forward_runs_beside_the_other_waves_backward_and_none_beside_its_like():
    """A forward runs during the other wave's backward, not its forward.

    By the names of values (Appendix B.1.1), F of an iteration waits for F of the previous iteration, and B for B. F
    waits for no B of the other wave.
    """
    program = compile_strategy("tick_tock", two_waves(2), 4)
    for _, one in program.instructions():
        ended = [value for value in one.reads if value.what == "end"]
        if one.kind in (Kind.FORWARD, Kind.BACKWARD) and one.index > 1:
            assert [(value.stage, value.part) for value in ended] == [(1 - one.stage, int(one.kind is Kind.BACKWARD))]
            assert ended[0].index == one.index - 2
        elif one.kind is not Kind.DROP:
            assert not ended


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case("tick_tock", (2,), 8, 4), "every replica of a wave needs equally many: use a multiple of 4"),
        (Case("tick_tock", (2,), 8, 2, shard="optimizer"), "shard: none"),
        (Case("tick_tock", (1, 1), 8, 2), "tick-tock needs two equal stages"),
    ],
    ids=str,
)
def test_what_tick_tock_refuses(case, words):
    """With the reason."""
    graph = captured("gpt plain", "adam")
    with pytest.raises(RefusedError, match=words):
        case.plan(graph).compile(graph)


def test_other_strategies_refuse_a_second_wave():
    """Strategies with one replica on a device refuse a second wave."""
    graph = captured("gpt plain", "adam")
    with pytest.raises(RefusedError, match="stage 1 belongs to wave 1; flush allows one replica"):
        replace(ONE_EACH.plan(graph), strategy="flush").compile(graph)


def test_its_mathematics_are_not_called_those_of_one_process():
    """The update rule of tick_tock is not called that of one process.

    `hocket plan` prints this text, and so does a run before its start.
    """
    graph = captured("gpt plain", "adam")
    updates = updates_of("tick_tock", ONE_EACH.plan(graph).shapes(graph), 8, 2, {})
    assert not updates.same
    assert updates.text == "two waves"
    assert "two replicas in turn" in updates.sentence("tick_tock")
