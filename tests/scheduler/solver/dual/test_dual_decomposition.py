"""Dual decomposition: the result equals one program of all jobs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies import (
    finish_time_fairness,
    hierarchical,
    makespan,
    makespan_budget,
    max_min_fairness,
    min_cost_slo,
    water_filling,
)
from hocket.scheduler.solver.dual import dual_decomposition, large_programs, price_box
from hocket.scheduler.solver.dual.breakpoints import edges, reach
from hocket.scheduler.solver.dual.separable_program import Common, Stand
from hocket.scheduler.solver.lp import linear_program
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric import infeasibility_prices
from hocket.scheduler.solver.water_filling import levels
from tests.scheduler.helpers.crowds import assert_it_can_be
from tests.scheduler.solver.lp.test_warm import moments
from tests.scheduler.solver.water_filling.test_bisection import unlike
from tests.tiers import examples

POLICIES = pytest.mark.parametrize(
    "policy",
    [
        max_min_fairness,
        makespan,
        makespan_budget,
        finish_time_fairness,
        min_cost_slo,
        water_filling,
        hierarchical,
    ],
    ids=lambda m: m.__name__.rpartition(".")[2],
)


@contextmanager
def by_prices(tied: int) -> Iterator[None]:
    """Use prices for programs of any size, with few jobs in each small program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_programs, "MANY", 1)
        patch.setattr(dual_decomposition, "_TIED", tied)
        patch.setattr(infeasibility_prices, "_MANY", 0)
        patch.setattr(levels, "MANY", 0)
        patch.setattr(hierarchical, "MANY", 0)
        yield


def dear(there: Snapshot) -> Snapshot:
    """The snapshot with a budget below the cost of the shortest makespan.

    It is enough for a longer makespan.
    """
    found = makespan_budget.allocate(there)
    paid_usd = (there.prices[found.column] * there.scale[found.first] * found.fraction).sum() * found.objective / 3600
    return replace(there, budget_usd=float(paid_usd) * 0.995)


@POLICIES
@examples(60)
@given(seed=st.integers(0, 2**32 - 1), tied=st.integers(1, 6))
def test_prices_find_the_same(policy: ModuleType, seed: int, tied: int) -> None:
    """The objective is equal, the allocation feasible, and the gap verified."""
    there = unlike(seed, bool(seed % 2))
    plain = policy.allocate(there)
    with by_prices(tied):
        found = policy.allocate(replace(there))
    assert found.objective == pytest.approx(plain.objective, rel=1e-7, abs=1e-9)
    assert found.gap <= 1e-6
    assert_it_can_be(there, found)
    if policy in (water_filling, hierarchical):
        scale = there.throughputs.max(axis=1, initial=1e-9)
        assert found.throughput(there) / scale == pytest.approx(plain.throughput(there) / scale, abs=1e-6)


@POLICIES
@examples(25)
@given(seed=st.integers(0, 2**32 - 1), tied=st.integers(1, 6))
def test_prices_of_the_last_answer_are_as_good_as_none(policy: ModuleType, seed: int, tied: int) -> None:
    """Starting from previous prices does not change the result.

    Jobs come and go, and workers fail, between the calls.
    """
    session = Session()
    for there in moments(seed, True, False):
        plain = policy.allocate(there)
        with by_prices(tied):
            found = policy.allocate(replace(there), session)
        assert found.objective == pytest.approx(plain.objective, rel=1e-7, abs=1e-9)
        assert found.gap <= 1e-6
        assert_it_can_be(there, found)


@examples(40)
@given(seed=st.integers(0, 2**32 - 1), tied=st.integers(1, 6))
def test_a_budget_makes_it_as_long(seed: int, tied: int) -> None:
    """The budget makes the makespan equally long."""
    there = unlike(seed, False)
    try:
        there = dear(there)
        plain = makespan_budget.allocate(there)
    except InputError:  # no makespan costs so little
        return
    with by_prices(tied):
        found = makespan_budget.allocate(replace(there))
    assert found.objective == pytest.approx(plain.objective, rel=1e-7)
    assert found.gap <= 1e-6


@pytest.mark.parametrize("seed", [3, 8, 11])
def test_a_budget_leaves_prices_for_the_next_answer(seed: int) -> None:
    """The second call starts from prices of the first, with the same result.

    The first is solved as one program.
    """
    there, session = dear(unlike(seed, False)), Session()
    with by_prices(3), pytest.MonkeyPatch.context() as patch:
        patch.setattr("hocket.scheduler.solver.lp.session.WORTH", 0)
        first = makespan_budget.allocate(there, session)
        known = session.prices(there, makespan_budget._PLACE)
        again = makespan_budget.allocate(replace(there), session)
        later = session.prices(there, makespan_budget._PLACE)
    assert known is not None
    assert later is not None
    assert known.prices.max() > 0
    assert later.prices == pytest.approx(known.prices)
    assert again.objective == pytest.approx(first.objective, rel=1e-8)


