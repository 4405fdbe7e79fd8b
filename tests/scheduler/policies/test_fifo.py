"""FIFO: the queue against the public policy, the weighted sum against one program.

The program has every job by itself.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import fifo
from hocket.scheduler.solver.lp.linear_program import solve
from hocket.scheduler.solver.lp.variables import AllocationVariables
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples

PUBLIC = references("fifo_perf") + references("fifo_packed")
# Where the only workers left are of a type that the next job does not run on, the public queue puts it there, to do nothing.
IN_VAIN = {("fifo_perf", "N128_seed2_multi.json")}


@pytest.mark.parametrize("reference", PUBLIC, ids=lambda r: f"{r['policy']}-{r['input']}")
def test_the_queue_is_the_public_one(reference: dict[str, Any]) -> None:
    """The queue equals the public policy in throughput and in used workers.

    The best weighted sum is at least the queue's.
    """
    given = snapshot(reference["input"], pairs="packed" in reference["policy"])
    found = fifo.allocate(given, strict=True)
    assert_it_can_be(given, found)
    public = reference["eval"]
    if (reference["policy"], reference["input"]) in IN_VAIN:
        assert (given.throughputs == 0).any()
    else:
        assert found.throughput(given).sum() == pytest.approx(public["sum_throughput"], rel=1e-9)
        assert found.used(given) == pytest.approx([public["used"][own.name] for own in given.types])
    best = fifo.allocate(given)
    assert_it_can_be(given, best)
    assert best.gap <= 1e-6
    assert best.objective >= found.objective * (1 - 1e-9)


def test_three_jobs_by_hand() -> None:
    """The queue gives the V100 to the first job and the K80 to the second.

    In the best weighted sum the first is on the K80, where it is nearly as fast: 3 * 0.9 + 2 is more than 3 + 2 *
    0.1.
    """
    jobs = tuple(Active(Job(str(k), "any", 1e3), 1e3) for k in range(3))
    steps = np.array([[10.0, 9.0], [10.0, 1.0], [10.0, 10.0]])
    given = Snapshot((WorkerType("v100", 1), WorkerType("k80", 1)), (Placement(0), Placement(1)), jobs, steps)
    queue = fifo.allocate(given, strict=True)
    assert queue.dense(given) == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    assert queue.objective == pytest.approx(3 + 2 * 0.1)
    assert queue.reasons[1].binding == "it is always on k80: earlier jobs took its fastest workers"
    best = fifo.allocate(given)
    assert best.dense(given) == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))
    assert best.objective == pytest.approx(3 * 0.9 + 2)


def test_who_came_first_is_said_by_when() -> None:
    """Arrival times determine the order, not positions in the snapshot."""
    jobs = tuple(
        Active(Job(name, "any", 1e3, arrived_s=came_s), 1e3) for name, came_s in (("late", 2.0), ("soon", 1.0))
    )
    given = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.ones((2, 1)))
    for strict in (False, True):
        assert fifo.allocate(given, strict=strict).dense(given)[:, 0] == pytest.approx([0.0, 1.0])


def test_nobody_overtakes() -> None:
    """The second job wants two workers, one is left, and the third waits with it."""
    jobs = tuple(Active(Job(str(k), "any", 1e3, scale), 1e3) for k, scale in enumerate((1, 2, 1)))
    given = Snapshot((WorkerType("v100", 2),), (Placement(0),), jobs, np.ones((3, 1)))
    found = fifo.allocate(given, strict=True)
    assert found.dense(given)[:, 0] == pytest.approx([1.0, 0.0, 0.0])
    assert "job 1, for which too few are left" in found.reasons[2].binding


def test_who_waits_joins_where_it_is_worth_it() -> None:
    """A waiting job joins a running one if both keep 0.8; with 0.7 they would not.

    The threshold is 1.5; the sum would be 1.4.
    """
    jobs = tuple(Active(Job(str(k), "any", 1e3), 1e3) for k in range(3))
    kept = np.full((3, 3, 1), 0.7)
    kept[0, 2] = kept[2, 0] = 0.8
    given = Snapshot((WorkerType("v100", 2),), (Placement(0),), jobs, np.ones((3, 1)), Pairs(np.arange(3), kept))
    found = fifo.allocate(given, strict=True)
    assert found.throughput(given) == pytest.approx([0.8, 1.0, 0.8])
    kept[0, 2] = kept[2, 0] = 0.7
    found = fifo.allocate(replace(given, pairs=Pairs(np.arange(3), kept)), strict=True)
    assert found.throughput(given) == pytest.approx([1.0, 1.0, 0.0])


@pytest.mark.parametrize("pairs", [None, Pairs(np.zeros(0, dtype=int), np.ones((1, 1, 1)))])
def test_nobody(pairs: Pairs | None) -> None:
    """Without jobs the allocation is empty."""
    given = Snapshot((WorkerType("v100", 2),), (Placement(0),), (), np.ones((0, 1)), pairs)
    assert fifo.allocate(given).objective == 0
    assert len(fifo.allocate(given, strict=True).fraction) == 0


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.integers(1, 14))
def test_it_is_the_best_sum(seed: int, pairs: bool, spread: bool, jobs: int) -> None:
    """Grouping jobs does not change the optimum."""
    given = crowd(seed, jobs, pairs, spread)
    found = fifo.allocate(given)
    assert_it_can_be(given, found)
    shares = AllocationVariables(given, (np.arange(jobs),))
    fits = given.scale[:, None] <= given.workers[given.type_of]
    steps = (given.throughputs * fits).max(axis=1)
    weights = np.cumsum((steps > 0)[::-1])[::-1] / np.where(steps > 0, steps, 1.0)
    weights = weights[shares.member]
    worth = weights[shares.first] * shares.steps_first
    both = shares.second >= 0
    worth[both] += (weights[shares.second] * shares.steps_second)[both]
    best = -solve(shares.program(-worth), "test").objective
    assert found.objective == pytest.approx(best, rel=1e-7)
    assert found.gap <= 1e-6
