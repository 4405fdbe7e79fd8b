"""Facts that papers state about pipeline schedules, found by simulation.

Sections and figures without a name are those of Narayanan's dissertation.
"""

from math import lcm

import pytest

from hocket.program.instruction import COMPUTE, Kind, ValueKind
from hocket.simulation.simulator import Summary, play, summarize
from tests.simulation.helpers.chains import Case, Chain

# Digits of a memory peak: weights, then stashes, then activations; each too large for the smaller ones to carry over.
W, S, A = 1e8, 1e4, 1.0


def run(case: Case) -> Summary:
    """Summary of a case."""
    return summarize(play(case.program, case.costs))


@pytest.mark.parametrize("strategy", ["gpipe", "flush"])
@pytest.mark.parametrize(("depth", "microbatches"), [(2, 2), (4, 8), (3, 12), (8, 8)])
def test_bubble_of_flushed_pipelines(strategy: str, depth: int, microbatches: int) -> None:
    """GPipe and PipeDream-Flush idle (p-1)/m of the ideal time (section 4.2.2)."""
    summary = run(Chain(strategy, (1,) * depth, microbatches).case(activation_bytes=0.0))
    assert summary.bubble_fraction == pytest.approx((depth - 1) / microbatches, abs=1e-12)
    assert summary.iteration_s == pytest.approx((microbatches + depth - 1) * 3.0)
    assert summary.utilization[0] == pytest.approx(microbatches / (microbatches + depth - 1))


@pytest.mark.parametrize(("depth", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (4, 3, 8), (2, 4, 6)])
def test_bubble_of_interleaved_pipelines(depth: int, chunks: int, microbatches: int) -> None:
    """Interleaving v chunks a device divides the bubble by v: (p-1)/(v m).

    See section 4.2.2.
    """
    summary = run(Chain("interleaved", (1,) * depth, microbatches, rounds=chunks).case(activation_bytes=0.0))
    assert summary.bubble_fraction == pytest.approx((depth - 1) / (chunks * microbatches), abs=1e-12)


def test_bubble_of_unequal_stages() -> None:
    """The bubble of unequal stages is idle time relative to busy time.

    Stages of 3 and 6 s take 9 s for one microbatch, so 9 of 18 device-seconds are idle. Two microbatches take 15 s,
    with 18 busy and 12 idle device-seconds.
    """
    for microbatches, bubble in ((1, 9 / 9), (2, 12 / 18)):
        case = Chain("gpipe", (1, 1), microbatches).case(
            activation_bytes=0.0, forward_s=[1.0, 2.0], backward_s=[2.0, 4.0]
        )
        assert run(case).bubble_fraction == pytest.approx(bubble, abs=1e-12)


@pytest.mark.parametrize("strategy", ["pipedream", "two_bw"])
def test_asynchronous_pipelines_have_no_bubble(strategy: str) -> None:
    """Without flushes every device is busy once the pipeline is full.

    See figures 2.4 and 3.2.
    """
    summary = run(Chain(strategy, (1,) * 4, 8).case(activation_bytes=0.0))
    assert summary.bubble_fraction == pytest.approx(0.0, abs=1e-12)
    assert summary.samples_per_s == pytest.approx(1 / 3)


@pytest.mark.parametrize("widths", [(4, 2, 1, 2, 4), (1,), (4,), (8, 1), (3, 2, 6)])
def test_bursts_leave_devices_idle_where_stages_are_narrow(widths: tuple[int, ...]) -> None:
    """An iteration is the sum of t/g over stages on g devices (DeepPool, section 4.1).

    Devices that a stage does not use are idle. All devices together are busy as long as one device alone would be.
    """
    batch = lcm(*widths)
    summary = run(Chain("burst_parallel", widths, batch).case(activation_bytes=0.0))
    assert summary.iteration_s == pytest.approx(sum(3.0 * batch / width for width in widths))
    for device in range(max(widths)):
        busy_s = sum(3.0 * batch / width for width in widths if device < width)
        assert summary.utilization[device] == pytest.approx(busy_s / summary.iteration_s)
    assert sum(summary.utilization.values()) * summary.iteration_s == pytest.approx(3.0 * batch * len(widths))


def test_the_last_bundle_of_a_ragged_batch_is_shorter() -> None:
    """The longest share decides in a ragged batch.

    Of 15 samples on four devices the last has three, and on two devices the last has seven.
    """
    case = Chain("burst_parallel", (4, 2, 1), 4, samples=(4, 4, 4, 3)).case(activation_bytes=0.0)
    summary = run(case)
    assert summary.iteration_s == pytest.approx(3.0 * (4 + 8 + 15))
    busy_s = {0: 4 + 8 + 15, 1: 4 + 7, 2: 4, 3: 3}
    assert {d: u * summary.iteration_s / 3 for d, u in summary.utilization.items()} == pytest.approx(busy_s)


def test_model_parallelism_keeps_one_device_busy() -> None:
    """With one input in flight p devices do the work of one (figure 2.2)."""
    summary = run(Chain("model_parallel", (1,) * 4, 2).case(activation_bytes=0.0))
    assert summary.bubble_fraction == pytest.approx(3.0)
    assert summary.stashes == (1, 1, 1, 1)


