"""Words and figures of a plan's report."""

from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import Any

import pytest

from hocket.program.trace.compare import ComparedFigure, Comparison
from hocket.program.trace.error_parts import Parts
from hocket.program.trace.trace import Trace
from hocket.reporting.charts.window import batch_starts, choose
from hocket.reporting.plan_report import facts
from hocket.strategies.base.strategy import members
from hocket.util.units import show_bytes


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [((), ""), ((3,), "3"), ((0, 1), "0, 1"), ((2, 0, 1), "0–2"), ((0, 1, 2, 5, 7, 8), "0–2, 5, 7, 8")],
)
def test_ranges(numbers: tuple[int, ...], shown: str) -> None:
    """Runs of three or more are written in short."""
    assert facts.ranges(numbers) == shown


@pytest.mark.parametrize(("error", "shown"), [(0.1, "+10.0%"), (-0.052, "-5.2%"), (-0.0001, "0.0%"), (0.0, "0.0%")])
def test_differences_have_a_sign_unless_they_are_nothing(error: float, shown: str) -> None:
    """No minus zero."""
    assert facts.signed(error) == shown


def test_one_sentence_says_the_plan(predicted: Callable[..., Any]) -> None:
    """Model, stages, devices, batch and microbatches, singular where there is one."""
    plan, _, _ = predicted()
    assert facts.sentence(plan) == (
        "chain in 4 stages on 4 devices of lab: batches of 8 samples as 8 microbatches of 1."
    )
    single = replace(plan, stages=(plan.stages[0],), batch_size=1)
    assert "1 stage on 1 device of lab: batches of 1 sample as 1 microbatch of 1." in facts.sentence(single)
    again = replace(plan, stages=tuple(replace(s, recompute=True) for s in plan.stages))
    assert facts.sentence(again).endswith("every stage recomputed.")


def test_chips_count_devices_of_a_type(predicted: Callable[..., Any]) -> None:
    """Types with their devices come first, then the levels of the network."""
    plan, _, _ = predicted()
    assert facts.chips(plan)[:2] == ("4 × v100-16gb", "server: 4 at 80 Gbit/s, shared, latency 0 s")


@pytest.mark.parametrize(("batch", "said"), [(8, "2 microbatches of 4."), (9, "3 microbatches of at most 4.")])
def test_a_smaller_last_microbatch_is_said(predicted: Callable[..., Any], batch: int, said: str) -> None:
    """A batch of 9 is 4, 4 and 1 samples, although 3 microbatches could be equal."""
    plan, _, _ = predicted()
    found = replace(plan, batch_size=batch, microbatch_size=4)
    assert facts.sentence(found).endswith(f"batches of {batch} samples as {said}")


def test_the_strategy_speaks_for_itself(predicted: Callable[..., Any]) -> None:
    """Its own docstring and source; nothing for a name that is no strategy."""
    plan, _, _ = predicted()
    assert "section" in facts.about_strategy(plan)
    said = {name: facts.about_strategy(replace(plan, strategy=name)) for name in members()}
    assert said["flush"].startswith("PipeDream-Flush: 1F1B within a batch")
    assert len({text.split(" Source: ")[0] for text in said.values()}) == len(said), "each in its own words"
    assert facts.about_strategy(replace(plan, strategy="magic")) == ""


def test_measured_iterations_are_found(predicted: Callable[..., Any]) -> None:
    """The measured iteration time comes from the trace.

    In a trace that is 10% slower, it is 10% longer. A single batch gives no iteration time.
    """
    plan, trace, summary = predicted()
    slower = Trace.of([replace(e, start_s=e.start_s * 1.1, end_s=e.end_s * 1.1) for e in trace.events])
    assert facts.measured_iteration_s(slower, plan.microbatches) == pytest.approx(1.1 * summary.iteration_s)
    assert facts.measured_iteration_s(trace, 10**6) is None
    starts = batch_starts(trace, plan.microbatches)
    drained = replace(trace, meta={"segments_s": [0.0, *starts]})
    assert facts.measured_iteration_s(drained, plan.microbatches) is None


def test_traffic_is_that_of_the_summary(predicted: Callable[..., Any]) -> None:
    """The traffic table has each pair of devices once, the busiest first.

    The bytes are those of the summary. The bars are shares of the busiest pair.
    """
    plan, trace, summary = predicted()
    window = choose(trace, plan.microbatches)
    table = facts.traffic_table(plan, summary, window.events(trace), window)
    assert {row[0].replace(" → ", ">"): row[2] for row in table.rows} == {
        pair: show_bytes(size) for pair, size in summary.sent_bytes_between.items()
    }
    assert table.shares[0] == 1
    assert list(table.shares) == sorted(table.shares, reverse=True)


def test_stages_show_versions_and_stashes(predicted: Callable[..., Any]) -> None:
    """1F1B with stashing: 4 to 1 versions, as many stashes (section 2.4.3 and 3.3)."""
    plan, _, summary = predicted(4, 8, "pipedream")
    table = facts.stage_table(plan, summary)
    assert [row[6] for row in table.rows] == ["4", "3", "2", "1"]
    assert [row[7] for row in table.rows] == ["4", "3", "2", "1"]


def test_what_one_trace_lacks_is_a_dash() -> None:
    """Memory is written as bytes, times as times, and nan never appears."""
    found = Comparison(
        ComparedFigure("update", nan, 1.0),
        (ComparedFigure("forward 0", 0.5, nan, 3),),
        (),
        (ComparedFigure("memory", 2048, 1024),),
        0,
        0,
    )
    tables = dict(facts.difference_tables(found))
    assert tables["Means by kind and stage"].rows == (
        ("update", "–", "1 s", "–", "1"),
        ("forward 0", "500 ms", "–", "–", "3"),
    )
    assert tables["Peak memory"].rows == (("memory", "2.00 KiB", "1.00 KiB", "+100.0%", "1"),)
    assert "Instructions that differ most" not in tables


def test_the_parts_of_an_error_are_a_table() -> None:
    """Pace, waits and model with the seconds that each adds, and their sum."""
    parts = Parts(1.1, "instructions", 1.0, 2.0, 1.5)
    found = Comparison(ComparedFigure("update", 1.0, 2.0), (), (), (), 0, 0, parts=parts)
    rows = dict(facts.difference_tables(found))["Why an update took more or less time"].rows
    assert [row[1:] for row in rows] == [
        ("100 ms", "-5.0%"), ("500 ms", "-25.0%"), ("400 ms", "-20.0%"), ("1 s", "-50.0%"),
    ]  # fmt: skip
    assert "1.100 times as long" in rows[0][0]
