"""Gandiva packing: deterministic properties of the public policy, and by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import gandiva, isolated
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples


def _crowd(jobs: int, kept: float) -> Snapshot:
    """Equal jobs on a V100 and a K80 that keep a given share beside each other."""
    active = tuple(Active(Job(f"job{k}", "any", 1e3), 1e3) for k in range(jobs))
    pairs = Pairs(np.zeros(jobs, dtype=int), np.full((1, 1, 2), kept))
    types = WorkerType("v100", 1), WorkerType("k80", 1)
    return Snapshot(types, (Placement(0), Placement(1)), active, np.tile([4.0, 1.0], (jobs, 1)), pairs)


@pytest.mark.parametrize("reference", references("gandiva"), ids=lambda r: r["input"])
def test_the_cluster_is_divided_as_by_the_public_policy(reference: dict[str, Any]) -> None:
    """Each type is used about as much as by the public policy.

    Every pair or job has its part of all types. The public policy also pairs jobs where they cannot run, and finds
    out the next time; here that time is not used.
    """
    given = snapshot(reference["input"], pairs=True)
    found = gandiva.allocate(given, seed=1)
    assert_it_can_be(given, found)
    public = np.array([reference["eval"]["used"][own.name] for own in given.types])
    assert (found.used(given) >= 0.85 * public).all()
    assert len(gandiva.pairs_of(given, found)) >= len(given.jobs) // 3
    assert found.objective > 0


def test_four_jobs_by_hand() -> None:
    """Two pairs, each half of the time on each of two workers; each job keeps 0.8."""
    given = _crowd(4, 0.8)
    found = gandiva.allocate(given)
    assert found.pairs.all()
    assert found.dense(given) == pytest.approx(np.full((4, 2), 0.5))
    assert found.throughput(given) == pytest.approx(np.full(4, 0.8 * 2.5))
    assert "drawn at random" in found.reasons[0].binding


def test_pairs_that_do_not_help_are_not_kept() -> None:
    """With 0.4 each, a pair is slower than one job: all have their isolated shares."""
    given = _crowd(4, 0.4)
    found = gandiva.allocate(given)
    assert not found.pairs.any()
    assert found.dense(given) == pytest.approx(isolated.allocate(given).dense(given))


def test_where_there_is_room_nobody_shares() -> None:
    """Two jobs on two workers do not share."""
    assert not gandiva.allocate(_crowd(2, 0.9)).pairs.any()


def test_pairs_stay_and_a_seed_draws_the_same() -> None:
    """Given pairs stay, and other seeds draw other pairs.

    The order of jobs does not matter.
    """
    given = _crowd(10, 0.8)
    before = gandiva.pairs_of(given, gandiva.allocate(given, seed=1))
    assert len(before) == 5
    assert gandiva.pairs_of(given, gandiva.allocate(given, seed=1)) == before
    assert gandiva.pairs_of(given, gandiva.allocate(given, seed=2)) != before
    assert gandiva.pairs_of(given, gandiva.allocate(given, seed=2, together=before)) == before
    turned = replace(given, jobs=given.jobs[::-1])
    again = gandiva.pairs_of(turned, gandiva.allocate(turned, seed=1))
    assert {frozenset(pair) for pair in again} == {frozenset(pair) for pair in before}


def test_a_pair_is_where_it_is_whatever_the_order_of_jobs() -> None:
    """A pair runs in the same column for either order of its jobs.

    One of the two jobs, of two workers each, is faster spread out; the other is not.
    """
    active = tuple(Active(Job(f"job{k}", "any", 1e3, 2), 1e3) for k in range(2))
    pairs = Pairs(np.zeros(2, dtype=int), np.full((1, 1, 2), 0.8))
    steps = np.array([[4.0, 1.0], [1.0, 2.0]])
    given = Snapshot((WorkerType("v100", 2),), (Placement(0), Placement(0, False)), active, steps, pairs)
    turned = replace(given, jobs=active[::-1], throughputs=steps[::-1])
    found = gandiva.allocate(given)
    assert found.pairs.all()
    assert found.throughput(given) == pytest.approx(gandiva.allocate(turned).throughput(turned)[::-1])


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.integers(0, 14), st.integers(0, 3))
def test_it_can_be(seed: int, spread: bool, jobs: int, drawn: int) -> None:
    """Allocations of random jobs are feasible."""
    given = crowd(seed, jobs, True, spread)
    assert_it_can_be(given, gandiva.allocate(given, seed=drawn))
