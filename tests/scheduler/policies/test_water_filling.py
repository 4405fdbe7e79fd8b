"""Water filling: against the public policy, and against its definition.

The definition uses one plain program for every job.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies import max_min_fairness, water_filling
from hocket.scheduler.policies.max_min_fairness import equal_share
from tests.scheduler.helpers.filling import EXACT, NEARLY, Plain, crowd, filled
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples

seeds = st.integers(0, 2**32 - 1)


def normalised(there: Snapshot, found: np.ndarray) -> np.ndarray:
    """Throughputs, relative to the jobs' equal shares."""
    return found / equal_share(there) * there.scale / there.weights


def agrees(there: Snapshot, found: np.ndarray, reference: dict[str, Any]) -> None:
    """Compare smallest values, minimum and sum with the public policy.

    Throughputs at which no job can have more unless another has less are unique, so they are equal.
    """
    told = reference["eval"]
    steps = equal_share(there)
    head = np.sort(found / steps * there.scale / there.weights)[:5]
    assert head == pytest.approx(np.array(told["norm_sorted_head"]), rel=0, abs=EXACT)
    assert (found / steps).min() == pytest.approx(told["norm_min"], rel=0, abs=EXACT)
    assert (found / steps).sum() == pytest.approx(told["norm_sum"], rel=EXACT)


@pytest.mark.parametrize("reference", references("wf_perf@none", 2048), ids=lambda r: r["input"])
def test_levels_are_the_public_ones(reference: dict[str, Any]) -> None:
    """Sorted normalized throughputs and their sum agree to 1e-6, up to 2,048 jobs."""
    there = snapshot(reference["input"])
    found = water_filling.allocate(there)
    agrees(there, found.throughput(there), reference)
    assert found.throughput(there).sum() == pytest.approx(reference["eval"]["sum_throughput"], rel=EXACT)
    assert found.objective == pytest.approx(reference["eval"]["min_maxmin_obj"], rel=EXACT)
    assert found.gap <= EXACT


@pytest.mark.parametrize("reference", references("wf_packed@none"), ids=lambda r: r["input"])
def test_levels_with_pairs_are_the_public_ones(reference: dict[str, Any]) -> None:
    """The same with all pairs."""
    there = snapshot(reference["input"], pairs=True)
    found = water_filling.allocate(there)
    agrees(there, found.throughput(there), reference)
    assert found.gap <= EXACT


@pytest.mark.parametrize("reference", references("wf@none", 2048), ids=lambda r: r["input"])
def test_levels_of_the_blind_policy_are_the_public_ones(reference: dict[str, Any]) -> None:
    """The same for the heterogeneity-agnostic policy.

    The public one does not check whether a job can run on a type.
    """
    there = snapshot(reference["input"])
    there = replace(there, throughputs=np.ones(there.throughputs.shape))
    agrees(there, water_filling.allocate(there).throughput(there), reference)


def test_the_example_of_the_dissertation() -> None:
    """Four identical jobs on four workers, one of weight 3: all get a worker.

    It gets its worker first, in the first of two rises. Source: Narayanan's dissertation, section 5.4.3.
    """
    there = crowd(0, count=4, alike=True, weights=(3.0, 1.0, 1.0, 1.0), workers=(4,))
    found = water_filling.allocate(there)
    assert found.dense(there).sum(axis=1) == pytest.approx(np.ones(4))
    assert found.objective == pytest.approx(1 / 3)
    told = [reason.binding for reason in found.reasons]
    assert told[0] == "level 1 of 2, 1 of its equal share: it runs all the time"
    assert set(told[1:]) == {"level 2 of 2, 1 of its equal share: it runs all the time"}


def test_a_job_is_told_what_is_full() -> None:
    """Two jobs on one worker: the reason says that the type is full at the only level."""
    there = crowd(0, count=2, alike=True, weights=(1.0, 1.0), workers=(1,))
    reasons = water_filling.allocate(there).reasons
    assert {reason.binding for reason in reasons} == {"level 1 of 1, 0.5 of its equal share: type 0 is full"}
    assert {reason.change for reason in reasons} == {"more workers of type 0"}


