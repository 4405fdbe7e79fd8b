"""Staircase chart: the number of computing devices at each moment.

Its average is the sum of the devices' utilisations.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic import synthetic
from hocket.program.instruction import COMPUTE, Kind, computes
from hocket.program.trace.trace import Event, Trace
from hocket.reporting.charts import staircase as module
from hocket.reporting.charts.bars import utilization
from hocket.reporting.charts.staircase import staircase, stairs_of
from hocket.reporting.charts.window import Window, choose


def burst() -> tuple[Plan, Trace]:
    """Stages on 4, 2 and 1 devices."""
    profile = synthetic.chain(3, forward_s=0.02, backward_s=0.02, weights_bytes=1e4, activation_bytes=10.0)
    devices = ((0, 2, 1, 3), (0, 2), (0,))
    stages = tuple(PlanStage((layer.name,), own) for layer, own in zip(profile.layers, devices, strict=True))
    cluster = Cluster("lab", (Level("server", 8, 1e12),), device_type=profile.device_type)
    plan = Plan("burst_parallel", profile.name, 4, 1, stages, cluster)
    return plan, predict(plan, profile)[0]


@pytest.mark.parametrize(("strategy", "width"), [("flush", 1), ("gpipe", 2), ("pipedream", 1)])
def test_counts_are_those_of_the_moment(strategy: str, width: int, predicted: Callable[..., Any]) -> None:
    """The count at random moments matches a count by hand.

    The average is the sum of the utilisations. The shares add up to 1.
    """
    plan, trace, summary = predicted(4, 8, strategy, width=width)
    window = choose(trace, plan.microbatches, 1)
    found = stairs_of(trace, window)
    assert found is not None
    for moment in np.random.default_rng(0).uniform(0, window.seconds, 50).tolist():
        at_s = window.start_s + moment
        there = sum(e.lane == COMPUTE and e.start_s <= at_s < e.end_s for e in trace.events)
        stretch = np.searchsorted(found.edges_s, moment, side="right") - 1
        assert found.counts[:, stretch].sum() == there
    if strategy != "pipedream":  # whose window is not a period to the instruction
        assert found.mean == pytest.approx(sum(summary.utilization.values()), rel=1e-6)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert sum(n * share for n, share in found.shares.items()) == pytest.approx(found.mean)


@pytest.mark.slow
def test_swaps_in_the_lane_of_compute_are_none() -> None:
    """A device that waits for its host does not compute.

    The average is the sum of the utilisations here as well.
    """
    profile = synthetic.chain(
        4, forward_s=1e-3, backward_s=2e-3, weights_bytes=1e8, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb"
    )  # fmt: skip
    cluster = Cluster("lab", (Level("server", 2, 1e10),), profile.device_type, memory_bytes=5e8, host_memory_bytes=9e9)
    best = search(profile, cluster, PlanRequest(4, strategies=("harmony",)))
    plan = next(one.plan for one in best.candidates if one.plan.swap is not None and not one.plan.swap.prefetch)
    trace, summary = predict(plan, profile)
    found = stairs_of(trace, choose(trace, plan.microbatches, 1))
    assert found is not None
    assert found.mean == pytest.approx(sum(summary.utilization.values()), rel=1e-6)


def test_waves_of_a_device_count_once() -> None:
    """A device counts once at a moment at which any of its waves computes.

    The bars of the same devices have the same length.
    """
    profile = synthetic.chain(2, forward_s=0.02, backward_s=0.04, weights_bytes=1e4, device_type="v100-16gb")
    layers = tuple(layer.name for layer in profile.layers)
    cluster = Cluster("lab", (Level("server", 2, 1e12),), device_type=profile.device_type)
    stages = (PlanStage(layers, (0, 1)), PlanStage(layers, (0, 1), wave=1))
    plan = Plan("tick_tock", profile.name, 8, 1, stages, cluster)
    trace, _ = predict(plan, profile)
    window = choose(trace, plan.microbatches, 1)
    found = stairs_of(trace, window)
    assert found is not None
    several = 0
    for moment in np.random.default_rng(0).uniform(0, window.seconds, 50).tolist():
        at_s = window.start_s + moment
        there = [e.device for e in trace.events if computes(e.lane) and e.start_s <= at_s < e.end_s]
        several += len(there) > len(set(there))
        stretch = np.searchsorted(found.edges_s, moment, side="right") - 1
        assert found.counts[:, stretch].sum() == len(set(there))
    assert several
    bars = re.findall(r"Device \d: busy ([\d.]+)%", utilization(window.events(trace), window, (0, 1)))
    assert sum(map(float, bars)) / 100 == pytest.approx(found.mean, abs=0.002)


def test_what_a_wave_leaves_of_another_may_begin_behind_the_window() -> None:
    """Two overlapping backwards of different waves both last beyond the window.

    The device counts once in each step of the window.
    """
    spans = (
        (COMPUTE, Kind.FORWARD, 0, 0.0, 1.0),
        (COMPUTE, Kind.BACKWARD, 0, 1.0, 4.0),
        (f"{COMPUTE}.1", Kind.BACKWARD, 1, 2.0, 5.0),
    )
    trace = Trace.of([Event(0, lane, f"{kind} {s}", kind, s, 0, a, b) for lane, kind, s, a, b in spans])
    assert all(computes(lane) for _, lane in trace.lanes)
    found = stairs_of(trace, Window(0.0, 3.0, 0, 1, 2))
    assert found is not None
    assert found.edges_s.tolist() == [0.0, 1.0, 3.0]
    assert found.counts.sum(axis=0).tolist() == [1, 1]
    assert found.shares == {1: 1.0}


def test_many_steps_become_means_and_keep_the_average(
    predicted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many steps become the maximum number of means, with the same average.

    The table is the same, and a note says so.
    """
    plan, trace, _ = predicted(8, 32)
    window = choose(trace, plan.microbatches, 1)
    fine, whole = stairs_of(trace, window), staircase(plan, trace, None)
    monkeypatch.setattr(module, "MOST_STEPS", 20)
    coarse, small = stairs_of(trace, window), staircase(plan, trace, None)
    assert fine is not None
    assert coarse is not None
    assert whole is not None
    assert small is not None
    assert (fine.binned, coarse.binned, coarse.counts.shape[1]) == (False, True, 20)
    assert coarse.mean == pytest.approx(fine.mean)
    assert (whole.note, small.table) == ("", whole.table)
    assert "more than 20 steps" in small.note


