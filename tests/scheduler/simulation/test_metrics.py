"""Metrics of runs that are small enough to work out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.simulation.metrics import (
    ClusterRun,
    JobRecord,
    Span,
    cdf,
    fairness,
    held,
    jct_s,
    makespan_s,
    population,
    queueing_s,
    rhos,
    summary,
    worker_seconds,
)


def run() -> ClusterRun:
    """Two workers of 10 steps a second and two of 5.

    Job a runs alone, then beside b, then b runs alone; c never runs.
    """
    jobs = Job("a", "m", 150.0), Job("b", "m", 100.0, arrived_s=5.0, slo_s=12.0), Job("c", "m", 1.0, 9, 6.0)
    records = (
        JobRecord(jobs[0], (10.0, 5.0), 0.0, 15.0, (15.0, 0.0), 3.0, 1),
        JobRecord(jobs[1], (10.0, 5.0), 10.0, 20.0, (10.0, 0.0), 2.0, 0),
        JobRecord(jobs[2], (10.0, 5.0), None, None, (0.0, 0.0), 0.0, 0, "too large"),
    )
    spans = Span((0,), 0, 1, 0.0, 15.0), Span((1,), 0, 1, 10.0, 20.0)
    types = WorkerType("fast", 2), WorkerType("slow", 2)
    return ClusterRun(types, records, spans, 20.0, 4, 3, (40.0, 40.0), ("a note",))


def test_times_of_jobs() -> None:
    """JCT, queueing time and makespan."""
    records = run().records
    assert jct_s(records).tolist() == [15.0, 15.0]
    assert queueing_s(records).tolist() == [0.0, 5.0]
    assert makespan_s(records) == 20.0
    assert makespan_s(records[2:]) == 0.0


def test_a_cdf_rises_to_one() -> None:
    """Sorted values, with the fraction at or below each."""
    values, part = cdf(np.array([3.0, 1.0, 2.0, 2.0]))
    assert values.tolist() == [1.0, 2.0, 2.0, 3.0]
    assert part.tolist() == [0.25, 0.5, 0.75, 1.0]


def test_finish_time_fairness_counts_who_was_there() -> None:
    """With n jobs, each has 2/n workers of each type, at most all its time.

    Alone (n = 1) a job is half of the time on each type: 7.5 steps a second, and so with two or with four jobs. The
    150 steps of a would take 20 s, the 100 steps of b 13.3 s.
    """
    times, counts = population(run())
    assert times.tolist() == [0.0, 5.0, 15.0, 20.0]
    assert counts.tolist() == [1, 2, 1, 1]
    assert rhos(run()) == pytest.approx([15 / 20, 15 / (100 / 7.5)])


def test_a_refused_job_is_never_present() -> None:
    """A refused job, even with a completion on record, neither comes nor leaves."""
    before = run()
    odd = replace(before.records[2], finished_s=10.0)
    after = replace(before, records=(*before.records[:2], odd))
    assert [part.tolist() for part in population(after)] == [part.tolist() for part in population(before)]


def test_finish_time_fairness_of_a_crowd() -> None:
    """Four jobs on one worker: each has a quarter of it, until the others leave."""
    records = tuple(
        JobRecord(Job(str(k), "m", 10.0), (1.0,), 10.0 * k, 10.0 * (k + 1), (10.0,), 0.0, 0) for k in range(4)
    )
    crowd = ClusterRun((WorkerType("only", 1),), records, (), 40.0, 1, 1, (40.0,))
    # A quarter for 10 s, a third for 10, a half for 10, all: 2.5 + 3.33 + 4.17 of the half's 5 = 10 after 28.3 s.
    assert rhos(crowd) == pytest.approx([k / 28.3333333 for k in (10, 20, 30, 40)])


def test_the_summary_counts_all() -> None:
    """The summary counts late and refused jobs, utilization and costs."""
    found = summary(run())
    assert (found.jobs, found.finished, found.refused) == (3, 2, 1)
    assert (found.slo_violations, found.with_slo, found.preemptions) == (1, 1, 1)
    assert found.utilization_by_type == {"fast": 25 / 40, "slow": 0.0}
    assert found.utilization == 25 / 80
    assert found.cost_usd == 5.0
    assert found.jct_percentiles_s["p99"] == 15.0
    assert found.notes == ("a note",)
    assert summary(run(), 1, 2).avg_queueing_s == 5.0


def test_without_a_finished_job_there_are_no_times() -> None:
    """The metrics of finished and started jobs are None, not 0, if there are none."""
    nobody = summary(run(), 2)
    assert (nobody.jobs, nobody.finished) == (1, 0)
    assert (nobody.avg_jct_s, nobody.makespan_s, nobody.avg_rho, nobody.max_rho) == (None, None, None, None)
    assert set(nobody.jct_percentiles_s.values()) == {None}
    assert nobody.avg_queueing_s is None


def test_what_is_held_is_cut_at_edges() -> None:
    """Held time is cut at edges, and adds up to the whole."""
    found = held(run(), np.array([0.0, 8.0, 12.0, 40.0]))
    assert found[:, :, 0].tolist() == [[8.0, 0.0, 0.0], [4.0, 2.0, 0.0], [3.0, 8.0, 0.0]]
    assert found.sum(axis=(0, 1)).tolist() == worker_seconds(run()).tolist()


def test_fairness_over_time() -> None:
    """Jain's index of jobs present all along.

    0.9 if one had twice as much, and 1 if there is no job to compare with.
    """
    assert fairness(run(), np.array([0.0, 5.0, 15.0, 20.0])).tolist() == pytest.approx([1.0, 225 / (2 * 125), 1.0])
