"""Max-min fairness against the public policy, and on cases worked out by hand."""

from typing import Any

import numpy as np
import pytest

from hocket.cluster.job import Job
from hocket.cluster.policies import max_min_fairness
from hocket.cluster.snapshot import Active, Snapshot
from hocket.cluster.workers import Column, WorkerType
from tests.cluster.gavel import references, snapshot


@pytest.mark.parametrize("reference", references("max_min_fairness_perf"), ids=lambda r: r["input"])
def test_the_objective_is_the_public_one(reference: dict[str, Any]) -> None:
    """To 1e-6, and with a gap that was verified."""
    found = max_min_fairness.allocate(snapshot(reference["input"]))
    assert found.objective == pytest.approx(reference["eval"]["min_maxmin_obj"], rel=1e-6)
    assert found.gap <= 1e-6


def test_the_example_of_the_dissertation() -> None:
    """Section 5.4.1: three jobs that gain differently from a V100 get 10 % more than a third of each worker."""
    steps = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])
    jobs = tuple(Active(Job(str(k), "any", 1.0), 1.0) for k in range(3))
    types = WorkerType("v100", 1), WorkerType("k80", 1)
    there = Snapshot(types, (Column(0), Column(1)), jobs, steps)
    found = max_min_fairness.allocate(there)
    due = steps @ np.array([0.5, 0.5])
    assert np.min(found.throughput(there) / due) == pytest.approx(found.objective)
    assert found.objective / (2 / 3) == pytest.approx(1.09, abs=0.02)
    assert (found.used(there) <= 1 + 1e-9).all()
