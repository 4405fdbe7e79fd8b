"""Two waves on one device: the gain of overlap, worked out by hand."""

from dataclasses import replace

import pytest

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from hocket.program.memory_bound.footprint import footprints
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.simulation.simulator import SimulationResult, play
from hocket.simulation.steady_state import steady_state
from hocket.simulation.summary import summarize
from hocket.strategies.base.strategy import compile_strategy

FORWARD_S, BACKWARD_S = 1.0, 2.0


def run(
    share: float,
    waves: int = 2,
    count: int = 1,
    forward_s: float = FORWARD_S,
    backward_s: float = BACKWARD_S,
    recompute: bool = False,
    each: int = 2,
    link: float = 1e30,
    **options: str,
) -> SimulationResult:
    """Simulate one replica or two waves, with layers that need a share of a device.

    Arguments:
        each: microbatches of a device and batch.
        link: model gradients that links carry a second.
    """
    plain = chain(
        1,
        forward_s=forward_s,
        backward_s=backward_s,
        weights_bytes=1.0,
        microbatch_sizes=(1, 1000),
        device_type="v100-16gb",
    )
    layers = tuple(
        replace(
            one,
            forward_s=(forward_s, 1000 * share * forward_s),
            backward_s=(backward_s, 1000 * share * backward_s),
            step_s=0.0,
        )
        for one in plain.layers
    )
    profile = replace(plain, layers=layers)
    cluster = Cluster("one", (Level("server", max(2, count), link),), "v100-16gb")
    cut = StageCut((0,), tuple(range(count)), recompute, buckets=((0,),))
    cuts = (cut, replace(cut, wave=1))[:waves]
    name = "tick_tock" if waves == 2 else "data_parallel"
    program = compile_strategy(name, stage_shapes(profile, cuts), each * count, options)
    return play(program, CostModel(profile, cluster, cuts, (1,) * each * count), 12)


def test_a_forward_hides_behind_a_backward_where_half_of_the_device_is_free() -> None:
    """A batch takes two backwards, because forwards run beside them.

    Backwards wait for each other (Wavelet, appendix B.1.1). This is 1.5 times as fast as one wave; with backwards as
    long as forwards it is the paper's bound of 2.
    """
    assert steady_state(run(0.5)).iteration_s == pytest.approx(2 * BACKWARD_S)
    assert steady_state(run(0.5, waves=1)).iteration_s == pytest.approx(2 * (FORWARD_S + BACKWARD_S))
    assert steady_state(run(0.5, forward_s=2.0)).iteration_s == pytest.approx(4.0)


def test_what_data_parallelism_does_between_backwards_is_gained_as_well() -> None:
    """A sum of gradients that nothing hides runs beside the other wave's backward.

    If it takes a fifth of an iteration, two waves are 1.875 times as fast, in the paper's alignment and with
    backwards as long as two forwards (docs/explanation/wavelet.md).
    """
    one = steady_state(run(0.25, waves=1, count=2, each=1, link=1 / 0.75)).iteration_s
    two = steady_state(run(0.25, count=2, link=1 / 0.75)).iteration_s
    assert one == pytest.approx(FORWARD_S + BACKWARD_S + 0.75)
    assert 2 * one / two == pytest.approx(1.875)


@pytest.mark.parametrize(("share", "seconds"), [(0.3, 3.0), (0.5, 3.0), (0.6, 3.6), (0.75, 4.5), (1.0, 6.0)])
def test_where_forwards_alone_wait_the_device_is_the_limit(share: float, seconds: float) -> None:
    """If only forwards wait, two whole iterations overlap.

    Each runs at most at its own pace, and both together at most at the device's.
    """
    assert steady_state(run(share, align="forwards")).iteration_s == pytest.approx(seconds)


def test_with_one_stash_at_a_time_nothing_hides_what_is_made_again() -> None:
    """With one stash at a time, nothing hides recomputation.

    Two waves take as long as one wave that keeps its stash, and are 4/3 times as fast as one wave that recomputes.
    """
    assert steady_state(run(0.5, recompute=True)).iteration_s == pytest.approx(2 * (FORWARD_S + BACKWARD_S))
    alone = steady_state(run(0.5, waves=1, recompute=True)).iteration_s
    assert alone == pytest.approx(2 * (2 * FORWARD_S + BACKWARD_S))


def test_nothing_is_gained_where_one_wave_needs_all_of_the_device() -> None:
    """Two waves at once take as long as one after the other."""
    outcome = run(1.0)
    assert steady_state(outcome).iteration_s == pytest.approx(2 * (FORWARD_S + BACKWARD_S))
    assert steady_state(outcome).bubble_fraction == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("share", [0.6, 0.75, 0.9])
def test_between_both_what_overlaps_goes_on_at_the_sum_of_the_shares(share: float) -> None:
    """A forward beside a backward: both run at the rate 1 / (2 share).

    After the forward, the backward runs alone.
    """
    beside_s = FORWARD_S * 2 * share
    alone_s = BACKWARD_S - FORWARD_S
    assert steady_state(run(share)).iteration_s == pytest.approx(2 * (beside_s + alone_s))


def test_a_device_is_busy_once_however_many_of_its_waves_are() -> None:
    """The utilization of a device with two busy waves is at most 1."""
    for share in (0.5, 0.8, 1.0):
        summary = summarize(run(share, count=2))
        assert all(0.99 < used <= 1.0 + 1e-9 for used in summary.utilization.values())


def test_the_simulated_peak_is_within_what_is_proven() -> None:
    """The simulated peak memory of two waves is within the proven bound.

    Both waves have stashes, weights and sums.
    """
    for count in (1, 2):
        outcome = run(0.7, count=count)
        bound = footprints(outcome.program, PlanSizes(outcome.costs, outcome.program))
        for device, peak in outcome.peak_memory_bytes.items():
            assert 0.8 * bound[device].bytes <= peak <= bound[device].bytes + 1e-6
            one = run(0.7, waves=1, count=count).peak_memory_bytes[device]
            assert peak > 1.5 * one, "two replicas, and their activations"
