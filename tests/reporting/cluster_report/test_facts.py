"""Figures side by side: which is best, and what is not to be compared."""

from dataclasses import replace

import pytest

from hocket.reporting.cluster_report import facts
from hocket.scheduler.core.events import PriceChanged
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import ClusterRun, summary
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.trace_generator import static
from tests.reporting.helpers import clusters


def rows(*runs: ClusterRun) -> dict[str, facts.FactRow]:
    """By name."""
    return {row.name: row for row in facts.summary_rows([summary(run) for run in runs])}


def test_the_best_is_marked_and_others_have_their_ratio() -> None:
    """Jobs take 60 and 80 s, or 120 and 160: twice as long."""
    found = rows(clusters.pair(), clusters.slower())
    jct = found["average JCT"]
    assert [c.value for c in jct.cells] == ["70 s", "140 s"]
    assert [c.best for c in jct.cells] == [True, False]
    assert [c.times for c in jct.cells] == ["", "2.00 ×"]
    assert [c.best for c in found["utilisation"].cells] == [False, False]


def test_equal_figures_have_no_best() -> None:
    """Equal figures, and figures of a single policy, have no best."""
    assert not any(c.best for c in rows(clusters.pair(), clusters.slower())["preemptions"].cells)
    assert not any(c.best for row in rows(clusters.pair()).values() for c in row.cells)


def test_who_finished_fewer_is_not_compared() -> None:
    """Its average may be lower because long jobs are missing."""
    run = clusters.pair()
    partial = replace(run, records=(run.records[0], replace(run.records[1], finished_s=None)))
    found = rows(partial, clusters.slower())
    assert [c.value for c in found["average JCT"].cells] == ["60 s", "140 s"]
    assert not any(c.best for c in found["average JCT"].cells)
    assert [c.best for c in found["finished"].cells] == [False, True]


def test_percentiles_have_a_name_each() -> None:
    """The 50th percentile is the median; jobs take 60 and 80 s."""
    found = rows(clusters.pair())
    assert found["median JCT"].cells[0].value == "70 s"
    others = [f"{percent}th percentile of JCT" for percent in (90, 95, 99)]
    assert [name for name in found if "percentile" in name] == others


def test_nobody_finished() -> None:
    """Averages of nothing are not zero."""
    found = rows(clusters.stuck(), clusters.empty())
    for name in ("average JCT", "median JCT", "makespan", "average ρ"):
        assert {c.value for c in found[name].cells} == {facts.NONE}


def test_cost_by_type_is_what_was_paid() -> None:
    """The cost by worker type uses the prices at the time of each lease.

    A simulation keeps these prices with each lease. The price in a type's own entry is the initial price.
    """
    assert facts.cost_by_type(clusters.pair()) == pytest.approx([60 / 3600 * 3.0, 60 / 3600 * 1.0])
    table, types = packaged(), (WorkerType("v100", 1, 1, 1.0), WorkerType("k80", 1, 1, 0.5))
    work = static(table, 4, 0)
    dearer = [(600.0, PriceChanged(0, 7.0)), (1800.0, PriceChanged(1, 0.1))]
    run = simulate(work, types, table, policy_named("max_min_fairness"), given=dearer)
    bill = facts.cost_by_type(run)
    assert min(bill) > 0
    assert sum(bill) == pytest.approx(sum(r.cost_usd for r in run.records))
    assert facts.chips([("p", run)])[0] == "1 × v100, $1 an hour each at first"


def test_capacity_that_changed_is_seen() -> None:
    """Workers that were up for a part of the time."""
    assert not facts.capacity_changed(clusters.pair())
    assert facts.capacity_changed(replace(clusters.pair(), capacity_s=(100.0, 200.0)))


def test_refused_jobs_are_named_once() -> None:
    """With the policies that refused them."""
    run = clusters.pair()
    assert facts.refused_table([("p", run), ("q", run)]).rows == (("c", "asks for 9 workers", "all"),)
    assert facts.refused_table([("p", run), ("q", clusters.slower())]).rows == (("c", "asks for 9 workers", "p"),)
