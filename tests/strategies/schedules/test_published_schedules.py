"""Microbatches in flight and update rules that papers state.

The conformance tests compare what a strategy declares with what it compiles. Both come from one function, and would
be wrong together. Here the expected numbers are literals worked out by hand from the papers, or follow from a
simulated idle time.
"""

from math import lcm
from typing import Any

import pytest

from hocket.errors import RefusedError
from hocket.program.instruction import COMPUTE, Kind, ValueKind
from hocket.program.program import Program, StageShape
from hocket.program.rule import Rule
from hocket.simulation.simulator import play, summarize
from hocket.simulation.summary import most_alive
from hocket.strategies.base.strategy import compile_strategy, complete, members, strategy
from tests.program.helpers.programs import pipeline, rounds, two_waves, waves
from tests.simulation.helpers.chains import Chain

Stages = tuple[StageShape, ...]
SYNC = "sync"

# (strategy, stages, microbatches of a batch, options) -> stashes of each stage's replica, rule, microbatches of an update, delay.
PUBLISHED: list[tuple[str, Stages, int, dict[str, Any], tuple[int, ...], str, tuple[int, ...], tuple[int, ...]]] = [
    # GPipe (dissertation 2.2.2): all microbatches of the batch; 7 over 2 replicas are 4 on the first.
    ("gpipe", pipeline((1, 1, 1)), 6, {}, (6, 6, 6), SYNC, (6, 6, 6), (0, 0, 0)),
    ("gpipe", pipeline((2, 1)), 7, {}, (4, 7), SYNC, (7, 7), (0, 0)),
    # Model parallelism: one input in the whole pipeline.
    ("model_parallel", pipeline((1, 1, 1)), 6, {}, (1, 1, 1), SYNC, (6, 6, 6), (0, 0, 0)),
    # PipeDream-Flush (3.2.2): depth of the pipeline behind a stage, never more than the batch has.
    ("flush", pipeline((1, 1, 1, 1)), 8, {}, (4, 3, 2, 1), SYNC, (8,) * 4, (0,) * 4),
    ("flush", pipeline((1, 1, 1, 1)), 2, {}, (2, 2, 2, 1), SYNC, (2,) * 4, (0,) * 4),
    ("flush", pipeline((2, 1)), 8, {}, (2, 1), SYNC, (8, 8), (0, 0)),
    ("flush", pipeline((3, 2)), 12, {}, (2, 1), SYNC, (12, 12), (0, 0)),
    # PipeDream (2.4.2, 2.4.3): NOAM = ceil(workers / replicas of the input stage); a stage with n in flight is n - 1 updates late.
    ("pipedream", pipeline((1, 1, 1, 1)), 1, {}, (4, 3, 2, 1), "stashed", (1,) * 4, (3, 2, 1, 0)),
    ("pipedream", pipeline((2, 1)), 1, {}, (2, 1), "stashed", (2, 1), (1, 0)),
    ("pipedream", pipeline((3, 1)), 1, {}, (2, 1), "stashed", (3, 1), (1, 0)),
    ("pipedream", pipeline((3, 2)), 1, {}, (2, 1), "stashed", (3, 2), (1, 0)),
    ("pipedream", pipeline((2, 3)), 1, {}, (3, 1), "stashed", (2, 3), (2, 0)),
    ("pipedream", pipeline((4, 3, 1)), 1, {}, (2, 2, 1), "stashed", (4, 3, 1), (1, 1, 0)),
    ("pipedream", pipeline((1, 2, 1)), 1, {}, (4, 2, 1), "stashed", (1, 2, 1), (3, 1, 0)),
    ("pipedream", pipeline((2, 2)), 1, {"vertical_sync": True}, (2, 1), "vertical", (2, 2), (1, 1)),
    ("pipedream", pipeline((2, 1)), 1, {"naive": True}, (2, 1), "naive", (2, 1), (1, 0)),
    ("pipedream", pipeline((1, 1, 1, 1)), 1, {"in_flight": 2}, (2, 2, 2, 1), "stashed", (1,) * 4, (1, 1, 1, 0)),
    # PipeDream-2BW (3.2.1): the stashes of 1F1B, every stage one update late.
    ("two_bw", pipeline((1, 1, 1, 1)), 8, {}, (4, 3, 2, 1), "delayed", (8,) * 4, (1,) * 4),
    ("two_bw", pipeline((3, 2)), 12, {}, (2, 1), "delayed", (12, 12), (1, 1)),
    # Interleaved 1F1B (4.2.2): a device of rank r warms up with 2 (p - r - 1) + (v - 1) p forwards, p of a chunk in turn. Of two
    # devices with two chunks the first opens F0.0 F0.1 F1.0 F1.1 F0.2, then B1.0 F0.3: four of its first chunk, two of its second.
    ("interleaved", rounds(2, 1, 2), 8, {}, (4, 3, 2, 1), SYNC, (8,) * 4, (0,) * 4),
    # One replica's work at a time.
    ("data_parallel", pipeline((3,)), 6, {}, (1,), SYNC, (6,), (0,)),
    ("fully_sharded", rounds(1, 2, 3, shard="full"), 4, {}, (1, 1, 1), SYNC, (4,) * 3, (0,) * 3),
    # Harmony (3.3): input-batch grouping runs a pack on all microbatches before the next pack; without it packs take turns.
    ("harmony", rounds(1, 1, 3), 4, {}, (4, 4, 4), SYNC, (4,) * 3, (0,) * 3),
    ("harmony", rounds(1, 1, 3), 4, {"mode": "data", "grouping": False}, (1, 1, 1), SYNC, (4,) * 3, (0,) * 3),
    # Waves of model parallelism: each wave has one microbatch.
    ("waves", waves(3, 3), 6, {}, (1, 1, 1), SYNC, (6,) * 3, (0,) * 3),
    # Wavelet (figure 9): two waves, each with one microbatch; a step takes its own half of the batch and the half before.
    ("tick_tock", two_waves(2), 4, {}, (1, 1), "averaged", (4, 4), (0, 0)),
    # DeepPool (4.1): a stage runs its whole share of the batch at once.
    ("burst_parallel", (StageShape((0, 1), merged=2),), 4, {}, (1,), SYNC, (4,), (0,)),
]


