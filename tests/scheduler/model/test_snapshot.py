"""Snapshots: validation, and values derived from their jobs."""

from dataclasses import replace

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType


def two_jobs(steps: list[list[float]], names: tuple[str, str] = ("a", "b")) -> Snapshot:
    """Two jobs of one and three workers; the second arrived first."""
    jobs = (Job(names[0], "any", 1e3, 1, 5.0), Job(names[1], "any", 1e3, 3, 2.0))
    types = (WorkerType("v100", 4), WorkerType("k80", 2))
    return Snapshot(types, (Placement(0), Placement(1)), tuple(Active(job, 1e3) for job in jobs), np.array(steps))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), float("-inf")])
def test_throughputs_are_numbers_from_0(wrong: float) -> None:
    """An invalid throughput is refused, with job and column."""
    with pytest.raises(InputError, match="job b: throughput on k80: found"):
        two_jobs([[1.0, 2.0], [3.0, wrong]])
    with pytest.raises(InputError, match="job a: throughput on v100: found"):
        two_jobs([[wrong, 2.0], [3.0, 4.0]])


def test_throughputs_are_of_jobs_and_columns() -> None:
    """Throughputs have one row per job and one number per column."""
    with pytest.raises(InputError, match=r"an array of shape \(1, 2\)"):
        two_jobs([[1.0, 2.0]])


def test_names_are_unique() -> None:
    """Two jobs with the same name are refused."""
    with pytest.raises(InputError, match="job a: found two jobs with this name"):
        two_jobs([[1.0, 2.0], [3.0, 4.0]], ("a", "a"))


def test_figures_of_jobs() -> None:
    """Derived values are those of the snapshot's jobs, also for a changed snapshot."""
    there = two_jobs([[1.0, 2.0], [3.0, 4.0]])
    assert (there.scale_factors, there.arrived_s, there.everywhere) == ([1, 3], [5.0, 2.0], True)
    fewer = replace(there, jobs=there.jobs[1:], throughputs=np.array([[0.0, 4.0]]))
    assert (fewer.scale_factors, fewer.arrived_s, fewer.everywhere) == ([3], [2.0], False)


def test_whether_all_run() -> None:
    """`all_run` is False for jobs without workers or without throughput.

    A job needs more workers than its only type has, or has no throughput.
    """
    assert two_jobs([[1.0, 2.0], [3.0, 4.0]]).all_run
    assert not two_jobs([[1.0, 2.0], [0.0, 4.0]]).all_run
    assert not two_jobs([[0.0, 0.0], [3.0, 4.0]]).all_run
    nobody = replace(two_jobs([[1.0, 2.0], [3.0, 4.0]]), jobs=(), throughputs=np.zeros((0, 2)))
    assert nobody.all_run
    assert not nobody.everywhere
    nowhere = replace(two_jobs([[1.0, 2.0], [3.0, 4.0]]), columns=(), throughputs=np.zeros((2, 0)))
    assert not nowhere.all_run
