"""Makespan within a budget: against makespan, one program, and by hand.

The program has every job by itself.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType
from hocket.scheduler.policies import makespan, makespan_budget
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import summary
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.trace_generator import static
from hocket.scheduler.simulation.workload import Workload
from hocket.scheduler.solver.lp.linear_program import Infeasible, solve
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples

TYPES = WorkerType("v100", 1, 1, 3.6), WorkerType("k80", 1, 1, 0.36)  # 0.1 and 0.01 cents a second
PRICES = (("v100", 2.48), ("p100", 1.46), ("k80", 0.45))


def _one(budget_usd: float | None) -> Snapshot:
    """A job of 1,000 steps: 4 steps a second on a V100, 1 on a K80.

    It costs 0.25 dollars on the V100, and 0.1 on the K80.
    """
    jobs = (Active(Job("job", "a", 1e3), 1000.0),)
    return Snapshot(TYPES, (Placement(0), Placement(1)), jobs, np.array([[4.0, 1.0]]), budget_usd=budget_usd)


def test_one_job_by_hand() -> None:
    """Budgets of 0.25, 0.1 and 0.175 dollars.

    The job is on the V100 for 250 s, on the K80 for 1,000 s, or half of the time on each.
    """
    for budget, makespan_s in ((None, 250.0), (0.5, 250.0), (0.25, 250.0), (0.1, 1000.0), (0.175, 625.0)):
        found = makespan_budget.allocate(_one(budget))
        assert found.objective == pytest.approx(makespan_s)
        assert found.gap <= 1e-6
    assert found.reasons[0].change == "a larger budget"


def test_too_little_money_is_told() -> None:
    """A budget that is too small is refused, with the smallest sufficient one."""
    with pytest.raises(InputError, match=r"budget_usd: found 0.09; expected 0.10 or more"):
        makespan_budget.allocate(_one(0.09))


def test_what_was_spent_is_not_there() -> None:
    """Spent money reduces the budget.

    With 0.125 of 0.3 dollars spent, the job is half of the time on each type, as with 0.175. With 0.25 spent, it
    continues where it costs least.
    """
    found = makespan_budget.allocate(replace(_one(0.3), spent_usd=0.125))
    assert found.objective == pytest.approx(625.0)
    assert not found.fill
    assert not found.note
    short = makespan_budget.allocate(replace(_one(0.3), spent_usd=0.25))
    assert short.objective == pytest.approx(1000.0)
    assert short.reasons[0].change == "a larger budget"
    assert "below the minimum cost of the jobs" in short.note


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.thinned(most=1)
def test_a_simulation_keeps_within_the_budget(seed: int, part: float) -> None:
    """A simulation keeps the budget and spends it.

    The policy is called again with the remaining budget whenever a job finishes.
    """
    work, types = static(packaged(), 8, seed), tuple(WorkerType(name, 4, 1, usd) for name, usd in PRICES)
    cheap, dear = (
        summary(simulate(work, types, packaged(), policy_named("makespan_budget"), SimulatorOptions(budget_usd=usd)))
        for usd in (_least_usd(work, types), 1e6)
    )
    budget_usd = cheap.cost_usd + part * (dear.cost_usd - cheap.cost_usd)
    run = simulate(work, types, packaged(), policy_named("makespan_budget"), SimulatorOptions(budget_usd=budget_usd))
    found = summary(run)
    assert found.finished == 8
    assert found.cost_usd <= budget_usd * 1.001
    assert dear.makespan_s * 0.999 <= found.makespan_s <= cheap.makespan_s * 1.001


def _least_usd(work: Workload, types: tuple[WorkerType, ...]) -> float:
    """Minimum cost of single-worker jobs, each where it costs least."""
    table = packaged()
    cluster = ClusterSpec(types, tuple(Placement(k) for k in range(len(types))))
    steps = table.throughputs(work.rows(table), cluster)
    prices = np.array([own.price_usd_per_hour for own in types]) / 3600
    each = np.divide(prices, steps, out=np.full(steps.shape, np.inf), where=steps > 0).min(axis=1)
    return float(each @ np.array([job.steps for job in work.jobs])) * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted({r["input"] for r in references("min_total_duration_perf", 128)}))
@pytest.mark.parametrize("pairs", [False, True])
def test_without_a_budget_it_is_the_makespan(name: str, pairs: bool) -> None:
    """Without a budget it equals the makespan policy, with and without pairs.

    The snapshots are the public ones.
    """
    given = snapshot(name, pairs=pairs and "single" in name)
    found = makespan_budget.allocate(given)
    assert found.objective == pytest.approx(makespan.allocate(given).objective, rel=1e-6)
    assert_it_can_be(given, found)


def _cost_usd(given: Snapshot, makespan_s: float) -> float:
    """Minimum cost of a makespan, with each job as its own group."""
    shares = AllocationVariables(given, (np.arange(len(given.jobs)),))
    groups, variables, steps = shares.throughput
    wanted = given.remaining_steps[shares.member] / makespan_s
    rows = Constraints(
        groups, variables, steps / wanted[groups], np.ones(shares.groups), np.full(shares.groups, np.inf)
    )
    cost = given.prices[shares.column] * shares.scale[shares.first] / 3600
    return solve(shares.program(cost, rows), "test").objective * makespan_s


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.integers(2, 12), st.floats(1.001, 3.0))
def test_nothing_less_can_be(seed: int, pairs: bool, spread: bool, jobs: int, longer: float) -> None:
    """The makespan is within the budget, and one of a millionth less is not.

    Each job is its own group.
    """
    given = crowd(seed, jobs, pairs, spread)
    free = makespan_budget.allocate(given)
    assume(free.objective > 0)
    assert_it_can_be(given, free)
    with pytest.raises(Infeasible):
        _cost_usd(given, free.objective * (1 - 1e-6))
    budget = _cost_usd(given, free.objective * longer)
    assume(budget < _cost_usd(given, free.objective * (1 + 1e-8)) * (1 - 1e-6))
    found = makespan_budget.allocate(replace(given, budget_usd=budget))
    assert_it_can_be(given, found)
    assert found.gap <= 1e-6
    assert _cost_usd(given, found.objective * (1 + 1e-8)) <= budget * (1 + 1e-7)
    assert _cost_usd(given, found.objective * (1 - 1e-5)) > budget * (1 + 1e-9)
    paid = (found.fraction * given.prices[found.column] * given.scale[found.first]).sum() / 3600 * found.objective
    assert paid <= budget * (1 + 1e-6)
