"""The simulator against itself: kernels, ways of lowering, and general bounds."""

from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.sizes import PlanSizes
from hocket.errors import InputError, ProgramError
from hocket.hardware.cluster import Level
from hocket.program.instruction import COMPUTE, Kind
from hocket.program.program import Program
from hocket.simulation.engine import kernel
from hocket.simulation.simulator import lay_out, play, simulate, summarize
from tests.simulation.helpers.chains import Case, Chain
from tests.tiers import examples

LEVELS = (Level("server", 2, 3e6, 1e-3), Level("cluster", 4, 1e6, 1e-2))
CHAINS = (
    Chain("gpipe", (1, 1, 1), 4, LEVELS),
    Chain("flush", (2, 2, 2), 6, LEVELS, samples=(2, 2, 2, 2, 2, 1), host_cores=2, transfer_cores=0.25),
    Chain("flush", (2, 1), 4, LEVELS, recompute=True),
    Chain("flush", (1, 1, 1), 5, LEVELS, sender_copies=True),
    Chain("pipedream", (2, 1, 1), 1, LEVELS, sender_copies=True, buckets=True, layers=2),
    Chain("interleaved", (1, 1), 4, LEVELS, rounds=2),
    Chain("interleaved", (2, 2), 4, LEVELS, rounds=3),
    Chain("data_parallel", (3,), 7, LEVELS, layers=3, buckets=True),
    Chain("model_parallel", (1, 1), 2, LEVELS),
    Chain("pipedream", (1, 1, 1), 1, LEVELS),
    Chain("pipedream", (3, 2, 1), 1, LEVELS, layers=2, buckets=True, samples=(2, 2, 2, 1)),
    Chain("pipedream", (2, 1), 1, LEVELS, host_cores=1, transfer_cores=0.5),
    Chain("two_bw", (2, 2), 5, LEVELS, layers=2, buckets=True, samples=(1, 1, 1, 1, 3)),
)
IDS = [f"{c.strategy}-{'-'.join(map(str, c.widths))}" for c in CHAINS]


def unrolled(program: Program, repeats: int) -> Program:
    """Move all instructions of a program into its prologue."""
    none: MappingProxyType[tuple[int, str], tuple[()]] = MappingProxyType({})
    whole = {lane: tuple(found) for lane, found in program.unrolled(repeats).items() if found}
    return replace(program, prologue=MappingProxyType(whole), period=none, epilogue=none)


@pytest.mark.parametrize("chain", CHAINS, ids=IDS)
def test_the_compiled_kernel_is_the_plain_one(chain: Chain) -> None:
    """Both kernels give the same times, causes, peaks and memory records, bit by bit."""
    if kernel.compiled() is None:
        pytest.skip("numba is not installed")
    case = chain.case()
    plain, fast = (play(case.program, case.costs, 5, engine=engine) for engine in ("python", "numba"))
    for name in ("start_s", "end_s", "cause"):
        assert np.array_equal(getattr(plain, name), getattr(fast, name))
    assert plain.peak_memory_bytes == fast.peak_memory_bytes
    assert all(np.array_equal(a, b) for a, b in zip(plain.records, fast.records, strict=True))


@pytest.mark.parametrize("strategy", ["gpipe", "flush", "pipedream", "two_bw"])
def test_what_the_sender_copies_is_gone_before_its_next_instruction_begins(strategy: str) -> None:
    """On a slow link, a message occupies memory beside the next microbatch.

    If the sender copies messages, it does not.
    """
    level = (Level("server", 4, 1e6, 1e-3),)
    slow, copied = (
        Chain(strategy, (1, 1), 1 if strategy == "pipedream" else 4, level, sender_copies=copies).case(
            forward_s=1.0, activation_bytes=1e5, stash_bytes=3e5, weights_bytes=1.0
        )
        for copies in (False, True)
    )
    before, after = (play(case.program, case.costs, 5).peak_memory_bytes for case in (slow, copied))
    assert before[0] - after[0] == pytest.approx(1e5, abs=9)  # the first stage sends one activation at a time
    assert all(after[device] <= before[device] for device in before)


