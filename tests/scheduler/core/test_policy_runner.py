"""Policy calls: their conditions and their snapshots."""

from math import inf
from typing import Any

import numpy as np
import pytest

from hocket.scheduler.core.job_table import JobTable
from hocket.scheduler.core.lease_table import LeaseTable
from hocket.scheduler.core.policy_runner import PolicyRunner
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.linear_program import SolverTrouble
from tests.scheduler.helpers.drive import cluster, even

NONE = np.zeros(0, dtype=np.int64)


def asking(kept: np.ndarray | None = None, **how: Any) -> PolicyRunner:
    """Runner of a policy that divides evenly."""
    return PolicyRunner(even, Settings(**how), kept, (), None)


def answered(now_s: float, holds_s: float = inf, fill: bool = True, **how: Any) -> PolicyRunner:
    """Runner whose policy, asked at this time about one job, gave an empty allocation."""
    found = Allocation(NONE, NONE, NONE, np.zeros(0), 0.0, holds_s=holds_s, fill=fill)
    one, roster = PolicyRunner(lambda _: found, Settings(**how), None, (), None), JobTable(1)
    roster.add(Job("a", "any", 10.0), (1.0,), -1)
    one.stale = one.must = True
    assert one.ask(roster, LeaseTable(cluster(2)), now_s, 0.0) == (found, "")
    return one


@pytest.mark.parametrize(
    ("how", "holds_s", "state", "due"),
    [
        ({}, inf, "", [False, False, False]),
        ({}, inf, "stale", [True, True, True]),
        ({"recompute": "rounds"}, inf, "", [True, True, True]),
        ({"recompute_after_s": 1000.0}, inf, "stale", [False, False, True]),
        ({"recompute_after_s": 1000.0}, inf, "must", [True, True, True]),
        ({}, 500.0, "", [False, True, True]),
        ({"recompute_after_s": 1000.0}, 500.0, "", [False, False, True]),
    ],
)
def test_when_an_answer_has_aged(how: dict[str, Any], holds_s: float, state: str, due: list[bool]) -> None:
    """An allocation made at 100 s is checked at 200, 700 and 1,200 s.

    It expires by changes, or by its own validity.
    """
    assert asking(**how).due(0.0) is (how.get("recompute") == "rounds")  # nothing came yet
    one = answered(100.0, holds_s, **how)
    if state:
        setattr(one, state, True)
    assert [one.due(now_s) for now_s in (200.0, 700.0, 1200.0)] == due
    assert one.waits is (state == "stale" or holds_s < inf)


def test_an_answer_that_holds_ends_what_was_asked_for() -> None:
    """A new allocation clears requests, and determines the use of free workers."""
    one = answered(0.0, fill=False)
    assert (one.stale, one.must, one.fills) == (False, False, False)


def test_nobody_is_asked_about_nobody_and_trouble_is_told() -> None:
    """Without jobs there is no call; a solver failure is reported."""

    def fails(snapshot: Snapshot) -> Allocation:
        raise SolverTrouble("fairness: time limit")

    roster, floor = JobTable(1), LeaseTable(cluster(2))
    one = PolicyRunner(fails, Settings(), None, (), None)
    one.must = True
    assert one.ask(roster, floor, 0.0, 0.0) == (None, "")
    roster.add(Job("a", "any", 10.0), (1.0,), -1)
    found, trouble = one.ask(roster, floor, 0.0, 0.0)
    assert found is None
    assert trouble == "fairness: time limit; the last allocation stays in effect"


def test_who_shares_with_nobody_has_a_class_of_its_own() -> None:
    """An additional class keeps nothing beside any other."""
    roster = JobTable(1)
    roster.add(Job("a", "any", 10.0), (1.0,), 0)
    roster.add(Job("b", "any", 10.0), (1.0,), -1)
    pairs = asking(np.full((1, 1, 1), 0.6)).snapshot(roster, LeaseTable(cluster(2)), 5.0, 0.0).pairs
    assert pairs is not None
    assert pairs.classes.tolist() == [0, 1]
    assert pairs.kept[:, :, 0].tolist() == [[0.6, 0.0], [0.0, 0.0]]
