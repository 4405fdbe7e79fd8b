"""Sessions: equal results with warm starts, and the fallback."""

from dataclasses import replace
from types import ModuleType
from typing import Literal

import numpy as np
import pytest

from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import max_min_fairness, max_sum_throughput
from hocket.scheduler.solver.lp import session as module
from hocket.scheduler.solver.lp.linear_program import SolverTrouble
from hocket.scheduler.solver.lp.session import Session


def unlike(jobs: int, pairs: bool = False, seed: int = 5) -> Snapshot:
    """Distinct jobs on three types, with too few workers for all."""
    rng = np.random.default_rng(seed)
    types = tuple(WorkerType(name, max(1, jobs // 4)) for name in ("v100", "p100", "k80"))
    each = tuple(Active(Job(str(k), "any", 1e5), 1e5) for k in range(jobs))
    steps = rng.uniform(1, 10, (jobs, 3))
    shared = Pairs(rng.integers(0, 3, jobs), rng.uniform(0.4, 0.9, (3, 3, 3))) if pairs else None
    return Snapshot(types, tuple(Placement(k) for k in range(3)), each, steps, shared)


def part(there: Snapshot, jobs: list[int]) -> Snapshot:
    """The snapshot with some of its jobs."""
    pairs = there.pairs and replace(there.pairs, classes=there.pairs.classes[jobs])
    return replace(there, jobs=tuple(there.jobs[j] for j in jobs), throughputs=there.throughputs[jobs], pairs=pairs)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("policy", [max_min_fairness, max_sum_throughput], ids=lambda m: m.__name__.split(".")[-1])
def test_an_answer_from_the_last_one_is_as_good_as_from_none(policy: ModuleType, pairs: bool) -> None:
    """Warm starts give the same objective and gap as no session.

    Jobs come and go, and change their speeds.
    """
    count = 40 if pairs else 300
    full, rng, session = unlike(count, pairs), np.random.default_rng(1), Session()
    for _ in range(6):
        jobs = rng.permutation(count)[: int(rng.integers(count * 3 // 4, count))].tolist()
        there = part(full, jobs)
        faster = rng.choice([1.0, 1.5], (len(jobs), 1), p=[0.9, 0.1])
        there = replace(there, throughputs=there.throughputs * faster)
        warm, cold = policy.allocate(there, session), policy.allocate(there)
        assert warm.objective == pytest.approx(cold.objective, rel=1e-9)
        assert warm.gap <= 1e-6
        assert not warm.note


def test_a_program_of_alike_jobs_begins_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a departure, most basis states are reused.

    Only a few rows and columns are unknown.
    """
    seen = []

    def watched(program: object, place: str, basis: object = None) -> object:
        seen.append(basis)
        return solve(program, place, basis)  # type: ignore[arg-type]

    solve = module.solve
    monkeypatch.setattr(module, "solve", watched)
    full, session = unlike(300), Session()
    max_min_fairness.allocate(full, session)
    max_min_fairness.allocate(part(full, list(range(1, 300))), session)
    first, second = seen
    assert first is None
    columns, rows = second
    in_basis = (columns == 1).sum() + (rows == 1).sum()
    assert abs(int(in_basis) - len(rows)) <= 2
    assert (columns == 1).sum() > 290


def test_when_the_solver_fails_the_last_allocation_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the solver fails, the last allocation stays, without departed jobs.

    Their pairs are dropped, too. New jobs have nothing, a note explains this, and no capacity is exceeded.
    """
    full, policy = unlike(20, pairs=True), policy_named("max_sum_throughput")
    before = policy(part(full, list(range(18))))
    assert before.pairs.any()

    def fails(*_: object) -> None:
        raise SolverTrouble("here: it gave up")

    monkeypatch.setattr(module, "solve", fails)
    jobs = [19, *range(17, 1, -1), 18]  # 0 and 1 left, 18 and 19 came, the others stand in another order
    there = part(full, jobs)
    there = replace(there, types=(replace(there.types[0], workers=1), *there.types[1:]))
    found = policy(there)
    assert "here: it gave up" in found.note
    was, now = before.dense(part(full, list(range(18)))), found.dense(there)
    assert (now[[0, 17]] == 0).all()
    assert (found.used(there) <= there.workers + 1e-9).all()
    assert (found.first < found.second)[found.second != ALONE].all()
    alone = {int(j) for j in before.first[~before.pairs]} - set(before.first[before.pairs].tolist())
    alone -= set(before.second[before.pairs].tolist())
    for place, job in enumerate(jobs):
        if job in alone:
            assert now[place, 1:] == pytest.approx(was[job, 1:])
    assert len(found.reasons) == len(jobs)


@pytest.mark.parametrize("rest", ["most", "middle"])
def test_what_stands_is_what_was_answered(rest: Literal["most", "middle"], monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback is the returned allocation, also an interior one.

    Remaining jobs keep their time.
    """
    full, policy = unlike(20), policy_named("max_min_fairness", rest=rest)
    before = policy(full).dense(full)

    def fails(*_: object) -> None:
        raise SolverTrouble("here: it gave up")

    monkeypatch.setattr(module, "solve", fails)
    there = part(full, list(range(2, 20)))
    found = policy(there)
    assert "here: it gave up" in found.note
    assert found.dense(there) == pytest.approx(before[2:])


def test_an_answer_that_is_not_proved_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result without proof has a note.

    A gap of a millionth counts as proved.
    """
    there, none = unlike(3), np.zeros(0, dtype=np.int64)
    for gap, note in ((1e-6, ""), (2e-3, "proven only to within 2e-03 of the optimum")):
        found = Allocation(none, none, none, np.zeros(0), 1.0, gap)
        monkeypatch.setattr(max_min_fairness, "allocate", lambda *_, found=found: found)
        assert policy_named("max_min_fairness")(there).note == note


def test_without_a_last_allocation_the_trouble_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a usable last allocation, the solver's failure is raised.

    This holds at first, and if columns have another meaning.
    """

    def fails(*_: object) -> None:
        raise SolverTrouble("here: it gave up")

    policy, there = policy_named("max_min_fairness"), unlike(5)
    with monkeypatch.context() as patch:
        patch.setattr(module, "solve", fails)
        with pytest.raises(SolverTrouble):
            policy(there)
    policy(there)
    monkeypatch.setattr(module, "solve", fails)
    other = replace(there, types=tuple(replace(own, name=f"other {own.name}") for own in there.types))
    with pytest.raises(SolverTrouble):
        policy(other)
