"""The middle of what is as good: by hand, and against what holds for any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hocket.cluster.allocation import ALONE, Allocation
from hocket.cluster.job import Job
from hocket.cluster.middle import middle
from hocket.cluster.policies import finish_time_fairness
from hocket.cluster.snapshot import Active, Snapshot
from hocket.cluster.workers import Column, WorkerType


def snapshot(steps: list[list[float]], workers: list[int], scales: list[int] | None = None) -> Snapshot:
    """Jobs of 1,000 steps that came one after the other."""
    scales = scales or [1] * len(steps)
    jobs = tuple(Active(Job(str(k), "m", 1e3, s), 1e3 - 7 * k, 60.0 * k) for k, s in enumerate(scales))
    types = tuple(WorkerType(f"type{k}", count) for k, count in enumerate(workers))
    return Snapshot(types, tuple(Column(k) for k in range(len(types))), jobs, np.array(steps), now_s=6000.0)


def alone(jobs: list[int], columns: list[int], times: list[float]) -> Allocation:
    """Entries of jobs alone."""
    return Allocation(np.array(jobs), np.full(len(jobs), ALONE), np.array(columns), np.array(times), 1.0)


def test_one_job_on_one_worker() -> None:
    """Nothing is asked: x is to be far from 0, twice, and from all the time, of the job and of the worker: a half."""
    there = snapshot([[3.0]], [1])
    found = middle(alone([0], [0], [1.0]), there, np.zeros(1))
    assert found.fraction.tolist() == pytest.approx([0.5], abs=1e-4)


def test_what_is_asked_is_given() -> None:
    """Of four workers; asked for 0.6 of its time, it has the x that makes 1/x + 1/(x - 0.6) what 1/(1 - x) + 1/(4 - x) is."""
    there = snapshot([[5.0]], [4])
    x = middle(alone([0], [0], [0.9]), there, np.array([3.0])).fraction[0]
    assert 1 / x + 1 / (x - 0.6 * 0.999) == pytest.approx(1 / (1 - x) + 1 / (4 - x), rel=1e-3)


def test_who_is_refused_gets_nothing() -> None:
    """A job larger than any type, and one that nothing is known of; where nobody runs nothing changes."""
    there = snapshot([[5.0], [5.0], [0.0]], [4], [1, 9, 1])
    found = alone([0], [0], [0.9])
    found.refused.update({1: "too large", 2: "runs nowhere"})
    assert set(middle(found, there, np.zeros(3)).first.tolist()) == {0}
    none = snapshot([[0.0]], [4])
    empty = alone([], [], [])
    assert middle(empty, none, np.zeros(1)) is empty


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 3))
@hypothesis_settings(max_examples=30, deadline=None)
def test_it_is_allowed_as_good_and_in_the_middle(seed: int, jobs: int, types: int) -> None:
    """Of finish-time fairness: no limit is passed, no rho is larger by more than a little; and no small step to another
    allocation that is allowed makes the product of all that is left larger."""
    draw = np.random.default_rng(seed)
    scales = draw.choice([1, 1, 2], jobs).tolist()
    there = snapshot(draw.uniform(0.2, 9.0, (jobs, types)).tolist(), draw.integers(2, 6, types).tolist(), scales)
    first = finish_time_fairness.allocate(there)
    asked = finish_time_fairness.asked(there, first.objective)
    found = middle(first, there, asked)
    assert (found.used(there) <= there.workers).all()
    assert (found.dense(there).sum(axis=1) <= 1).all()
    assert (found.throughput(there) >= asked * 0.998).all()
    x = found.dense(there)
    floor = np.minimum(asked * 0.999, first.throughput(there) * 0.9997)

    def product(x: np.ndarray) -> float:
        left = [x, 1 - x.sum(axis=1), there.workers - there.scale @ x, ((there.throughputs * x).sum(axis=1) - floor)]
        if min(float(part.min()) for part in left) <= 0:
            return -np.inf
        return float(sum(np.log(part).sum() for part in left))

    best = product(x)
    for _ in range(20):
        assert product(x * (1 + 1e-3 * draw.uniform(-1, 1, x.shape))) <= best + 1e-2
