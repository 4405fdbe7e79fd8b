"""Makespan against the public policy, and on cases worked out by hand."""

from typing import Any

import numpy as np
import pytest

from hocket.cluster.job import Job
from hocket.cluster.policies import makespan
from hocket.cluster.snapshot import Active, Snapshot
from hocket.cluster.workers import Column, WorkerType
from tests.cluster.gavel import references, snapshot


def halved(makespan_s: float) -> float:
    """Where the public policy's search for a makespan ends: between 100 s and 1e6 s, it halves down to 5 %."""
    low, high = 100.0, 1e6
    while 1.05 * low < high:
        middle = (low + high) / 2
        low, high = (low, middle) if middle >= makespan_s else (middle, high)
    return high


@pytest.mark.parametrize("reference", references("min_total_duration_perf"), ids=lambda r: r["input"])
def test_the_objective_is_the_best_that_the_public_search_can_end_at(reference: dict[str, Any]) -> None:
    """The public policy stops within 5 % of the optimum: its jobs end after ours, and before where its search ends for our
    optimum; a makespan 5 % less, or more, would end elsewhere."""
    there = snapshot(reference["input"])
    found = makespan.allocate(there)
    theirs_s = reference["eval"]["makespan_s"]
    assert found.objective <= theirs_s * (1 + 1e-6)
    assert theirs_s <= halved(found.objective) * (1 + 1e-6) <= 1.01 * theirs_s
    assert (there.remaining_steps / found.throughput(there)).max() == pytest.approx(found.objective, rel=1e-6)
    assert found.gap <= 1e-6


@pytest.mark.parametrize("reference", references("min_total_duration_packed", 32), ids=lambda r: r["input"])
def test_the_objective_with_all_pairs_is_the_best_that_the_public_search_can_end_at(reference: dict[str, Any]) -> None:
    """As without pairs."""
    there = snapshot(reference["input"], pairs=True)
    found = makespan.allocate(there)
    theirs_s = reference["eval"]["makespan_s"]
    assert found.objective <= theirs_s * (1 + 1e-6) <= halved(found.objective) * (1 + 1e-4)
    assert (there.remaining_steps / found.throughput(there)).max() == pytest.approx(found.objective, rel=1e-6)
    assert found.gap <= 1e-6


def test_two_jobs_on_unlike_workers() -> None:
    """A job of 60 steps and one of 90, on one worker of 3 steps a second and one of 1.5: 150 / 4.5 seconds."""
    steps = np.array([[3.0, 1.5], [3.0, 1.5]])
    jobs = Active(Job("a", "any", 60.0), 60.0), Active(Job("b", "any", 90.0), 90.0)
    there = Snapshot((WorkerType("v100", 1), WorkerType("k80", 1)), (Column(0), Column(1)), jobs, steps)
    assert makespan.allocate(there).objective == pytest.approx(150 / 4.5)


def test_the_longest_job_alone() -> None:
    """A job of 300 steps takes the fastest worker all the time: 100 seconds, however short the other is."""
    steps = np.array([[3.0, 1.5], [3.0, 1.5]])
    jobs = Active(Job("a", "any", 300.0), 300.0), Active(Job("b", "any", 60.0), 60.0)
    there = Snapshot((WorkerType("v100", 1), WorkerType("k80", 1)), (Column(0), Column(1)), jobs, steps)
    found = makespan.allocate(there)
    assert found.objective == pytest.approx(100.0)
    assert found.dense(there)[0] == pytest.approx([1.0, 0.0])
