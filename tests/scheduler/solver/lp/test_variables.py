"""Variables: groups of jobs, their variables, and refused jobs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.solver.lp import variables
from hocket.scheduler.solver.lp.rejected import refusals
from hocket.scheduler.solver.lp.variables import AllocationVariables


def made(steps: list[list[float]], scale: list[int], workers: list[int], pairs: Pairs | None = None) -> Snapshot:
    """A snapshot of jobs of one step each."""
    jobs = tuple(Active(Job(str(j), "any", 1.0, own), 1.0) for j, own in enumerate(scale))
    types = tuple(WorkerType(f"type {k}", n) for k, n in enumerate(workers))
    return Snapshot(types, tuple(Placement(k) for k in range(len(types))), jobs, np.array(steps), pairs)


def test_alike_jobs_are_one_group() -> None:
    """Jobs form a group if throughputs, scale factor, key and class are equal."""
    same = [2.0, 1.0]
    there = made([same, same, [2.0, 1.5], same], [1, 1, 1, 2], [4, 4])
    assert AllocationVariables(there).group[0] == AllocationVariables(there).group[1]
    assert sorted(AllocationVariables(there).count.tolist()) == [1, 1, 2]
    assert AllocationVariables(there, (np.array([1.0, 2.0, 1.0, 1.0]),)).groups == 4
    classes = Pairs(np.array([0, 1, 0, 0]), np.zeros((2, 2, 2)))
    assert AllocationVariables(made([same] * 4, [1] * 4, [4, 4], classes)).groups == 2


@given(st.integers(0, 2**32 - 1))
def test_groups_are_told_apart_exactly(seed: int) -> None:
    """Groups equal those of a pairwise comparison; the sign of zero does not matter."""
    rng = np.random.default_rng(seed)
    table = rng.choice([0.0, -0.0, 1.0, 2.0, 4.0, 0.5, 1 + 1e-15], (3, 12))
    group, member, count = variables._alike(table)
    for i in range(12):
        for j in range(12):
            assert (group[i] == group[j]) == (table[:, i] == table[:, j]).all()
    assert (group[member] == np.arange(len(member))).all()
    assert (count == np.bincount(group)).all()


def test_unlike_jobs_of_the_same_mixed_bits_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all hashes collide, sorting separates the groups."""
    monkeypatch.setattr(variables, "_ODD", np.zeros(1, dtype=np.uint64))
    group, member, count = variables._alike(np.array([[1.0, 2.0, 1.0], [5.0, 5.0, 5.0]]))
    assert group[0] == group[2] != group[1]
    assert count[group[0]] == 2
    assert (group[member] == np.arange(2)).all()


def test_who_runs_nowhere_is_refused_with_the_reason() -> None:
    """Refused jobs have a reason.

    They have no throughput, or need more workers than any type, or than their types, have.
    """
    there = made([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]], [1, 9, 4, 1], [8, 2])
    shares = AllocationVariables(there)
    assert set(shares.refused) == {0, 1, 2}
    assert shares.refused[0] == "any runs on no type of worker here"
    assert shares.refused[1] == "it needs 9 workers, and no type has that many"
    assert shares.refused[2] == "it needs 4 workers, and no type that it runs on has that many"
    assert shares.group.tolist() == [-1, -1, -1, 0]


def test_without_workers_all_are_refused() -> None:
    """Without workers all jobs are refused."""
    there = Snapshot((), (), (Active(Job("a", "any", 1.0), 1.0),), np.zeros((1, 0)))
    assert set(AllocationVariables(there).refused) == set(refusals(there)) == {0}
    nobody = Snapshot((), (), (), np.zeros((0, 0)))
    assert AllocationVariables(nobody).refused == refusals(nobody) == {}
    assert AllocationVariables(nobody).groups == 0


def test_variables_are_those_that_can_be() -> None:
    """Variables exist for possible columns and pairs only.

    A group with itself needs two jobs.
    """
    kept = np.zeros((2, 2, 2))
    kept[0, 1] = kept[1, 0] = [0.5, 0.5]
    kept[0, 0] = 0.75
    pairs = Pairs(np.array([0, 0, 1]), kept)
    shares = AllocationVariables(made([[4.0, 2.0], [4.0, 2.0], [8.0, 0.0]], [1, 1, 1], [2, 2], pairs))
    two, one = shares.group[0], shares.group[2]
    seen = {
        (*sorted((a, b)), c, round(max(p, q), 9))
        for a, b, c, p, q in zip(
            *(
                x.tolist()
                for x in (shares.first, shares.second, shares.column, shares.steps_first, shares.steps_second)
            ),
            strict=True,
        )
    }
    beside = tuple(sorted((two, one)))
    assert seen == {
        (-1, two, 0, 4.0), (-1, two, 1, 2.0), (-1, one, 0, 8.0),
        (two, two, 0, 3.0), (two, two, 1, 1.5), (*beside, 0, 4.0),
    }  # fmt: skip


def test_limits_are_time_and_workers() -> None:
    """Limits of two jobs of four workers: two units of time, and eight workers."""
    shares = AllocationVariables(made([[1.0], [1.0]], [4, 4], [6]))
    limits = shares.limits
    assert limits.upper.tolist() == [2.0, 6.0]
    assert limits.values.tolist() == [1.0, 4.0]
