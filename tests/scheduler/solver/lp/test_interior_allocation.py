"""Interior allocation: by hand, and properties of any result."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import finish_time_fairness, max_min_fairness
from hocket.scheduler.solver.lp.analytic_center import IndependentLimits, LimitMatrix, centre
from hocket.scheduler.solver.lp.interior_allocation import middle
from tests.tiers import examples


def snapshot(steps: list[list[float]], workers: list[int], scales: list[int] | None = None) -> Snapshot:
    """Jobs of 1,000 steps that arrived one after the other."""
    scales = scales or [1] * len(steps)
    jobs = tuple(Active(Job(str(k), "m", 1e3, s), 1e3 - 7 * k, 60.0 * k) for k, s in enumerate(scales))
    types = tuple(WorkerType(f"type{k}", count) for k, count in enumerate(workers))
    return Snapshot(types, tuple(Placement(k) for k in range(len(types))), jobs, np.array(steps), now_s=6000.0)


def alone(jobs: list[int], columns: list[int], times: list[float]) -> Allocation:
    """Entries of single jobs."""
    return Allocation(np.array(jobs), np.full(len(jobs), ALONE), np.array(columns), np.array(times), 1.0)


def test_one_job_on_one_worker() -> None:
    """Without a demand, a job has half of the time of one worker.

    The logarithms of x and of the slacks of job and worker balance there.
    """
    there = snapshot([[3.0]], [1])
    found = middle(alone([0], [0], [1.0]), there, np.zeros(1))
    assert found.fraction.tolist() == pytest.approx([0.5], abs=1e-4)


def test_what_is_asked_is_given() -> None:
    """A demand of 0.6 on four workers moves the center.

    The job has the x at which 1/x + 1/(x - 0.6) equals 1/(1 - x) + 1/(4 - x).
    """
    there = snapshot([[5.0]], [4])
    x = middle(alone([0], [0], [0.9]), there, np.array([3.0])).fraction[0]
    assert 1 / x + 1 / (x - 0.6 * 0.999) == pytest.approx(1 / (1 - x) + 1 / (4 - x), rel=1e-3)


def test_who_is_refused_gets_nothing() -> None:
    """Refused jobs get nothing; without running jobs nothing changes.

    One job is larger than any type, the other has no throughput.
    """
    there = snapshot([[5.0], [5.0], [0.0]], [4], [1, 9, 1])
    found = alone([0], [0], [0.9])
    found.refused.update({1: "too large", 2: "runs nowhere"})
    assert set(middle(found, there, np.zeros(3)).first.tolist()) == {0}
    none = snapshot([[0.0]], [4])
    empty = alone([], [], [])
    assert middle(empty, none, np.zeros(1)) is empty


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 3))
@examples(30)
def test_it_is_allowed_as_good_and_in_the_middle(seed: int, jobs: int, types: int) -> None:
    """The result is feasible, equally good, and an analytic center.

    With finish-time fairness, no rho grows by more than a little. No small step to another feasible allocation
    increases the product of slacks.
    """
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


def sharing(there: Snapshot, kinds: np.ndarray, kept: np.ndarray) -> Snapshot:
    """The same snapshot, with shares that kinds of jobs keep beside each other."""
    columns = there.throughputs.shape[1]
    return replace(there, pairs=Pairs(kinds, np.broadcast_to(kept[:, :, None], (*kept.shape, columns)).copy()))


@given(st.integers(0, 10**6), st.integers(2, 14))
@examples(20)
def test_pairs_keep_limits_and_what_is_asked(seed: int, jobs: int) -> None:
    """Identical jobs have equal shares, and every possible pair has a little time."""
    draw = np.random.default_rng(seed)
    kinds = draw.integers(0, 3, jobs)
    speeds, kept = draw.uniform(0.5, 9.0, (3, 2)), draw.uniform(0.3, 0.9, (3, 3))
    there = sharing(snapshot(speeds[kinds].tolist(), draw.integers(1, 4, 2).tolist()), kinds, kept)
    first = max_min_fairness.allocate(there)
    asked = max_min_fairness.asked(there, first.objective)
    found = middle(first, there, asked)
    assert (found.used(there) <= there.workers).all()
    assert (found.dense(there).sum(axis=1) <= 1).all()
    assert (found.throughput(there) >= asked * 0.998).all()
    assert (found.first[found.pairs] < found.second[found.pairs]).all()
    for kind in range(3):
        alike = found.dense(there)[kinds == kind]
        assert alike == pytest.approx(np.broadcast_to(alike[:1], alike.shape), abs=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 14), st.booleans())
@examples(30)
def test_groups_that_a_policy_made_change_nothing(seed: int, jobs: int, alike: bool) -> None:
    """Groups from a policy do not change the result, usable or not.

    They are not usable if demands within a group differ.
    """
    draw = np.random.default_rng(seed)
    kinds, speeds = draw.integers(0, 3, jobs), draw.uniform(0.5, 9.0, (3, 2))
    there = snapshot(speeds[kinds].tolist(), draw.integers(1, 4, 2).tolist())
    first = max_min_fairness.allocate(there)
    asked = max_min_fairness.asked(there, first.objective)
    if not alike:
        asked[0] *= 0.7
    found, plain = middle(first, there, asked), middle(replace(first, grouped=None), there, asked)
    assert found.grouped is None
    assert found.dense(there) == pytest.approx(plain.dense(there), abs=2e-3)


def test_two_jobs_beside_each_other() -> None:
    """Two identical jobs on one worker have time alone, and together.

    None is near a limit.
    """
    there = sharing(snapshot([[4.0], [4.0]], [1]), np.zeros(2, dtype=int), np.full((1, 1), 0.7))
    found = middle(alone([0, 1], [0, 0], [0.5, 0.5]), there, np.zeros(2))
    assert sorted(zip(found.first.tolist(), found.second.tolist(), strict=True)) == [(0, ALONE), (0, 1), (1, ALONE)]
    x, y = found.fraction[found.second == ALONE][0], found.fraction[found.pairs][0]
    # 1/x and, of throughput x + 0.7 y, its part, against 1/(1 - x - y) and 1/(1 - 2x - y); for y the same of all jobs.
    throughput, job, worker = x + 0.7 * y, 1 - x - y, 1 - 2 * x - y
    assert 1 / x + 1 / throughput == pytest.approx(1 / job + 1 / worker, rel=1e-2)
    assert 1 / y + 2 * 0.7 / throughput == pytest.approx(2 / job + 1 / worker, rel=1e-2)
    none = sharing(snapshot([[0.0]], [4]), np.zeros(1, dtype=int), np.full((1, 1), 0.7))
    empty = alone([], [], [])
    assert middle(empty, none, np.zeros(1)) is empty


def test_a_type_without_workers_changes_nothing() -> None:
    """A type without workers does not change the center."""
    both, one = snapshot([[3.0, 4.0], [2.0, 5.0]], [2, 0]), snapshot([[3.0], [2.0]], [2])
    edge, asked = alone([0, 1], [0, 0], [0.9, 0.9]), np.array([1.0, 1.0])
    found = middle(edge, both, asked)
    assert found.column.tolist() == [0, 0]
    assert found.fraction.tolist() == pytest.approx(middle(edge, one, asked).fraction.tolist())


def entries(draw: np.random.Generator, limits: int, variables: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of limits in any order, with duplicates within a variable.

    Duplicates occur if a job is beside one of its own group.
    """
    columns = draw.permutation(np.repeat(np.arange(variables), draw.integers(1, 6, variables)))
    return draw.integers(0, limits, len(columns)), columns, draw.uniform(-2, 2, len(columns))


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12))
@examples(30)
def test_few_entries_are_summed_as_the_whole_matrix_would_be(seed: int, limits: int, variables: int) -> None:
    """Products and steps equal those of the dense matrix."""
    draw = np.random.default_rng(seed)
    rows, columns, values = entries(draw, limits, variables)
    whole = np.zeros((limits, variables))
    np.add.at(whole, (rows, columns), values)
    few, x = LimitMatrix.of_entries(rows, columns, values, limits), draw.uniform(0, 1, variables)
    left = draw.uniform(0.1, 1, limits)
    assert few.of(x) == pytest.approx(whole @ x)
    assert few.back(left) == pytest.approx(whole.T @ left)
    assert few.squared(x) == pytest.approx((whole * x) @ whole.T)
    assert solves(few.step(x, left, -x), whole, x, left, -x)