@given(seed=seeds, shared=st.booleans())
@examples(40)
def test_it_is_the_lexicographic_optimum(seed: int, shared: bool) -> None:
    """Levels equal those of one program for each job and round.

    The program has no groups, prices or entering pairs.
    """
    there = crowd(seed, shared=shared)
    found = water_filling.allocate(there)
    rates = there.weights / there.scale
    wanted = filled(Plain(there), lambda stuck: np.where(stuck, 0.0, rates))
    got = found.throughput(there) / equal_share(there)
    assert got == pytest.approx(wanted, rel=0, abs=EXACT)
    assert found.gap <= EXACT


@given(seed=seeds, shared=st.booleans())
@examples(25)
def test_the_water_rises_once_for_every_level(seed: int, shared: bool) -> None:
    """There is one rise for every level at which jobs end.

    Each job's reason names its level.
    """
    there = crowd(seed, shared=shared)
    found = water_filling.allocate(there)
    ends = normalised(there, found.throughput(there))
    order = np.argsort(ends)
    level = np.zeros(len(ends), dtype=int)
    level[order] = 1 + np.cumsum(np.diff(ends[order], prepend=ends[order[0]]) > NEARLY)
    told = [reason.binding.split(",")[0] for reason in found.reasons]
    assert told == [f"level {k} of {level.max()}" for k in level]


@given(seed=seeds, shared=st.booleans())
@examples(40)
def test_nobody_gets_more_without_somebody_getting_less(seed: int, shared: bool) -> None:
    """Pareto efficiency: no job can have more while all others keep their throughput."""
    there = crowd(seed, shared=shared)
    plain = Plain(there)
    got = water_filling.allocate(there).throughput(there) / equal_share(there)
    for job in range(len(there.jobs)):
        assert plain.most(job, got) <= got[job] + NEARLY


@given(seed=seeds)
@examples(40)
def test_nobody_would_rather_have_its_share_for_itself(seed: int) -> None:
    """Sharing incentive: the minimum is at least that of equal shares by weight.

    Equal shares are of each type.
    """
    there = crowd(seed)
    dealt = min(there.workers.sum() / there.weights.sum(), (there.scale / there.weights).min())
    got = normalised(there, water_filling.allocate(there).throughput(there))
    assert got.min() >= dealt - EXACT


@given(seed=seeds, shared=st.booleans())
@examples(25)
def test_the_least_is_that_of_max_min_fairness(seed: int, shared: bool) -> None:
    """The minimum equals that of max-min fairness, and no job is below it."""
    there = crowd(seed, shared=shared)
    found, first = water_filling.allocate(there), max_min_fairness.allocate(there)
    assert found.objective == pytest.approx(first.objective, rel=EXACT)
    assert normalised(there, found.throughput(there)).min() == pytest.approx(first.objective, rel=NEARLY)


@pytest.mark.parametrize("seed", range(40))
def test_the_least_is_exact_where_weights_are_unlike(seed: int) -> None:
    """Weights of 1/50 to 50: the solver's error of a level is equally small for all."""
    weights = tuple(np.exp(np.random.default_rng(seed).uniform(-4, 4, 8)).tolist())
    there = crowd(seed, count=8, shared=True, weights=weights)
    found = water_filling.allocate(there)
    assert normalised(there, found.throughput(there)).min() == pytest.approx(found.objective, rel=EXACT)


@given(seed=seeds, shared=st.booleans())
@examples(25)
def test_the_order_of_jobs_changes_nobodys_throughput(seed: int, shared: bool) -> None:
    """Each job's throughput is independent of the order of jobs."""
    there = crowd(seed, shared=shared)
    order = np.random.default_rng(seed).permutation(len(there.jobs))
    other = crowd(seed, shared=shared, order=order)
    got, moved = (water_filling.allocate(one).throughput(one) for one in (there, other))
    assert moved == pytest.approx(got[order], rel=NEARLY, abs=EXACT)


@given(seed=seeds)
@examples(25)
def test_on_one_type_all_get_equal_time_or_all_of_it(seed: int) -> None:
    """On one type, time is divided by weight, and at most all of it.

    This is the policy for homogeneous workers: Narayanan's dissertation, section 5.4.4.
    """
    there = crowd(seed, workers=(3,), count=6)
    got = water_filling.allocate(there).dense(there).sum(axis=1)
    level = (got * there.scale / there.weights)[got < 1 - EXACT]
    if len(level):
        assert level == pytest.approx(np.full(len(level), level[0]), abs=EXACT)
        assert (got * there.scale).sum() == pytest.approx(3)
        assert (there.scale / there.weights)[got >= 1 - EXACT].max(initial=0.0) <= level[0] + EXACT
