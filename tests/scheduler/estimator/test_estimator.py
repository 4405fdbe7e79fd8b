"""Estimates of shared throughputs, compared with the public table."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from bench.bench_estimator import errors, without
from hocket.errors import InputError
from hocket.scheduler.estimator.estimator import Estimator, PairMeasurement
from hocket.scheduler.estimator.fingerprint import Fitting
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.throughputs import Kind, ThroughputTable
from hocket.scheduler.model.worker_types import ClusterSpec, WorkerType
from hocket.scheduler.policies import max_min_fairness
from hocket.scheduler.readers import throughputs_json
from hocket.scheduler.simulation.workload import Workload

NEW, OTHER, V100 = ("CycleGAN", 1), ("A3C", 1), ("v100", True)


@cache
def truth() -> ThroughputTable:
    """Kinds of one worker."""
    return without(throughputs_json.packaged(), set())


@cache
def start(kind: Kind = NEW) -> Estimator:
    """One new kind without measurements."""
    return Estimator.of(without(truth(), {kind}), 0).with_kind(kind, truth().alone[truth().row[kind]])


def measured(first: Kind, second: Kind, place: tuple[str, bool] = V100) -> PairMeasurement:
    """The true value."""
    a, b, c = truth().row[first], truth().row[second], truth().column[place]
    return PairMeasurement(first, second, place, truth().beside[a, b, c], truth().beside[b, a, c])


@pytest.mark.slow
def test_few_measured_pairs_beat_guesses_and_more_are_better() -> None:
    """Estimates beat three baselines from 4 measured pairs on, for seven models.

    The baselines are the mean, the job with the nearest throughput alone, and the dissertation's nearest
    fingerprint.
    """
    kinds = [k for k in truth().kinds if k[0] in ("A3C", "CycleGAN") or "256" in k[0] or "512" in k[0] or "40" in k[0]]
    rows = errors(2, False, (0, 4, 16), kinds)
    assert len(kinds) >= 6
    for row in rows[1:]:
        assert row["estimate"] < min(row["mean"], row["alone"], row["nearest"])
    assert rows[0]["estimate"] > rows[1]["estimate"] > rows[2]["estimate"]
    assert rows[1]["told"] < rows[1]["estimate"]  # pairs that the estimator asks for tell more than random ones


def test_a_fingerprint_ends_with_ratios_of_its_speeds() -> None:
    """A job that is twice as fast everywhere has the same ratios, and logarithms that are higher by log 2."""
    found = start().fingerprints
    steps = truth().alone[truth().row[NEW]]
    before, after = found._alone(steps), found._alone(2 * steps)
    count, weight = len(found.places), found.fitting.alone_weight
    assert after[:count] - before[:count] == pytest.approx(np.full(count, weight * np.log(2)))
    assert after[count:] == pytest.approx(before[count:])


def test_what_was_measured_replaces_the_estimate() -> None:
    """A measurement replaces the estimate in both directions at its place.

    Several measurements are averaged. An instance that did not fit counts 0 in both directions.
    """
    one = measured(NEW, OTHER)
    found = start().with_measured([one]).table
    a, b, c = found.row[NEW], found.row[OTHER], found.column[V100]
    assert found.beside[a, b, c] == pytest.approx(one.first_steps_per_s)
    assert found.beside[b, a, c] == pytest.approx(one.second_steps_per_s)
    twice = (
        start().with_measured([one]).with_measured([one._replace(first_steps_per_s=0.5 * one.first_steps_per_s)]).table
    )
    assert twice.beside[a, b, c] == pytest.approx(0.75 * one.first_steps_per_s)
    never = start().with_measured([PairMeasurement(OTHER, NEW, V100, 0.0, 0.0)]).table
    assert never.beside[a, b, c] == never.beside[b, a, c] == 0


def test_a_measurement_changes_what_is_estimated_elsewhere() -> None:
    """A measurement improves estimates elsewhere."""
    row = truth().row[NEW]
    others = [truth().row[k] for k in start().reference.kinds]
    wanted = truth().kept[row, others][:, start().fingerprints.places]

    def error(estimator: Estimator) -> float:
        return float(np.abs(estimator.table.kept[-1, :-1][:, estimator.fingerprints.places] - wanted).mean())

    pairs = [measured(NEW, kind, place) for kind, place in start().to_measure(NEW, 8)]
    assert error(start().with_measured(pairs)) < 0.8 * error(start())


def test_spread_workers_are_the_same_to_a_job_of_one() -> None:
    """Estimates for consolidated workers also hold for spread ones, for one worker."""
    table = start().table
    own = table.row[NEW]
    together, spread = table.column[V100], table.column["v100", False]
    assert table.kept[own, :, together].any()
    assert np.allclose(table.kept[own, :-1, spread], table.kept[own, :-1, together])


def test_reference_jobs_stay_as_they_were_profiled() -> None:
    """Reference jobs keep their profile until they are measured again."""
    known = len(start().reference.kinds)
    assert np.allclose(start().table.kept[:known, :known], start().reference.kept)
    one = PairMeasurement(OTHER, ("ResNet-18 (batch size 16)", 1), V100, 1.0, 2.0)
    again = start().with_measured([one]).table
    assert again.beside[again.row[OTHER], again.row[one.second], again.column[V100]] == pytest.approx(1.0)


def test_the_nearest_job_is_one_of_its_model() -> None:
    """Language models with batches of 40 are most like those with 20 or 80."""
    kind = ("LM (batch size 40)", 1)
    estimator = start(kind).with_measured(measured(kind, k, p) for k, p in start(kind).to_measure(kind, 6))
    assert estimator.nearest(kind)[0] in ("LM (batch size 20)", "LM (batch size 80)")


def test_pairs_that_are_asked_for_are_new_and_depend_on_no_luck() -> None:
    """Pairs to measure are new, unique, deterministic, and at most as many as exist."""
    asked = start().to_measure(NEW, 10)
    assert len(set(asked)) == 10
    assert asked == start().to_measure(NEW, 10)
    rest = start().with_measured([measured(NEW, *asked[0])]).to_measure(NEW, 10_000)
    assert asked[0] not in rest
    assert len(rest) == 25 * 3 - 1


def test_two_new_jobs_get_estimates_beside_each_other_and_themselves() -> None:
    """Two new jobs have estimates in both directions, between 0 and their throughput."""
    second = ("ResNet-50 (batch size 64)", 1)
    reference = without(truth(), {NEW, second})
    both = Estimator.of(reference, 3)
    for kind in (NEW, second):
        both = both.with_kind(kind, truth().alone[truth().row[kind]])
    kept = both.table.kept[-2:, -2:][:, :, both.fingerprints.places]
    assert ((kept > 0) & (kept <= 1)).all()


def test_a_job_that_does_not_run_somewhere_shares_nothing_there() -> None:
    """A job shares nothing where it cannot run, and is not measured there.

    A job of several workers shares nowhere.
    """
    alone = truth().alone[truth().row[NEW]].copy()
    alone[truth().column["k80", True]] = 0.0
    estimator = Estimator.of(without(truth(), {NEW}), 0).with_kind(NEW, alone).with_kind(("CycleGAN", 4), 3 * alone)
    table = estimator.table
    assert not table.beside[table.row[NEW], :, table.column["k80", True]].any()
    assert not table.beside[:, table.row[NEW], table.column["k80", True]].any()
    assert table.beside[table.row[NEW], :, table.column[V100]].any()
    assert not table.beside[table.row["CycleGAN", 4]].any()
    assert all(place != ("k80", True) for _, place in estimator.to_measure(NEW, 100))
    with pytest.raises(InputError, match="found a kind that cannot share workers"):
        estimator.nearest(("CycleGAN", 4))


def test_the_table_goes_into_a_snapshot() -> None:
    """A policy with estimates shares workers, and its objective does not get worse."""
    table = start().table
    types = (WorkerType("v100", 1), WorkerType("k80", 1))
    jobs = tuple(Job(f"{k}", kind[0], 1e4) for k, kind in enumerate((NEW, OTHER, NEW, ("LM (batch size 20)", 1))))
    rows, columns = Workload(jobs).rows(table), table.columns(types)
    alone = Snapshot(
        types, columns, tuple(Active(j, j.steps) for j in jobs), table.throughputs(rows, ClusterSpec(types, columns))
    )
    shared = replace(alone, pairs=table.pairs(rows, ClusterSpec(types, columns)))
    assert max_min_fairness.allocate(shared).objective >= max_min_fairness.allocate(alone).objective - 1e-9


def test_the_same_seed_gives_the_same_estimates() -> None:
    """Equal seeds give equal estimates; other seeds give nearly the same.

    The initial factors of the completion are forgotten.
    """
    alone = truth().alone[truth().row[NEW]]
    first, again, other = (
        Estimator.of(start().reference, seed).with_kind(NEW, alone).table.beside for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert np.allclose(first, other, rtol=0.1, atol=0.05 * first.max())


def test_what_cannot_be_is_refused() -> None:
    """Known or unknown kinds, unknown places and invalid throughputs are refused.

    So is a reference without sharing.
    """
    alone = truth().alone[truth().row[NEW]]
    with pytest.raises(InputError, match="found a kind of job that the estimator has already"):
        start().with_kind(NEW, alone)
    with pytest.raises(InputError, match="throughputs >= 0"):
        start().with_kind(("x", 1), alone[:2])
    with pytest.raises(InputError, match="throughputs >= 0"):
        start().with_kind(("x", 1), -alone)
    with pytest.raises(InputError, match="found x on 1, a kind of job that is not in the estimator"):
        start().with_measured([PairMeasurement(("x", 1), OTHER, V100, 1.0, 1.0)])
    with pytest.raises(InputError, match="found h100, which the reference table does not have; expected a place of"):
        start().with_measured([PairMeasurement(NEW, OTHER, ("h100", True), 1.0, 1.0)])
    with pytest.raises(InputError, match=r"found nan and 1\.0 steps per second; expected two finite throughputs >= 0"):
        start().with_measured([PairMeasurement(NEW, OTHER, V100, float("nan"), 1.0)])
    with pytest.raises(InputError, match="found a reference kind; expected a kind that was added with with_kind"):
        start().to_measure(OTHER, 1)
    with pytest.raises(InputError, match="no jobs that share workers"):
        Estimator.of(replace(truth(), beside=np.zeros_like(truth().beside)), 0)
    for wrong in ({"nearest_share": 1.1}, {"alone_weight": -1.0}):
        with pytest.raises(InputError, match="fitting"):
            Fitting(**wrong)
