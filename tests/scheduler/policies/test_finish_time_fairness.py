"""Finish-time fairness: against the public policy, one program, and by hand.

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
from hocket.scheduler.policies import finish_time_fairness
from hocket.scheduler.policies.isolated import isolated_times
from hocket.scheduler.solver.lp.linear_program import solve
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples

PUBLIC = references("finish_time_fairness_perf") + references("finish_time_fairness_packed")


@pytest.mark.parametrize("reference", PUBLIC, ids=lambda r: f"{r['policy']}-{r['input']}")
def test_the_largest_rho_is_the_public_one(reference: dict[str, Any]) -> None:
    """The largest rho equals the public one to 1e-6, with a verified gap.

    On its first call the public policy counts no isolated time.
    """
    given = snapshot(reference["input"], pairs="packed" in reference["policy"])
    given = replace(given, jobs=tuple(replace(active, isolated_s=0.0) for active in given.jobs))
    found = finish_time_fairness.allocate(given)
    assert found.objective == pytest.approx(reference["eval"]["rho_max"], rel=1e-6)
    assert found.objective == pytest.approx(finish_time_fairness.rho(given, found).max(), rel=1e-12)
    assert found.gap <= 1e-6
    assert_it_can_be(given, found)


def test_two_jobs_by_hand() -> None:
    """Two equal jobs on one worker, one of which waited 100 s, get equal rho.

    Isolated, each does 0.5 steps a second: 100 steps take 200 s. The second has waited 100 s, all of them counted:
    with x of the worker rho is (100 + 100 / x) / 300, that of the first 100 / (1 - x) / 200. They are equal at x =
    0.5: 1 for both.
    """
    jobs = (Active(Job("new", "any", 1e3), 100.0), Active(Job("old", "any", 1e3), 100.0, 100.0))
    given = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.ones((2, 1)))
    found = finish_time_fairness.allocate(given)
    assert found.objective == pytest.approx(1.0)
    assert found.dense(given)[:, 0] == pytest.approx([0.5, 0.5])
    assert found.reasons[0].binding == "its rho is the largest, and v100 is full"


def test_a_job_that_did_not_wait_in_vain_gets_less() -> None:
    """If the 100 s of waiting do not count as isolated time, the job gets more.

    (100 + 100 / x) / 200 = 100 / (1 - x) / 200.
    """
    jobs = (Active(Job("new", "any", 1e3), 100.0), Active(Job("old", "any", 1e3), 100.0, 100.0, 0.0))
    given = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.ones((2, 1)))
    found = finish_time_fairness.allocate(given)
    x = (np.sqrt(5) - 1) / 2  # 1 + 1 / x = 1 / (1 - x)
    assert found.dense(given)[:, 0] == pytest.approx([1 - x, x])
    assert found.objective == pytest.approx(0.5 / (1 - x))


def test_a_job_whose_rho_equals_the_largest_need_not_have_less() -> None:
    """The first job alone sets the largest rho; the slower of the others has just that rho, and no worker is blamed."""
    jobs = [Active(Job("late", "any", 1e3), 100.0, 900.0, 0.0)]
    jobs += [Active(Job(name, "any", 1e3), 100.0, 0.0, 0.0) for name in ("x", "y")]
    given = Snapshot((WorkerType("v100", 2),), (Placement(0),), tuple(jobs), np.array([[1.0], [1.0], [1.01]]))
    found = finish_time_fairness.allocate(given)
    told = [reason.binding for reason in found.reasons]
    assert "even always on its fastest workers" in told[0]
    assert told[1] == "its rho need not be below the largest"
    assert told[2].startswith("its rho is 0.")


def _needed(given: Snapshot, rho: float) -> float:
    """Least missing part of any job's throughput for this rho; 0 if none is missing.

    Each job is its own group.
    """
    shares = AllocationVariables(given, (np.arange(len(given.jobs)),))
    groups, variables, steps = shares.throughput
    isolated = (isolated_times(given) * given.throughputs).sum(axis=1)
    counted = np.array([active.isolated_s for active in given.jobs])
    wanted = given.remaining_steps / (rho * (counted + given.remaining_steps / isolated) - given.elapsed_s)
    wanted = wanted[shares.member]
    slack = np.full(shares.groups, shares.variables)
    rows = Constraints(
        np.concatenate([groups, np.arange(shares.groups)]),
        np.concatenate([variables, slack]),
        np.concatenate([steps / wanted[groups], np.ones(shares.groups)]),
        np.ones(shares.groups),
        np.full(shares.groups, np.inf),
    )
    cost = np.append(np.zeros(shares.variables), 1.0)
    return solve(shares.program(cost, rows, extra=((0.0, 1.0),)), "test").objective


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.integers(2, 14))
def test_nothing_less_can_be(seed: int, pairs: bool, spread: bool, jobs: int) -> None:
    """The rho is feasible, and a rho of a millionth less is not.

    Each job is its own group.
    """
    given = crowd(seed, jobs, pairs, spread)
    found = finish_time_fairness.allocate(given)
    assert_it_can_be(given, found)
    running = [j for j in range(jobs) if j not in found.refused]
    given = replace(given, jobs=tuple(given.jobs[j] for j in running), throughputs=given.throughputs[running])
    if given.pairs is not None:
        given = replace(given, pairs=Pairs(given.pairs.classes[running], given.pairs.kept))
    if running:
        assert found.gap <= 1e-6
        assert _needed(given, found.objective * (1 + 1e-8)) <= 1e-7
        assert _needed(given, found.objective * (1 - 1e-6)) > 1e-9


def test_a_job_that_cannot_run_is_told_and_the_others_share() -> None:
    """A job that needs more workers than exist is refused; the others share."""
    jobs = (Active(Job("huge", "any", 1e3, 8), 100.0), Active(Job("small", "any", 1e3), 100.0))
    given = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.ones((2, 1)))
    found = finish_time_fairness.allocate(given)
    assert found.dense(given)[:, 0] == pytest.approx([0.0, 1.0])
    assert "8 workers" in found.refused[0]


def test_nobody() -> None:
    """Without jobs the allocation is empty."""
    given = Snapshot((WorkerType("v100", 1),), (Placement(0),), (), np.zeros((0, 1)))
    assert len(finish_time_fairness.allocate(given).fraction) == 0
