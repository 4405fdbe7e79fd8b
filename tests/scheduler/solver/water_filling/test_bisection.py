"""Water-level search: equal to rounds without the search."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.scheduler.model.snapshot import Entity, Snapshot
from hocket.scheduler.policies import hierarchical, water_filling
from hocket.scheduler.solver.lp.linear_program import TOLERANCE, solve
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints
from hocket.scheduler.solver.parametric import infeasibility_prices
from hocket.scheduler.solver.water_filling import bisection, levels
from hocket.scheduler.solver.water_filling.trajectory import JobGroup, Path
from tests.scheduler.helpers.crowds import crowd
from tests.tiers import examples

POLICIES = pytest.mark.parametrize("policy", [water_filling, hierarchical], ids=lambda m: m.__name__.split(".")[-1])


def unlike(seed: int, lines: bool) -> Snapshot:
    """Distinct jobs of three teams.

    One type has more workers than the other, so that some jobs run all the time.
    """
    rng = np.random.default_rng(seed)
    there = crowd(seed, int(rng.integers(2, 14)), False, bool(rng.integers(2)))
    steps = there.throughputs * rng.uniform(0.5, 2, there.throughputs.shape)
    types = tuple(replace(own, workers=int(rng.integers(1, 12))) for own in there.types)
    jobs = tuple(
        replace(active, job=replace(active.job, entity=f"team{k % 3}", arrived_s=float(rng.integers(0, 5))))
        for k, active in enumerate(there.jobs)
    )
    policies = ["fairness", "fifo" if lines else "fairness", "fairness"]
    entities = tuple(Entity(f"team{k}", float(rng.uniform(0.5, 2)), policies[k]) for k in range(3))
    return replace(there, throughputs=steps, types=types, jobs=jobs, entities=entities)


def bought(there: Snapshot, fractions: np.ndarray, job: int) -> float:
    """Throughput that a job gains for each unit that all others lose, both as fractions of what a job has alone.

    Where two jobs are nearly as fast as each other on every type, this is thousands: what the solver's tolerance leaves
    undecided for one of them decides the throughput of the other.
    """
    variables = AllocationVariables(there, [np.arange(len(there.jobs))])
    group, variable, steps = variables.throughput
    own, alone = variables.group[job], there.throughputs.max(axis=1)[variables.member]
    part = steps / alone[group]
    cost = np.zeros(variables.variables)
    np.subtract.at(cost, variable[group == own], part[group == own])
    floors = fractions[variables.member] - TOLERANCE
    floors[own] = -np.inf
    others = Constraints(group, variable, part, floors, np.full(variables.groups, np.inf))
    found = solve(variables.program(cost, others), "what others' throughput buys")
    return float(found.duals[len(variables.limits.lower) :].sum())


@POLICIES
@examples(120)
@given(seed=st.integers(0, 2**32 - 1), lines=st.booleans())
@example(seed=1377238, lines=False)
def test_who_leaps_stands_where_others_do(policy: ModuleType, seed: int, lines: bool) -> None:
    """Objective and levels equal those of single rounds; the gap is verified."""
    there = unlike(seed, lines)
    plain = policy.allocate(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "MANY", 0)
        patch.setattr(hierarchical, "MANY", 0)
        patch.setattr(infeasibility_prices, "_MANY", 0)
        leapt = policy.allocate(replace(there))
    assert leapt.objective == pytest.approx(plain.objective, rel=1e-7, abs=1e-9)
    scale = there.throughputs.max(axis=1, initial=1e-9)
    before, after = plain.throughput(there) / scale, leapt.throughput(there) / scale
    for job in np.flatnonzero(np.abs(after - before) > 1e-6):
        assert abs(after[job] - before[job]) <= 4 * TOLERANCE * bought(there, before, int(job))
    assert leapt.gap <= 1e-6
    assert all(reason.binding for reason in leapt.reasons)


def test_a_leap_passes_all_that_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a worker for each of 200 jobs, all run all the time without any round."""
    rounds = []
    monkeypatch.setattr(levels.Levels, "round", lambda self, *_: rounds.append(1))
    there = unlike(1, False)
    steps = np.random.default_rng(3).uniform(1, 9, (200, len(there.columns)))
    active = there.jobs[0]
    jobs = tuple(replace(active, job=replace(active.job, id=str(k), scale_factor=1)) for k in range(200))
    types = tuple(replace(own, workers=200) for own in there.types)
    found = water_filling.allocate(replace(there, types=types, jobs=jobs, throughputs=steps))
    assert not rounds
    assert found.throughput(replace(there, types=types, jobs=jobs, throughputs=steps)) == pytest.approx(
        steps.max(axis=1)
    )
    assert found.gap == 0.0
    assert found.reasons[7].binding.endswith("it runs all the time")


def test_a_team_by_hand() -> None:
    """Two jobs share a weight of 2 until one has its 1; then the other has all of it.

    In a line one comes after the other.
    """
    level, rate, reach = np.zeros(2), np.ones(2), np.array([1.0, 3.0])
    fair = Path(level, rate, reach, [JobGroup(np.arange(2), np.ones(2), 2.0)])
    assert fair.ends == pytest.approx([1.0, 2.0])
    assert fair.at(0.5) == pytest.approx([0.5, 0.5])
    assert fair.at(1.5) == pytest.approx([1.0, 2.0])
    assert fair.at(9.0) == pytest.approx([1.0, 3.0])
    line = Path(level, rate, reach, [JobGroup(np.arange(2), np.ones(2), 2.0, True)])
    assert line.ends == pytest.approx([0.5, 2.0])
    assert line.at(0.25) == pytest.approx([0.5, 0.0])
    assert line.at(1.0) == pytest.approx([1.0, 1.0])
    water = Path(level, np.array([1.0, 0.0]), reach)
    assert water.ends == pytest.approx([1.0, np.inf])
    assert water.at(5.0) == pytest.approx([1.0, 0.0])


def test_the_greatest_rise_that_prices_allow() -> None:
    """The largest rise at given prices.

    With a price of 1 on both and 3 workers, the fair team's two jobs stop at 1 and 2.
    """
    fair = Path(np.zeros(2), np.ones(2), np.array([1.0, 3.0]), [JobGroup(np.arange(2), np.ones(2), 2.0)])
    assert bisection._root(fair, np.ones(2), -3.0, 10.0) == pytest.approx(1.5)
    assert bisection._root(fair, np.ones(2), -5.0, 10.0) == 10.0