def test_bursts_are_steps_with_names() -> None:
    """A burst-parallel plan has named steps of 4, 2 and 1 devices and back.

    The sentence names the cluster's number of devices. The axis is in milliseconds.
    """
    plan, trace = burst()
    found = staircase(plan, trace, None)
    assert found is not None
    assert found.sentence.startswith("Of 4 devices that the plan uses (the cluster has 8), ")
    ((_, drawn),) = found.drawings
    texts = [e.text or "" for e in ET.fromstring(drawn).findall(".//{*}text")]
    plateaus = [t for t in texts if t.startswith("stage")]
    assert plateaus == ["stage 0", "stage 1", "stage 2", "stage 2", "stage 1", "stage 0"]
    assert "ms into the iteration" in texts
    rows = {row[0]: float(row[1].rstrip("%")) for row in found.table.rows}
    # One sample on each of 4 devices, 2 on each of 2, 4 on one: as long, twice, and four times as long.
    assert rows["4"] == pytest.approx(100 / 7, abs=0.2)
    assert rows["2"] == pytest.approx(200 / 7, abs=0.2)
    assert rows["1"] == pytest.approx(400 / 7, abs=0.2)


def test_a_run_stands_below_on_the_same_axes(predicted: Callable[..., Any]) -> None:
    """A measured run has a second drawing with the same ticks.

    The sentence has both averages, and the table has a column of measured shares.
    """
    plan, trace, _ = predicted()
    found = staircase(plan, trace, trace)
    assert found is not None
    assert [name for name, _ in found.drawings] == ["Predicted", "Measured"]
    ticks = [re.findall(r'<text class="tick"[^>]*>([^<]*)<', drawn) for _, drawn in found.drawings]
    assert ticks[0] == ticks[1]
    assert "; measured " in found.sentence
    assert found.table.columns[-1] == "measured"
    assert all(row[1] == row[2] for row in found.table.rows)


def test_areas_of_kinds_lie_on_each_other(predicted: Callable[..., Any]) -> None:
    """Forwards begin at 0 devices; above them lie backwards, up to all devices that compute."""
    plan, trace, _ = predicted(4, 8)
    found, drawn = stairs_of(trace, choose(trace, plan.microbatches, 1)), staircase(plan, trace, None)
    assert found is not None
    assert drawn is not None
    areas = dict(re.findall(r'<path class="(f0|b0)" d="([^"]*)z"', drawn.drawings[0][1]))
    heights = {name: [float(y) for y in re.findall(r"V([\d.]+)", path)] for name, path in areas.items()}
    floor, top = module.BOTTOM, min(min(own) for own in heights.values())
    device = (floor - top) / found.counts.sum(axis=0).max()
    assert max(heights["f0"]) == floor
    assert max(heights["b0"]) <= floor
    forwards = found.counts[module.FAMILIES.index("f")].max()
    assert min(heights["f0"]) == pytest.approx(floor - device * forwards, abs=0.1)


def test_where_nothing_computes_nothing_is_drawn(predicted: Callable[..., Any]) -> None:
    """An empty trace has no staircase."""
    plan, _, _ = predicted()
    assert staircase(plan, Trace.of([]), None) is None


def test_a_thousand_devices_are_drawn_small(predicted: Callable[..., Any]) -> None:
    """Each at work at another time: less than 60 kB, and a table of a few rows."""
    plan, _, _ = predicted()
    times = np.random.default_rng(0).uniform(0, 1, (1000, 5))
    events = [
        Event(d, COMPUTE, f"forward 0 #{m}", Kind.FORWARD, 0, m, m + start, m + start + 0.3)
        for d, starts in enumerate(times.tolist())
        for m, start in enumerate(starts)
    ]
    found = staircase(replace(plan, batch_size=1, microbatch_size=1), Trace.of(events), None)
    assert found is not None
    assert len(found.drawings[0][1]) < 60_000
    assert len(found.table.rows) <= 9