def shares_of(jobs: int) -> tuple[Snapshot, AllocationVariables, np.ndarray]:
    """Distinct jobs on three types, with demands that use nearly all workers."""
    rng = np.random.default_rng(jobs)
    there = unlike(5, False)
    active = there.jobs[0]
    every = tuple(replace(active, job=replace(active.job, id=str(k), scale_factor=1)) for k in range(jobs))
    steps = rng.uniform(1, 9, (jobs, len(there.columns)))
    types = tuple(replace(own, workers=jobs // 3) for own in there.types)
    there = replace(there, types=types, jobs=every, throughputs=steps)
    return there, AllocationVariables(there), steps.mean(axis=1) * 0.6


def test_few_jobs_are_in_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 jobs, no program has a half.

    A start from the final prices needs one program of the smallest size.
    """
    there, shares, due = shares_of(2000)
    rows: list[int] = []

    def counted(solve: Callable[..., linear_program.Solution]) -> Callable[..., linear_program.Solution]:
        def asked(program: linear_program.LinearProgram, *others: object, **more: object) -> linear_program.Solution:
            rows.append(len(program.row_lower))
            return solve(program, *others, **more)

        return asked

    monkeypatch.setattr(price_box, "solve", counted(linear_program.solve))
    rates = large_programs.GroupRows(due[shares.member], np.zeros(shares.groups), np.full(shares.groups, -1.0))
    answer = large_programs.solve(shares, rates, "test", None, (-10.0, 0.0))
    assert answer is not None
    assert max(rows) < 2000
    rows.clear()
    again = large_programs.solve(shares, rates, "test", None, (-10.0, 0.0), answer[1])
    assert again is not None
    assert rows == [2 * dual_decomposition._TIED + len(there.types)]
    assert again[0].objective == pytest.approx(answer[0].objective, rel=1e-9)


def test_what_cannot_be_is_refused() -> None:
    """Infeasible demands are refused: of all jobs together, and of one job."""
    there, shares, _ = shares_of(500)
    best = there.throughputs.max(axis=1)[shares.member]
    none = np.zeros(shares.groups)
    cost = np.ones(shares.variables)
    for asked in (np.full(shares.groups, 0.99), np.append(none[:-1], 1.01)):
        with pytest.raises(linear_program.Infeasible):
            large_programs.solve(shares, large_programs.GroupRows(best, asked, none), "test", cost)


@examples(200)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_edge_is_the_cheapest_way(seed: int) -> None:
    """No other two options meet the demand for less.

    Within the edge's reach, prices leave each job where it is.
    """
    rng = np.random.default_rng(seed)
    options = int(rng.integers(2, 6))
    does = np.hstack([rng.uniform(0.1, 1, (7, options - 1)), np.zeros((7, 1))])
    costs = np.hstack([rng.uniform(-0.2, 1, (7, options - 1)), np.zeros((7, 1))])
    asked = rng.uniform(0, 1, 7) * does.max(axis=1)
    found = edges(does, costs, asked)
    part = found.part(asked)
    every = np.arange(7)
    paid = costs[every, found.low] * (1 - part) + costs[every, found.high] * part
    assert found.rate * asked - found.time == pytest.approx(paid, abs=1e-12)
    assert (found.rate[:, None] * does - costs <= found.time[:, None] + 1e-12).all()
    moves = np.hstack([rng.uniform(0.1, 1, (7, options - 1)), np.zeros((7, 1))])
    far = np.minimum(reach(found, does, costs, moves), 10.0)
    moved = costs + moves * rng.uniform(-0.999, 0.999, moves.shape) * far[:, None]
    after = edges(does, moved, asked)
    assert (after.low == found.low).all()
    assert (after.high == found.high).all()


def test_a_stand_far_off_leads_to_the_same() -> None:
    """Wrong initial prices and levels only take longer."""
    there, shares, due = shares_of(700)
    does = there.throughputs[shares.member] / due[shares.member][:, None]
    none = np.zeros(shares.groups)
    common = Common(
        does, np.zeros_like(does), none, none - 1, none + 1, there.type_of, there.workers, 1.0, (-20.0, 0.0)
    )
    found = dual_decomposition.settled(common, "test")
    for prices in ([1.0, 1e-3], [1e-6, 1e-6], [5.0, 80.0]):
        again = dual_decomposition.settled(common, "test", Stand(np.array(prices), 0.0))
        assert again.level == pytest.approx(found.level, rel=1e-9)