def solves(step: np.ndarray, whole: np.ndarray, own: np.ndarray, left: np.ndarray, slope: np.ndarray) -> bool:
    """True if a step solves its equations with the dense matrix."""
    return step == pytest.approx(
        np.linalg.solve(np.diag(1 / own) + (whole.T / left) @ whole, -slope), rel=1e-6, abs=1e-9
    )


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4))
@examples(30)
def test_blocks_of_groups_are_solved_as_the_whole_matrix_would_be(seed: int, groups: int, types: int) -> None:
    """Steps by blocks equal those of the dense matrix.

    Each group is on some types, and twice on one if it may be spread.
    """
    draw = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), draw.integers(1, 2 * types + 1, groups))
    kind, scale, does = (
        draw.integers(0, types, len(group)),
        draw.integers(1, 5, groups)[group] * 1.0,
        draw.uniform(0, 1, len(group)),
    )
    every, whole = np.arange(len(group)), np.zeros((2 * groups + types, len(group)))
    whole[group, every], whole[groups + kind, every], whole[groups + types + group, every] = 1.0, scale, -does
    own, left, slope = (draw.uniform(0.01, 1, size) for size in (len(group), len(whole), len(group)))
    blocks = IndependentLimits(group, kind, scale, does, types)
    assert blocks.of(own) == pytest.approx(whole @ own)
    assert blocks.back(left) == pytest.approx(whole.T @ left)
    assert solves(blocks.step(own, left, slope), whole, own, left, slope)
    assert solves(blocks.step(own, left, -slope), whole, own, left, -slope)  # nothing of a step is left in the next


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12), st.floats(1e-6, 0.5))
@examples(50)
def test_the_centre_is_where_nothing_pulls(seed: int, limits: int, variables: int, close: float) -> None:
    """At the center, slacks are positive and the gradient is negligible.

    The start may be arbitrarily close to a limit.
    """
    draw = np.random.default_rng(seed)
    rows, columns, values = entries(draw, limits, variables)
    box = np.arange(variables)  # x <= 1 each, so that there is a centre
    rows, columns, values = (
        np.concatenate(part) for part in ((rows, limits + box), (columns, box), (values, np.ones(variables)))
    )
    used = LimitMatrix.of_entries(rows, columns, values, limits + variables)
    x = draw.uniform(close, 1 - close, variables)
    x[0] = close
    most = used.of(x) + close * draw.uniform(1, 100, limits + variables)
    most[limits:] = 1.0
    weights = draw.integers(1, 9, 2 * variables + limits).astype(float)
    found = centre(x, most, weights, used)
    left = np.concatenate([found, most - used.of(found)])
    assert left.min() > 0
    pull = weights / left
    slope = pull[:variables] - used.back(pull[variables:])
    assert (
        -slope @ used.step(found**2 / weights[:variables], left[variables:] ** 2 / weights[variables:], slope) <= 1e-3
    )
