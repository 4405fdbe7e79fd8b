"""Minimum cost with deadlines: against the public policy, a program, by hand.

The program has every job by itself.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import min_cost, min_cost_slo
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import violates
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.trace_generator import COST as COST_DRAWS
from hocket.scheduler.simulation.trace_generator import static
from hocket.scheduler.solver.lp.linear_program import Infeasible, solve
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples

COST = "max_sum_throughput_normalized_by_cost"
PUBLIC = references(f"{COST}_perf_SLOs") + references(f"{COST}_packed_SLOs")
TYPES = WorkerType("v100", 1, 1, 0.8), WorkerType("k80", 1, 1, 0.1)


def _two(keen_slo_s: float | None, dull_slo_s: float | None) -> Snapshot:
    """A job that is 10 times as fast on a V100 as on a K80, and one 4 times as fast."""
    jobs = (
        Active(Job("keen", "a", 1e3, slo_s=keen_slo_s), 100.0),
        Active(Job("dull", "b", 1e3, slo_s=dull_slo_s), 100.0, 10.0),
    )
    return Snapshot(TYPES, (Placement(0), Placement(1)), jobs, np.array([[10.0, 1.0], [4.0, 1.0]]))


@pytest.mark.parametrize("reference", PUBLIC, ids=lambda r: f"{r['policy'][38:]}-{r['input']}")
def test_the_objective_is_the_public_one(reference: dict[str, Any]) -> None:
    """The objective equals the public one to 1e-6, with all deadlines met.

    The public policy counts deadlines from now on.
    """
    given = snapshot(reference["input"], pairs="packed" in reference["policy"])
    given = replace(given, jobs=tuple(replace(active, elapsed_s=0.0) for active in given.jobs))
    found = min_cost_slo.allocate(given)
    assert found.objective == pytest.approx(reference["eval"]["sum_throughput_per_cost"], rel=1e-6)
    assert found.gap <= 1e-6
    assert found.note == ""
    slo_s = np.array([active.job.slo_s for active in given.jobs])
    assert (found.throughput(given) * slo_s >= given.remaining_steps * (1 - 1e-9)).all()
    assert_it_can_be(given, found)


def test_in_rounds_a_deadline_is_met_a_round_early_where_that_can_be() -> None:
    """With rounds, deadlines are met one round early if possible.

    In rounds of 10 s, the 50 s until the deadline become 40: 2.5 steps a second, for which the job has half of the
    V100. If no time is left for a round more, the job has all that exists. If deadlines conflict only because of
    this, the exact deadlines are used.
    """
    given = replace(_two(None, 60.0), round_s=10.0)
    assert min_cost_slo.allocate(given).dense(given)[1] == pytest.approx([0.5, 0.5])
    late = replace(_two(None, 36.0), round_s=10.0)
    found = min_cost_slo.allocate(late)
    assert found.dense(late)[1] == pytest.approx([1.0, 0.0])
    assert not found.note
    both = replace(
        _two(20.0, 60.0), round_s=10.0
    )  # 5 and 2 steps a second: five ninths of the V100 and more; 10 and 2.5 do not fit
    exact = min_cost_slo.allocate(_two(20.0, 60.0))
    found = min_cost_slo.allocate(both)
    assert found.dense(both) == pytest.approx(exact.dense(both))
    assert not found.note


@pytest.mark.slow
def test_a_simulation_by_least_cost_with_deadlines_has_none_late() -> None:
    """A simulation with enough workers meets all deadlines.

    Without the round's length, as in the public policy, some jobs are late by less than a round.
    """
    table = packaged()
    work = static(table, 100, 0, COST_DRAWS)
    types = tuple(WorkerType(name, 100, 1, usd) for name, usd in (("v100", 2.48), ("p100", 1.46), ("k80", 0.45)))
    options = SimulatorOptions(Settings(fill=False))
    for told, least, most in ((True, 0, 0), (False, 5, 30)):
        policy = policy_named("min_cost_slo")
        how = policy if told else lambda snapshot, own=policy: own(replace(snapshot, round_s=0.0))
        run = simulate(work, types, table, how, options)
        late = [record for record in run.records if violates(record, run.ended_s)]
        assert least <= len(late) <= most
        for record in late:
            assert record.finished_s is not None
            assert record.job.slo_s is not None
            assert record.finished_s - record.job.arrived_s - record.job.slo_s < 360


def test_a_deadline_by_hand() -> None:
    """The slow job has 60 - 10 s for 100 steps: 2 steps a second.

    For that it has a third of the V100 and the rest of the K80. The other job is then on the K80 for a third of the
    time and on the V100 for two thirds.
    """
    given = _two(None, 60.0)
    found = min_cost_slo.allocate(given)
    assert found.dense(given) == pytest.approx(np.array([[2 / 3, 1 / 3], [1 / 3, 2 / 3]]))
    assert found.objective == pytest.approx((20 / 3 + 4 / 3) / 0.8 + 1 / 0.1)
    assert "needs 2 steps per second" in found.reasons[1].binding


def test_all_throughput_over_all_cost() -> None:
    """Total throughput over total cost, by hand.

    Only the fast job runs, on the V100, at 10 / 0.8 steps a dollar; with the slow one's deadline it has its K80 in
    addition. Of 10 a + 4 b + c over 0.8 (a + b) + 0.1 (c + d), the V100 buys the fast job 12.5, and the K80 buys
    any job 10.
    """
    found = min_cost_slo.allocate(_two(None, None), ratio=True)
    assert found.objective == pytest.approx(12.5)
    found = min_cost_slo.allocate(_two(None, 110.0), ratio=True)
    assert found.dense(_two(None, 110.0)) == pytest.approx(np.eye(2))
    assert found.objective == pytest.approx(11 / 0.9)


def test_a_deadline_that_is_over_and_one_that_is_too_soon() -> None:
    """Past and impossible deadlines are reported; the jobs run without them."""
    given = _two(5.0, 10.0)
    found = min_cost_slo.allocate(given)
    assert found.objective == pytest.approx(min_cost.allocate(given).objective)
    assert "needs 10 s, and its deadline is in 5 s" in found.reasons[0].binding
    assert "its deadline was 0 s ago" in found.reasons[1].binding
    assert found.note == "deadlines are given up: 2 that cannot be met at all"


def test_of_two_that_conflict_one_is_kept() -> None:
    """Two deadlines that each need more than half of the V100: one is kept."""
    given = _two(14.0, 45.0)
    found = min_cost_slo.allocate(given)
    late = [reason.binding.startswith("its deadline is given up") for reason in found.reasons]
    assert sum(late) == 1
    assert (
        found.note
        == "deadlines are given up: 1 in conflict with other deadlines, of which at least 1 could not be kept"
    )
    kept = late.index(False)
    left_s = (14.0, 35.0)[kept]
    assert found.throughput(given)[kept] * left_s >= 100.0 * (1 - 1e-9)


def _alone(given: Snapshot, found: Allocation) -> list[bool]:
    return [active.job.slo_s is not None and "given up" not in reason.binding and j not in found.refused
            for j, (active, reason) in enumerate(zip(given.jobs, found.reasons, strict=True))]  # fmt: skip


def _by_itself(given: Snapshot, kept: list[bool]) -> float:
    """The objective with each job as its own group, and the kept deadlines."""
    shares = AllocationVariables(given, (np.arange(len(given.jobs)),))
    groups, variables, steps = shares.throughput
    wanted = np.array([a.remaining_steps / (a.job.slo_s - a.elapsed_s) if k else 0.0
                       for a, k in zip(given.jobs, kept, strict=True)])[shares.member]  # fmt: skip
    rows = Constraints(groups, variables, steps, wanted * (1 - 1e-9), np.full(shares.groups, np.inf))
    worth = (shares.steps_first + shares.steps_second) / given.prices[shares.column]
    return -solve(shares.program(-worth, rows), "test").objective


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.integers(2, 14))
def test_it_is_the_best_and_nobody_is_given_up_in_vain(seed: int, pairs: bool, spread: bool, jobs: int) -> None:
    """The objective is optimal, and no given-up deadline could be added.

    Each job is its own group in the comparison.
    """
    given = crowd(seed, jobs, pairs, spread, slo=True)
    found = min_cost_slo.allocate(given)
    assert_it_can_be(given, found)
    assert found.gap <= 1e-6
    kept = _alone(given, found)
    assert found.objective == pytest.approx(_by_itself(given, kept), rel=1e-6)
    speeds = found.throughput(given)
    for j, active in enumerate(given.jobs):
        if kept[j]:
            assert active.job.slo_s is not None
            assert speeds[j] * (active.job.slo_s - active.elapsed_s) >= active.remaining_steps * (1 - 1e-7)
        elif active.job.slo_s is not None and active.job.slo_s > active.elapsed_s and j not in found.refused:
            with pytest.raises(Infeasible):
                _by_itself(given, [k or i == j for i, k in enumerate(kept)])