@pytest.mark.parametrize(("depth", "microbatches"), [(4, 8), (3, 3), (2, 6)])
def test_stashes_in_flight(depth: int, microbatches: int) -> None:
    """GPipe keeps m stashes on every stage, 1F1B at most p - s on stage s.

    See sections 3.2.1, 3.2.2 and 4.2.2.
    """
    assert run(Chain("gpipe", (1,) * depth, microbatches).case()).stashes == (microbatches,) * depth
    declining = tuple(range(depth, 0, -1))
    assert run(Chain("flush", (1,) * depth, microbatches).case()).stashes == declining
    assert run(Chain("two_bw", (1,) * depth, max(depth, microbatches)).case()).stashes == declining
    assert run(Chain("pipedream", (1,) * depth, 1).case()).stashes == declining


def test_weight_versions() -> None:
    """Stashing keeps p, p-1, .. 1 versions, 2BW at most two, flushed schedules one.

    See sections 2.4.3, 3.2.1 and 3.2.2.
    """
    assert run(Chain("pipedream", (1,) * 4, 1).case()).weight_versions == (4, 3, 2, 1)
    assert run(Chain("two_bw", (1,) * 4, 8).case()).weight_versions == (2, 2, 2, 2)
    assert run(Chain("flush", (1,) * 4, 8).case()).weight_versions == (1, 1, 1, 1)
    assert run(Chain("gpipe", (1,) * 4, 8).case()).weight_versions == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("pipedream", (3, 2, 1, 0)), ("two_bw", (1, 1, 1, 1)), ("flush", (0, 0, 0, 0)), ("gpipe", (0, 0, 0, 0))],
)
def test_staleness_by_stage(strategy: str, expected: tuple[int, ...]) -> None:
    """Gradients of stage s are applied p-1-s updates late with stashing (2.4.3).

    They are one update late with 2BW, and none with flushes.
    """
    program = Chain(strategy, (1,) * 4, 4).case().program
    assert tuple(program.rule.staleness(s) for s in range(4)) == expected
    for stage, late in enumerate(expected):
        read = [
            program.rule.update(stage, i.index) - value.index
            for i in program.period[(stage, COMPUTE)]
            if i.kind is Kind.BACKWARD
            for value in i.reads
            if value.what is ValueKind.WEIGHTS
        ]
        assert set(read) == {late}


def digits(peak_bytes: float) -> tuple[int, int, int]:
    """Numbers of weights, stashes and activations in a peak."""
    return int(peak_bytes // W), int(peak_bytes % W // S), int(peak_bytes % S)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("strategy", "versions", "microbatches"), [("gpipe", 1, 8), ("flush", 1, 8), ("two_bw", 2, 8), ("two_bw", 2, 4)]
)
def test_memory_formulas(strategy: str, versions: int, microbatches: int, recompute: bool) -> None:
    """Memory of stage s is that of the formula in section 3.3.3, exactly.

    The formula is versions |W|/p + stashes |A_total|/p + inputs |A_input|. Stashes are the inputs in flight (m with
    GPipe, p - s with 1F1B), and 1 with recomputation. The formula leaves out one gradient accumulator of the weights'
    size. It also leaves out values of activation size in transit: the output (or, in a backward, the input's
    gradient), an output for which the next stage has no room yet, and for each neighbour the two posted receives of a
    lane's window.
    """
    depth = 4
    case = Chain(strategy, (1,) * depth, microbatches, recompute=recompute).case(
        activation_bytes=A, weights_bytes=W, stash_bytes=S, optimizer_bytes=0.0
    )
    peaks = run(case).peak_memory_bytes
    for stage in range(depth):
        in_flight = microbatches if strategy == "gpipe" else depth - stage
        weights, stashes, activations = digits(peaks[stage])
        assert weights == versions + 1
        assert stashes == (1 if recompute else in_flight)
        assert in_flight <= activations <= in_flight + (4 if stage == 0 else 6)


def test_memory_of_weight_stashing() -> None:
    """PipeDream's stage s holds p - s weight versions and stashes (section 2.4.3)."""
    case = Chain("pipedream", (1,) * 4, 1).case(activation_bytes=A, weights_bytes=W, stash_bytes=S, optimizer_bytes=0.0)
    found = [digits(run(case).peak_memory_bytes[stage])[:2] for stage in range(4)]
    assert found == [(4 - s + 1, 4 - s) for s in range(4)]


def test_recomputation_costs_a_forward() -> None:
    """Recomputation costs a forward: 2 t_f + t_b a microbatch, 4/3 of the time.

    See section 3.3.3, c_extra.
    """
    plain = run(Chain("two_bw", (1,) * 4, 8).case(activation_bytes=0.0))
    again = run(Chain("two_bw", (1,) * 4, 8, recompute=True).case(activation_bytes=0.0))
    assert again.iteration_s == pytest.approx(4 / 3 * plain.iteration_s)
