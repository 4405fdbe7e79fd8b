"""The contract of hocket/scheduler/policies, held by every member that the folder has: a new file is tested by being there."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Entity, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.util import registry
from tests.tiers import examples

ROOM = "hocket.scheduler.policies"
MEMBERS = [registry.load(ROOM, name, "policy") for name in registry.names(ROOM)]
# What is good is what most policies have much of; these have little.
LESS_IS_BETTER = {"makespan", "makespan_budget", "finish_time_fairness"}
# What has no optimum, so that more freedom need not be better: rules, and what is random.
NO_OPTIMUM = {"isolated", "gandiva", "allox", "proportional", "uniform_progress"}
each_member = pytest.mark.parametrize("policy", MEMBERS, ids=[m.__name__.rpartition(".")[2] for m in MEMBERS])
# Where an n-th of the cluster counts: jobs that run nowhere are told, and so are among the n.
NEEDS_THE_COUNT = {"finish_time_fairness", "isolated"}
# What places jobs of one worker only, and refuses others.
ONE_WORKER = {"allox"}
seeds = st.integers(0, 2**32 - 1)
EXACT = 1e-6


def name(policy: ModuleType) -> str:
    """Of a member."""
    return policy.__name__.rpartition(".")[2]


def crowd(seed: int, shared: bool = False, runs: float = 0.85) -> Snapshot:
    """A few jobs and workers of all kinds; shared: with pairs; runs: how likely a job runs on a column."""
    rng = np.random.default_rng(seed)
    types = tuple(
        WorkerType(f"type {k}", int(rng.integers(1, 5)), int(rng.integers(1, 5)), float(rng.uniform(0.2, 3)))
        for k in range(rng.integers(1, 4))
    )
    columns = [Placement(k) for k in range(len(types))]
    columns += [Placement(k, False) for k in range(len(types)) if rng.random() < 0.3]
    count = int(rng.integers(1, 8))
    kinds = rng.uniform(0.5, 20, (4, len(columns))) * (rng.random((4, len(columns))) < runs)
    kind = rng.integers(0, 4, count)
    scale = rng.choice([1, 1, 1, 2, 4], 4)
    jobs = []
    for j in range(count):
        steps = float(rng.choice([1e3, 2e4, 3e5]))
        slo_s = None if rng.random() < 0.5 else float(rng.choice([50.0, 5e3, 1e6]))
        elapsed_s = float(100 * (count - j))
        job = Job(
            f"job {j}",
            f"kind {kind[j]}",
            steps,
            int(scale[kind[j]]),
            100.0 * j,
            float(rng.choice([1, 1, 3])),
            slo_s,
            f"team {j % 2}",
        )
        jobs.append(Active(job, steps * float(rng.choice([1.0, 0.4])), elapsed_s))
    steps = kinds[kind]
    pairs = None
    if shared:
        kept = rng.uniform(0.3, 1.0, (4, 4, len(columns))) * (rng.random((4, 4, 1)) < 0.8)
        alike = (scale[:, None] == scale[None, :])[:, :, None]
        pairs = Pairs(kind, np.where(alike & (kept.transpose(1, 0, 2) > 0), kept, 0.0))
    teams = (Entity("team 0", 2.0), Entity("team 1", 1.0, "fifo"))
    return Snapshot(types, tuple(columns), tuple(jobs), steps, pairs, teams, 1e9, 100.0 * count)


def keeps_what_there_is(there: Snapshot, found: Allocation) -> None:
    """Equations 5.2 and 5.3, and that pairs are pairs."""
    assert (found.fraction >= 0).all()
    assert (found.dense(there).sum(axis=1) <= 1 + EXACT).all()
    assert (found.used(there) <= there.workers * (1 + EXACT) + EXACT).all()
    both = found.pairs
    assert (found.first[both] < found.second[both]).all()
    assert (found.second[~both] == ALONE).all()
    assert (there.scale[found.first[both]] == there.scale[found.second[both]]).all()
    wide = there.scale[found.first] > there.workers[there.type_of[found.column]]
    assert not wide.any()
    assert (there.throughputs[found.first, found.column] > 0).all()
    assert len(found.reasons) in (0, len(there.jobs))


@each_member
def test_a_member_has_the_shape_of_a_policy(policy: ModuleType) -> None:
    """It says where its idea comes from, and what its objective is."""
    assert len(policy.PAPER.split()) >= 2
    assert policy.__doc__
    assert policy.allocate.__doc__
    assert "objective" in policy.allocate.__doc__


@each_member
@given(seed=seeds, shared=st.booleans())
@examples(30)
def test_time_and_workers_are_kept(policy: ModuleType, seed: int, shared: bool) -> None:
    """Nobody has more time than there is, no type more work than workers; every answer comes with a gap of at most 1e-6 and,
    for every job, a reason and what would change it."""
    there = crowd(seed, shared)
    found = policy.allocate(there)
    keeps_what_there_is(there, found)
    assert found.gap <= EXACT
    assert len(found.reasons) == len(there.jobs)
    assert all(reason.binding and reason.change for reason in found.reasons)


@each_member
@given(seed=seeds, shared=st.booleans())
@examples(30)
def test_reasons_are_true(policy: ModuleType, seed: int, shared: bool) -> None:
    """A type that is said to be full is, whoever is said to run all the time does, and who is always where it is fastest is not
    told that it lacks workers."""
    there = crowd(seed, shared)
    found = policy.allocate(there)
    used, time, got = found.used(there), found.dense(there).sum(axis=1), found.throughput(there)
    for j, reason in enumerate(found.reasons):
        words = reason.binding.rpartition(": ")[2] if "level" in reason.binding else reason.binding
        for k, own in enumerate(there.types):
            if own.name in words and (" is full" in words or " are full" in words):
                assert used[k] >= own.workers - EXACT
        if "runs all the time" in words:
            assert time[j] >= 1 - EXACT
        if j not in found.refused and not shared and got[j] >= there.able[j].max() * (1 - 1e-12):
            assert "nothing: more" not in words


@each_member
@given(seed=seeds, shared=st.booleans())
@examples(15)
def test_the_order_of_jobs_is_irrelevant(policy: ModuleType, seed: int, shared: bool) -> None:
    """The objective is the same in whatever order jobs are told; who came first is said by when they came."""
    there = crowd(seed, shared)
    order = np.random.default_rng(seed).permutation(len(there.jobs))
    pairs = there.pairs and replace(there.pairs, classes=there.pairs.classes[order])
    other = replace(there, jobs=tuple(there.jobs[j] for j in order), throughputs=there.throughputs[order], pairs=pairs)
    assert policy.allocate(other).objective == pytest.approx(policy.allocate(there).objective, rel=EXACT, abs=1e-12)


@each_member
def test_no_jobs_get_nothing(policy: ModuleType) -> None:
    """An empty cluster has an empty allocation."""
    there = crowd(3)
    empty = replace(there, jobs=(), throughputs=there.throughputs[:0])
    found = policy.allocate(empty)
    assert len(found.first) == 0
    assert not found.reasons
    assert not found.refused


@each_member
def test_no_workers_are_given_to_nobody(policy: ModuleType) -> None:
    """Where no type has workers all jobs are refused."""
    there = crowd(3)
    none = replace(there, types=tuple(replace(own, workers=0) for own in there.types))
    found = policy.allocate(none)
    assert len(found.first) == 0
    assert set(found.refused) == set(range(len(there.jobs)))


@each_member
@given(seed=seeds, shared=st.booleans())
@examples(15)
def test_jobs_that_run_nowhere_are_refused_and_the_others_served(policy: ModuleType, seed: int, shared: bool) -> None:
    """With such jobs among them, the others have the objective that they have by themselves."""
    there = crowd(seed, shared, runs=0.6)
    fits = there.scale[:, None] <= there.workers[there.type_of]
    runs = ((there.throughputs > 0) & fits).any(axis=1)
    if name(policy) in ONE_WORKER:
        runs &= there.scale == 1
    assume(runs.any() and not runs.all())
    found = policy.allocate(there)
    assert set(found.refused) == set(np.flatnonzero(~runs).tolist())
    assert all(len(why.split()) >= 4 for why in found.refused.values())
    assert (found.throughput(there)[~runs] == 0).all()
    keeps_what_there_is(there, found)
    if name(policy) in NEEDS_THE_COUNT:
        return
    pairs = there.pairs and replace(there.pairs, classes=there.pairs.classes[runs])
    jobs = tuple(active for active, able in zip(there.jobs, runs, strict=True) if able)
    without = replace(there, jobs=jobs, throughputs=there.throughputs[runs], pairs=pairs)
    assert policy.allocate(without).objective == pytest.approx(found.objective, rel=EXACT, abs=1e-12)


@pytest.mark.parametrize(
    "policy",
    [m for m in MEMBERS if name(m) not in NO_OPTIMUM],
    ids=[name(m) for m in MEMBERS if name(m) not in NO_OPTIMUM],
)
@given(seed=seeds)
@examples(20)
def test_colocation_is_never_worse_than_none(policy: ModuleType, seed: int) -> None:
    """What may share can also be left alone (section 5.4.4)."""
    there = crowd(seed, shared=True)
    shared, alone = policy.allocate(there).objective, policy.allocate(replace(there, pairs=None)).objective
    if name(policy) in LESS_IS_BETTER:
        shared, alone = -shared, -alone
    assert shared >= alone - EXACT * abs(alone) - 1e-12


@each_member
def test_who_declares_sharing_pairs_jobs(policy: ModuleType) -> None:
    """A policy that declares SHARES gives pairs of jobs time in some snapshot; the others never do."""
    pairs = sum(int(policy.allocate(crowd(seed, shared=True)).pairs.sum()) for seed in range(40))
    assert (pairs > 0) == policy.SHARES


@each_member
def test_who_declares_entities_listens_to_their_weights(policy: ModuleType) -> None:
    """A policy that declares ENTITIES divides workers by the weights of entities; the others ignore them."""
    changed = False
    for seed in range(20):
        there = crowd(seed)
        heavy = replace(there, entities=(Entity("team 0", 20.0), Entity("team 1", 1.0, "fifo")))
        one, other = (policy.allocate(each).dense(there) for each in (there, heavy))
        changed = changed or not np.allclose(one, other, atol=1e-6)
    assert changed == policy.ENTITIES