def test_a_message_that_was_sent_meanwhile_is_gone_when_an_instruction_ends() -> None:
    """The first message ends within the second forward; after this forward, the first stage waits without it."""
    link = (Level("server", 2, 1e6),)
    case = Chain("flush", (1, 1), 2, link).case(forward_s=1.0, activation_bytes=1e5, stash_bytes=3e5, weights_bytes=1.0)
    trace = play(case.program, case.costs, 1).trace
    end_s = {event.name: event.end_s for event in trace.events if event.device == 0}
    sent_s, computed_s = end_s["send 0 #0 act.0>1#0"], end_s["forward 0 #1"]
    assert end_s["forward 0 #0"] < sent_s < computed_s
    times, held = trace.memory[0]
    before, after = (
        held[np.searchsorted(times, at_s, side) - 1] for at_s, side in ((computed_s, "left"), (computed_s, "right"))
    )
    assert after < before


@pytest.mark.parametrize("chain", CHAINS, ids=IDS)
def test_a_lowered_period_is_the_unrolled_program(chain: Chain) -> None:
    """Repeating the lowered period gives the events and peaks of the whole program."""
    case = chain.case()
    short = play(case.program, case.costs, 6)
    long = play(unrolled(case.program, 6), case.costs, 0)
    assert short.layout.repeats == 6
    assert long.layout.sizes[0] == len(long.end_s)
    for moment in ("start_s", "end_s"):
        found, expected = (
            {(e.device, e.lane, e.name): getattr(e, moment) for e in run.trace.events} for run in (short, long)
        )
        assert found == pytest.approx(expected, abs=1e-9)
    assert short.peak_memory_bytes == pytest.approx(long.peak_memory_bytes)


@pytest.mark.parametrize("chain", CHAINS, ids=IDS)
def test_every_instruction_runs_once_and_names_itself(chain: Chain) -> None:
    """The trace has exactly the program's instructions, in the order of each lane."""
    case = chain.case()
    events = simulate(case.program, case.costs, case.cluster, 3).events
    for lane, instructions in case.program.unrolled(3).items():
        own = sorted((e for e in events if (e.device, e.lane) == lane), key=lambda e: (e.start_s, e.end_s))
        assert sorted(e.name for e in own) == sorted(i.name for i in instructions)
        ends = {e.name: e.end_s for e in own}
        starts = {e.name: e.start_s for e in own}
        for before, after in pairwise(instructions):
            assert starts[after.name] >= ends[before.name] - 1e-9


@pytest.mark.parametrize("chain", CHAINS, ids=IDS)
def test_memory_ends_where_it_began(chain: Chain) -> None:
    """After the last instruction, a device holds its resident memory and no more.

    It is optimizer state, buffers, and pools of weights and buckets.
    """
    case = chain.case()
    outcome = play(case.program, case.costs, 3)
    sizes = PlanSizes(case.costs, case.program)
    for device, (_, held) in outcome.trace.memory.items():
        assert held[-1] == pytest.approx(sizes.resident(device))
        assert held.min() >= sizes.resident(device) - 1e-6
        assert sizes.resident(device) >= case.costs.initial_bytes(device)
        assert held.max() == outcome.peak_memory_bytes[device]


@examples(40)
@given(
    strategy=st.sampled_from(["gpipe", "flush", "two_bw", "pipedream", "model_parallel"]),
    widths=st.lists(st.integers(1, 2), min_size=1, max_size=3),
    microbatches=st.integers(6, 9),
    seconds=st.lists(st.floats(0.01, 5.0), min_size=3, max_size=3),
    size=st.floats(0, 5e6),
    recompute=st.booleans(),
)
def test_bounds(
    strategy: str, widths: list[int], microbatches: int, seconds: list[float], size: float, recompute: bool
) -> None:
    """No run is shorter than its busiest lane, or than one microbatch's way.

    Two runs are equal.
    """
    chain = Chain(strategy, tuple(widths), microbatches, LEVELS, recompute=recompute)
    case = chain.case(forward_s=seconds[: len(widths)], activation_bytes=size)
    first, second = (play(case.program, case.costs, 2, engine="python") for _ in range(2))
    assert np.array_equal(first.end_s, second.end_s)
    trace = first.trace
    lanes = np.bincount(trace.lane, weights=trace.end_s - trace.start_s)
    assert first.makespan_s >= lanes.max() - 1e-9
    way = sum(seconds[: len(widths)]) + 2.0 * len(widths)
    crossings = sum(
        2
        * case.cluster.link_between(case.program.stages[s].devices[0], case.program.stages[s + 1].devices[0]).seconds(
            size
        )
        for s in range(len(widths) - 1)
    )
    assert first.makespan_s >= way + crossings - 1e-9


