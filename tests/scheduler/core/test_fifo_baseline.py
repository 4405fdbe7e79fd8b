"""First come: in order, each on the first type with room, where it stays."""

from dataclasses import replace

import numpy as np
import pytest

from hocket.scheduler.core.fifo_baseline import FirstCome
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType

TYPES = WorkerType("fast", 2), WorkerType("slow", 2)


def snapshot(*names: str, scales: dict[str, int] | None = None, nowhere: str = "") -> Snapshot:
    """Jobs of these names on two types of two workers."""
    jobs = tuple(Active(Job(n, "m", 9.0, (scales or {}).get(n, 1)), 9.0) for n in names)
    steps = np.array([[0.0, 0.0] if n in nowhere else [2.0, 1.0] for n in names])
    return Snapshot(TYPES, (Placement(0), Placement(1)), jobs, steps)


def test_types_are_filled_in_their_order() -> None:
    """Four run, the fifth waits and is told why."""
    there = snapshot(*"abcde")
    found = FirstCome()(there)
    assert found.dense(there).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 0]]
    assert found.objective == 4
    assert "earlier jobs" in found.reasons[4].binding
    assert "where it started" in found.reasons[0].change


def test_who_runs_stays_where_it_is() -> None:
    """Also when a faster place is free; that goes to the next in order."""
    policy = FirstCome()
    policy(snapshot(*"abcde"))
    there = snapshot(*"bcde")
    assert policy(there).dense(there).tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]


@pytest.mark.parametrize("overbook", [False, True])
def test_a_job_leaves_workers_on_which_it_does_nothing(overbook: bool) -> None:
    """Measured so after it began there: it takes a place elsewhere."""
    policy, there = FirstCome(overbook), snapshot("a")
    (began,) = policy(there).column.tolist()
    steps = there.throughputs.copy()
    steps[0, began] = 0.0
    assert began not in policy(replace(there, throughputs=steps)).column.tolist()


def test_a_large_job_is_not_overtaken() -> None:
    """It waits for two workers of one type, and those behind wait with it; jobs that run nowhere hold up nobody."""
    there = snapshot(*"axbcd", scales={"b": 2, "c": 2}, nowhere="x")
    found = FirstCome()(there)
    assert found.dense(there).tolist() == [[1, 0], [0, 0], [0, 1], [0, 0], [0, 0]]
    assert list(found.refused) == [1]


def test_as_in_the_public_simulator_more_have_a_place_than_there_is_room() -> None:
    """The type that is last by name is taken though the job is too large for what is free of it, as long as any type has room;
    who waits takes the place of one that is finished, before those are counted that came later."""
    there = snapshot(*"abcd", scales={"b": 2, "c": 2})
    policy = FirstCome(overbook=True)
    assert policy(there).dense(there).tolist() == [[0, 1], [0, 1], [0, 1], [0, 1]]
    later = snapshot(*"bcde", scales={"b": 2, "c": 2})
    assert policy(later).dense(later)[3].tolist() == [0, 1]


def test_a_full_type_takes_one_that_is_drawn_off_the_list() -> None:
    """Two fill the slow ones; then either the fast ones are next, or nothing has room."""
    found = set()
    for seed in range(20):
        there = snapshot(*"abc")
        found.add(tuple(map(tuple, FirstCome(overbook=True, seed=seed)(there).dense(there).tolist())))
    assert found == {((0, 1), (0, 1), (1, 0)), ((0, 1), (0, 1), (0, 0))}