def named(case: Any) -> str:
    """Strategy, numbers of replicas, microbatches and options of a case."""
    name, stages, microbatches, options = case[:4]
    widths = "-".join(str(len(stage.devices)) for stage in stages)
    return " ".join([name, widths, str(microbatches), *(f"{key}={value}" for key, value in options.items())])


@pytest.mark.parametrize("case", PUBLISHED, ids=named)
def test_counts_and_rules_are_the_published_ones(case: Any) -> None:
    """Stashes, update rule and staleness of the program are the published ones.

    The strategy declares the same number of stashes.
    """
    name, stages, microbatches, options, stashes, kind, batch, delay = case
    program = compile_strategy(name, stages, microbatches, options)
    assert most_alive(program, ValueKind.STASH) == stashes
    assert strategy(name).in_flight(stages, microbatches, complete(name, options)) == stashes
    assert program.rule == Rule(kind, batch, delay)
    if kind != "averaged" and not any(stage.gathers for stage in stages):
        late = (0,) * len(stages) if kind == "naive" else delay  # without stashing a backward takes the newest weights
        assert lags(program, batch) == {stage: {lag} for stage, lag in enumerate(late)}


def lags(program: Program, batch: tuple[int, ...]) -> dict[int, set[int]]:
    """Updates by which the weights of a period's backwards are old, by stage."""
    found: dict[int, set[int]] = {}
    for row in program.period.values():
        for i in (i for i in row if i.kind is Kind.BACKWARD):
            version = next(value.index for value in i.reads if value.what is ValueKind.WEIGHTS)
            found.setdefault(i.stage, set()).add(i.index // batch[i.stage] - version)
    return found


def test_every_strategy_has_a_published_count() -> None:
    """Every strategy has numbers from its paper here."""
    assert {case[0] for case in PUBLISHED} == set(members())


@pytest.mark.parametrize(
    "widths", [(2, 1), (3, 1), (1, 2), (2, 1, 1), (3, 2), (2, 3), (5, 2), (3, 1, 1), (2, 2), (4, 1)]
)
def test_noam_is_the_least_number_of_inputs_that_leaves_nobody_idle(widths: tuple[int, ...]) -> None:
    """NOAM has no bubble with stages of equal throughput, and one input less has one.

    NOAM is the default number of inputs in flight (Narayanan's dissertation, section 2.4.2).
    """

    def bubble(options: dict[str, int]) -> float:
        work = {"forward_s": [1.0 * w for w in widths], "backward_s": [2.0 * w for w in widths]}
        case = Chain("pipedream", widths, lcm(*widths), options=options).case(
            activation_bytes=0.0, weights_bytes=0.0, **work
        )
        return summarize(play(case.program, case.costs)).bubble_fraction

    noam = -(-sum(widths) // widths[0])
    assert bubble({}) == pytest.approx(0.0, abs=1e-9)
    assert bubble({"in_flight": noam}) == pytest.approx(0.0, abs=1e-9)
    assert bubble({"in_flight": noam - 1}) > 0.2


@pytest.mark.parametrize(("widths", "noam"), [((1, 1, 1, 1), 4), ((3, 1), 2)])
def test_more_inputs_than_noam_are_refused(widths: tuple[int, ...], noam: int) -> None:
    """More inputs in flight than NOAM are refused, and the error says the maximum."""
    compile_strategy("pipedream", pipeline(widths), 1, {"in_flight": noam})
    with pytest.raises(RefusedError, match=f"in_flight is 7; at most NOAM inputs are admitted, here {noam}"):
        compile_strategy("pipedream", pipeline(widths), 1, {"in_flight": 7})


@pytest.mark.parametrize(("depth", "chunks", "warmup"), [(4, 2, (11, 9, 7, 5)), (2, 2, (5, 3)), (3, 3, (11, 9, 7))])
def test_forwards_before_the_first_backward_of_interleaved_devices(
    depth: int, chunks: int, warmup: tuple[int, ...]
) -> None:
    """Warm-up forwards of interleaved devices are those of figure 4.4 (bottom).

    With four devices and two chunks, the first device runs F1 to F4 of both chunks and F5 to F7 of its first. The
    last device runs F1 to F4, and F1 of its second chunk. Each earlier device runs two forwards more than the next:
    one while an input moves forward, one while its gradient moves back.
    """
    program = compile_strategy("interleaved", rounds(depth, 1, chunks), 4 * depth)
    found = []
    for device in range(depth):
        lane = [i.kind for part in (program.prologue, program.period) for i in part.get((device, COMPUTE), ())]
        found.append(lane[: lane.index(Kind.BACKWARD)].count(Kind.FORWARD))
    assert tuple(found) == warmup


@pytest.mark.parametrize(("widths", "fewest"), [((1, 1, 1, 1), 4), ((1, 1), 2), ((3, 1), 6), ((2, 2), 4)])
def test_two_bw_needs_as_many_microbatches_as_are_in_flight(widths: tuple[int, ...], fewest: int) -> None:
    """2BW needs m >= p (Narayanan's dissertation, section 3.2.1).

    With fewer microbatches, a second update would happen between a forward and its backward, and two versions would
    not suffice.
    """
    compile_strategy("two_bw", pipeline(widths), fewest)
    with pytest.raises(RefusedError, match="2BW needs m >= p"):
        compile_strategy("two_bw", pipeline(widths), fewest - 1)
