"""Memory and compute of one iteration: waves, gang-scheduled and measured."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.planning.waves.compare import courses, launched_at_once
from hocket.planning.waves.room import in_waves
from hocket.profiling.analytic.synthetic import chain
from hocket.program.trace.trace import Trace
from hocket.reporting import PlanResults, report_html
from hocket.reporting.plan_report.usage_panel import usage_panel
from hocket.util.units import show_bytes
from tests.reporting.helpers import documents

FOUR = Cluster("four", (Level("nvlink", 4, 25e9, 5e-6),), "v100-16gb", memory_bytes=1.5e9)
PROFILE = chain(
    8, activation_bytes=1e6, stash_bytes=1e8, microbatch_sizes=(1,), device_type="v100-16gb", forward_s=1e-2
)
NAMES = [layer.name for layer in PROFILE.layers]
STRAIGHT = Plan(
    "model_parallel", "chain", 1, 1, tuple(PlanStage((NAMES[2 * s], NAMES[2 * s + 1]), (s,)) for s in range(4)), FOUR
)
WAVES = in_waves(STRAIGHT, 4)


def test_waves_stand_beside_one_of_them() -> None:
    """The panel shows all waves of a plan beside one wave.

    One wave computes with a quarter of each device. Four waves use all of it, for four times as many samples in nearly
    the same time. Both are shown for a plan of either kind.
    """
    trace, _ = predict(WAVES, PROFILE)
    alone, waves = courses(WAVES, PROFILE, trace)
    assert [alone.title, waves.title] == [
        "gang-scheduled: model_parallel, 1 microbatch of 1",
        "waves, 4 microbatches of 1",
    ]
    assert (alone.samples, waves.samples) == (1, 4)
    assert waves.usage.period_s < 1.05 * alone.usage.period_s
    assert [alone.usage.compute_share(d) for d in range(4)] == pytest.approx([0.25] * 4, rel=0.02)
    assert min(waves.usage.compute_share(d) for d in range(4)) > 0.97
    trace, _ = predict(STRAIGHT, PROFILE)
    one, other = courses(STRAIGHT, PROFILE, trace)
    assert one.note == "room for 4 waves: the schedule allows at most 4 waves"
    assert (one.title, other.title) == (alone.title, waves.title)
    assert launched_at_once(WAVES) == replace(STRAIGHT, predicted=None)


@pytest.mark.slow
@pytest.mark.parametrize(("memory_bytes", "waves"), [(0.67e9, 2), (0.7e9, 3)])
def test_as_many_waves_are_shown_as_fit(memory_bytes: float, waves: int) -> None:
    """The panel shows the number of waves that fit in memory.

    The first estimate ignores gradients that are kept for the sum. It is lowered by one as long as the simulated waves
    do not fit (appendix B.2).
    """
    plan = replace(STRAIGHT, cluster=replace(FOUR, memory_bytes=memory_bytes))
    trace, _ = predict(plan, PROFILE)
    alone, several = courses(plan, PROFILE, trace)
    assert alone.note.startswith("room for 3 waves: 4 waves would need ")
    assert alone.note.endswith("; simulated one fewer each time: 3 do not fit, 2 take 0% longer than one") == (
        waves == 2
    )
    assert several.title == f"waves, {waves} microbatches of 1"
    assert max(several.usage.peak_bytes(d) for d in range(4)) <= memory_bytes


@pytest.mark.parametrize("strategy", ["gpipe", "flush"])
def test_others_stand_alone(strategy: str) -> None:
    """A pipeline has no waves; only its own iteration is shown.

    See figures 5 b and 6 b.
    """
    plan = replace(STRAIGHT, strategy=strategy, batch_size=4)
    trace, summary = predict(plan, PROFILE)
    (own,) = courses(plan, PROFILE, trace)
    assert own.usage.period_s == pytest.approx(summary.iteration_s, rel=0.02)
    for device, share in summary.utilization.items():
        assert own.usage.compute_share(device) == pytest.approx(share, rel=0.02)
        assert own.usage.peak_bytes(device) <= summary.peak_memory_bytes[device]


def test_the_drawing_is_what_was_counted() -> None:
    """The drawing has a cell for each device of each run.

    The table has a row for each run. A measured run without a memory curve shows its peak.
    """
    trace, summary = predict(WAVES, PROFILE)
    real = Trace.of(trace.events, meta={"peak_memory_bytes": {str(d): 9e8 for d in range(4)}})
    found = usage_panel(courses(WAVES, PROFILE, trace), real, WAVES.batch_size, dict.fromkeys(range(4), 1.5e9))
    assert found is not None
    assert (found.measured, found.flat, found.limited, found.rest) == (True, True, True, 0)
    assert [row[0] for row in found.figures.rows][1:] == ["waves, 4 microbatches of 1", "measured"]
    assert [row[1] for row in found.figures.rows] == ["1", "4", "4"]
    assert found.figures.rows[1][4] == found.figures.rows[2][4]
    titles = [title.text or "" for title in ET.fromstring(found.drawing).findall(".//{*}title")][1:]
    shares = [float(re.findall(r"computes ([\d.]+)%", title)[0]) for title in titles]
    assert len(shares) == 12
    assert shares[:4] == pytest.approx([25.0] * 4, rel=0.03)
    assert min(shares[4:]) > 97
    page = report_html(PlanResults(WAVES, trace, summary, real), courses=courses(WAVES, PROFILE, trace))
    text = " ".join(documents.check(page).text)
    assert "Memory and compute over one iteration, predicted and measured" in text
    assert "Waves use the memory and compute that other waves leave idle." in text


def test_many_devices_are_counted_and_not_drawn() -> None:
    """The size of a drawing is bounded."""
    names = tuple(NAMES)
    cluster = replace(FOUR, levels=(replace(FOUR.levels[0], width=12),))
    plan = Plan("data_parallel", "chain", 12, 1, (PlanStage(names, tuple(range(12))),), cluster)
    trace, _ = predict(plan, PROFILE)
    found = usage_panel(courses(plan, PROFILE, trace), None, 12, {})
    assert found is not None
    assert found.rest == 4
    assert found.notes[0].startswith("gang-scheduled: data_parallel, 12 microbatches of 1: room for 1 wave: ")
    assert usage_panel((), None, 12, {}) is None


@pytest.mark.parametrize("options", [{}, {"align": "both"}, {"align": "forwards"}], ids=str)
def test_a_second_wave_on_the_same_devices(options: dict[str, str]) -> None:
    """Tick-tock is shown beside data parallelism (figures 1 and 2).

    The same device computes more and holds more memory. This also holds with the options that a search sets.
    """
    half = tuple(
        replace(one, forward_s=(1e-2, 2e-2), backward_s=(2e-2, 4e-2))
        for one in chain(8, microbatch_sizes=(1, 4)).layers
    )
    profile = replace(chain(8, microbatch_sizes=(1, 4), device_type="v100-16gb"), layers=half)
    stage = PlanStage(tuple(NAMES), (0, 1, 2, 3))
    plan = replace(in_waves(Plan("data_parallel", "chain", 4, 1, (stage,), FOUR), 2), options=dict(options))
    trace, summary = predict(plan, profile)
    alone, both = courses(plan, profile, trace)
    page = " ".join(documents.check(report_html(PlanResults(plan, trace, summary), courses=(alone, both))).text)
    assert "chain: tick_tock 4 x 2 waves" in page
    held = (summary.peak_memory_bytes[0], both.usage.peak_bytes(0))
    assert held[0] > held[1]
    assert f"{show_bytes(held[0])} ({show_bytes(held[1])} drawn)" in page, "and why, in a sentence"
    assert "at most, in any timing" in page
    assert dict(both.most_bytes) == summary.peak_memory_bytes == trace.peak_memory_bytes()
    assert (alone.title, both.title) == (
        "gang-scheduled: data_parallel, 4 microbatches of 1",
        "tick_tock, 8 microbatches of 1",
    )
    for device in range(4):
        assert both.usage.compute_share(device) > 1.2 * alone.usage.compute_share(device)
        assert both.usage.peak_bytes(device) > alone.usage.peak_bytes(device)
