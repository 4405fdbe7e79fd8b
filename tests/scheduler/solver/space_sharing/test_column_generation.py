"""Roles: as good as all pairs, and convertible to feasible pairs."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import fifo, max_min_fairness, max_sum_throughput, min_cost
from hocket.scheduler.solver.space_sharing import column_generation
from tests.conformance.test_policies import keeps_what_there_is
from tests.tiers import examples

POLICIES = pytest.mark.parametrize(
    "policy", [max_min_fairness, max_sum_throughput, min_cost, fifo], ids=lambda m: m.__name__.split(".")[-1]
)


def unlike(seed: int, most: int = 12) -> Snapshot:
    """Jobs of a few classes that nearly all differ.

    Some are identical, some need two workers, some cannot run.
    """
    rng = np.random.default_rng(seed)
    count, classes, columns = int(rng.integers(1, most)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    types = tuple(WorkerType(f"type {k}", int(rng.integers(1, 4)), 1, float(k + 1)) for k in range(columns))
    scale = rng.choice([1, 1, 1, 2], count)
    jobs = tuple(
        Active(Job(str(j), "any", 1e4, int(scale[j]), weight=float(rng.choice([1, 2]))), 1e4) for j in range(count)
    )
    steps = rng.choice([0.0, 1.0, 3.0, 7.5], (count, columns), p=[0.1, 0.3, 0.3, 0.3]) * rng.choice(
        [1.0, 1.3], (count, 1)
    )
    kept = rng.uniform(0.2, 1.0, (classes, classes, columns)) * (rng.random((classes, classes, 1)) < 0.8)
    return Snapshot(
        types, tuple(Placement(k) for k in range(columns)), jobs, steps, Pairs(rng.integers(0, classes, count), kept)
    )


@POLICIES
@examples(150)
@given(seed=st.integers(0, 2**32 - 1))
def test_roles_are_as_good_as_pairs(policy: ModuleType, seed: int) -> None:
    """Roles have the objective of pairs, by real throughputs.

    The result is feasible, and the gap is verified.
    """
    there = unlike(seed)
    pairs = policy.allocate(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_generation, "MOST_GROUPS", 0)
        roles = policy.allocate(replace(there))
    assert roles.objective == pytest.approx(pairs.objective, rel=1e-6, abs=1e-9)
    assert roles.gap <= 1e-6
    assert roles.refused == pairs.refused
    keeps_what_there_is(there, roles)


def test_nobody_is_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is not beside its own class for more than half of the class's time.

    Of three jobs of a class, one is worth much more. Without the row it would have half a worker, beside no job.
    """
    monkeypatch.setattr(column_generation, "MOST_GROUPS", 0)
    jobs = tuple(Active(Job(str(j), "any", 1e4), 1e4) for j in range(3))
    pairs = Pairs(np.zeros(3, dtype=int), np.full((1, 1, 1), 0.9))
    there = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.array([[100.0], [1.0], [50.0]]), pairs)
    found = max_sum_throughput.allocate(there)
    assert found.objective == pytest.approx(0.9 * 150)
    assert found.gap <= 1e-6
    assert (found.first != found.second).all()


def test_many_unlike_jobs_take_roles() -> None:
    """300 distinct jobs use roles, and space sharing increases their throughput."""
    rng = np.random.default_rng(2)
    jobs = tuple(Active(Job(str(j), "any", 1e4), 1e4) for j in range(300))
    types = tuple(WorkerType(name, 50) for name in ("v100", "k80"))
    kept = rng.uniform(0.5, 0.9, (3, 3, 2))
    steps = rng.uniform(1, 10, (300, 2))
    there = Snapshot(types, (Placement(0), Placement(1)), jobs, steps, Pairs(rng.integers(0, 3, 300), kept))
    assert column_generation.many(there) is not None
    assert column_generation.many(replace(there, pairs=None)) is None
    found = max_min_fairness.allocate(there)
    assert found.gap <= 1e-6
    assert found.pairs.any()
    assert found.objective > max_min_fairness.allocate(replace(there, pairs=None)).objective * 1.05
    keeps_what_there_is(there, found)


def test_when_rounds_run_out_the_answer_says_how_far_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the round limit, the result is feasible, with a gap and a note.

    The gap covers the missing part.
    """
    monkeypatch.setattr(column_generation, "MOST_GROUPS", 0)
    told = 0
    for seed in range(30):
        there = unlike(seed)
        best = max_min_fairness.allocate(there)
        with monkeypatch.context() as patch:
            patch.setattr(column_generation, "_ROUNDS", 1)
            early = max_min_fairness.allocate(there)
        keeps_what_there_is(there, early)
        assert early.objective <= best.objective * (1 + 1e-6) + 1e-9
        assert early.objective + early.gap * max(1.0, early.objective) >= best.objective * (1 - 1e-6)
        told += bool(early.note)
        assert early.gap <= 1e-6 or "after 1 rounds" in early.note
    assert told >= 5
