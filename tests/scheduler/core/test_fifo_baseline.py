"""FIFO baseline: in order of arrival, each job stays where it started."""

from dataclasses import replace

import numpy as np
import pytest

from hocket.scheduler.core.fifo_baseline import FirstCome
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType

TYPES = WorkerType("fast", 2), WorkerType("slow", 2)


def snapshot(*names: str, scales: dict[str, int] | None = None, nowhere: str = "") -> Snapshot:
    """Jobs with these names on two types of two workers."""
    jobs = tuple(Active(Job(n, "m", 9.0, (scales or {}).get(n, 1)), 9.0) for n in names)
    steps = np.array([[0.0, 0.0] if n in nowhere else [2.0, 1.0] for n in names])
    return Snapshot(TYPES, (Placement(0), Placement(1)), jobs, steps)


def test_types_are_filled_in_their_order() -> None:
    """Four jobs run; the fifth waits, with a reason."""
    there = snapshot(*"abcde")
    found = FirstCome()(there)
    assert found.dense(there).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 0]]
    assert found.objective == 4
    assert "earlier jobs" in found.reasons[4].binding
    assert "where it started" in found.reasons[0].change


def test_who_runs_stays_where_it_is() -> None:
    """A running job stays even if a faster worker is free.

    The faster worker goes to the next job in order.
    """
    policy = FirstCome()
    policy(snapshot(*"abcde"))
    there = snapshot(*"bcde")
    assert policy(there).dense(there).tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]


@pytest.mark.parametrize("overbook", [False, True])
def test_a_job_leaves_workers_on_which_it_does_nothing(overbook: bool) -> None:
    """A job measured to make no progress is placed elsewhere."""
    policy, there = FirstCome(overbook), snapshot("a")
    (began,) = policy(there).column.tolist()
    steps = there.throughputs.copy()
    steps[0, began] = 0.0
    assert began not in policy(replace(there, throughputs=steps)).column.tolist()


def test_a_large_job_is_not_overtaken() -> None:
    """A job that needs two workers of one type blocks the jobs behind it.

    Jobs that cannot run anywhere block no other job.
    """
    there = snapshot(*"axbcd", scales={"b": 2, "c": 2}, nowhere="x")
    found = FirstCome()(there)
    assert found.dense(there).tolist() == [[1, 0], [0, 0], [0, 1], [0, 0], [0, 0]]
    assert list(found.refused) == [1]


def test_as_in_the_public_simulator_more_have_a_place_than_there_is_room() -> None:
    """As in the public simulator, more jobs have a place than there is room.

    The type with the last name is chosen even if the job is too large for its free workers, as long as any type has
    room. A waiting job takes the place of a finished one before later arrivals are counted.
    """
    there = snapshot(*"abcd", scales={"b": 2, "c": 2})
    policy = FirstCome(overbook=True)
    assert policy(there).dense(there).tolist() == [[0, 1], [0, 1], [0, 1], [0, 1]]
    later = snapshot(*"bcde", scales={"b": 2, "c": 2})
    assert policy(later).dense(later)[3].tolist() == [0, 1]


def test_a_full_type_takes_one_that_is_drawn_off_the_list() -> None:
    """A full type removes a drawn type from the list.

    Two jobs fill the slow workers. Then either the fast ones are next, or no type has room.
    """
    found = set()
    for seed in range(20):
        there = snapshot(*"abc")
        found.add(tuple(map(tuple, FirstCome(overbook=True, seed=seed)(there).dense(there).tolist())))
    assert found == {((0, 1), (0, 1), (1, 0)), ((0, 1), (0, 1), (0, 0))}