def test_the_steady_state_does_not_depend_on_the_number_of_repetitions() -> None:
    """More repetitions than the default give the same iteration."""
    for chain in CHAINS:
        case = chain.case()
        usual, long = (summarize(play(case.program, case.costs, r)) for r in (None, 120))
        assert usual.iteration_s == pytest.approx(long.iteration_s, rel=0.01)


def swapped(case: Case, device: int, first: Kind, second: Kind) -> Program:
    """The program with two instructions of a compute lane exchanged.

    They are the first of each kind.
    """
    lane = list(case.program.period[(device, COMPUTE)])
    a = next(k for k, i in enumerate(lane) if i.kind is first)
    b = next(k for k, i in enumerate(lane) if i.kind is second)
    lane[a], lane[b] = lane[b], lane[a]
    return replace(case.program, period=MappingProxyType({**case.program.period, (device, COMPUTE): tuple(lane)}))


def test_a_deadlock_names_who_waits() -> None:
    """A backward before its forward is a deadlock, and the error names waiting lanes."""
    case = Chain("gpipe", (1, 1), 2).case()
    with pytest.raises(ProgramError) as error:
        play(swapped(case, 0, Kind.FORWARD, Kind.BACKWARD), case.costs, 2)
    assert "device 0, lane compute: backward 0 #0" in error.value.found
    assert "device 1, lane compute: forward 1 #0" in error.value.found


def test_programs_that_do_not_fit_together() -> None:
    """A send without a receive and a read without a writer are refused with the place."""
    case = Chain("gpipe", (1, 1), 2).case()
    alone = {lane: found for lane, found in case.program.period.items() if lane != (1, "receive<0")}
    with pytest.raises(ProgramError, match="send 0 #0"):
        play(replace(case.program, period=MappingProxyType(alone)), case.costs, 2)
    mute = tuple(i for i in case.program.period[(0, COMPUTE)] if i.kind is not Kind.LOAD)
    broken = {**case.program.period, (0, COMPUTE): mute}
    with pytest.raises(ProgramError, match=r"in\.0#0"):
        play(replace(case.program, period=MappingProxyType(broken)), case.costs, 2)


def test_bad_arguments() -> None:
    """A negative number of repetitions and an unknown engine are refused."""
    case = Chain("gpipe", (1, 1), 2).case()
    with pytest.raises(InputError):
        play(case.program, case.costs, -1)
    with pytest.raises(InputError, match="engine"):
        play(case.program, case.costs, 1, engine="gpu")


def test_no_repetition_at_all() -> None:
    """A program may run only its prologue and epilogue.

    A layout is played with its own number of repetitions.
    """
    case = Chain("pipedream", (1, 1, 1), 1).case()
    outcome = play(case.program, case.costs, 0)
    assert outcome.instructions == sum(len(found) for found in case.program.unrolled(0).values())
    layout = lay_out(case.program, 4)
    assert play(layout, case.costs).instructions == play(case.program, case.costs, 4).instructions


def test_a_ragged_microbatch_takes_less_time() -> None:
    """The last microbatch of a batch has its own seconds and bytes in each repetition."""
    case = Chain("gpipe", (1,), 3, samples=(4, 4, 1)).case()
    found = {e.name: e.end_s - e.start_s for e in play(case.program, case.costs, 2).trace.events}
    assert [found[f"forward 0 #{m}"] for m in range(6)] == pytest.approx([4, 4, 1, 4, 4, 1])
    summary = summarize(play(case.program, case.costs))
    assert summary.samples_per_s == pytest.approx(9 / summary.iteration_s)
