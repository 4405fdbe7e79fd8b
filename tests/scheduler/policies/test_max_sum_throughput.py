"""Maximum total throughput: against the public policy, and by hand."""

from typing import Any

import numpy as np
import pytest

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import max_sum_throughput
from tests.scheduler.helpers.gavel import references, snapshot


@pytest.mark.parametrize("reference", references("max_sum_throughput_perf"), ids=lambda r: r["input"])
def test_the_objective_is_the_public_one(reference: dict[str, Any]) -> None:
    """The objective equals the public one to 1e-6, and the jobs' throughputs.

    Its gap is verified.
    """
    there = snapshot(reference["input"])
    found = max_sum_throughput.allocate(there)
    assert found.objective == pytest.approx(reference["eval"]["sum_throughput"], rel=1e-6)
    assert found.throughput(there).sum() == pytest.approx(found.objective, rel=1e-9)
    assert found.gap <= 1e-6


def test_jobs_of_short_steps_come_first_and_share_where_that_is_more() -> None:
    """On one worker, 10 steps a second beat 4; two jobs that keep 80 % beat 10."""
    jobs = Active(Job("a", "any", 1.0), 1.0), Active(Job("b", "any", 1.0), 1.0)
    alone = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.array([[10.0], [4.0]]))
    assert max_sum_throughput.allocate(alone).objective == pytest.approx(10.0)
    kept = np.full((2, 2, 1), 0.8)
    pairs = Pairs(np.array([0, 1]), kept)
    shared = Snapshot(alone.types, alone.columns, jobs, alone.throughputs, pairs)
    assert max_sum_throughput.allocate(shared).objective == pytest.approx(0.8 * 14)
