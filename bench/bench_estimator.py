"""Errors of estimated shared throughputs, by the number of measured pairs of a new job.

    python -m bench.bench_estimator [--seeds N] [--family] [--jct]

Each of the 26 job types of the public table is left out in turn and treated as new: its throughputs alone and those of
some pairs are known. A job in a pair keeps a fraction of its throughput alone. The error is the mean absolute
difference between the estimated and the published fraction, for both jobs of every pair of the new job and a reference
job that was not measured. With --family all batch sizes of the new job's model are left out, so that no similar job is
known.

    mean         the mean over reference jobs
    alone        the reference job with the most similar throughputs alone
    nearest      the paper's method: the reference job with the nearest fingerprint, after completion
    completed    the completed fingerprint
    estimate     the estimator's answer, between `nearest` and `completed`; measured pairs are drawn at random
    told         the same, with the pairs that the estimator asks for

--jct reproduces Figure 5.16: average job completion time on 12 workers (4 of each type) under max-min fairness. It
compares runs without sharing, with sharing by estimates, and with sharing by true throughputs. In the runs with
estimates some job types are known, and each other type has some pairs measured on arrival. Throughputs of pairs that
run in a round are measured too, and the estimates are refined; with "kept" they stay as they were.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.estimator.estimator import Estimator, PairMeasurement
from hocket.scheduler.estimator.fingerprint import Fitting
from hocket.scheduler.estimator.simulated_estimates import Estimating
from hocket.scheduler.model.throughputs import Kind, ThroughputTable
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers import throughputs_json
from hocket.scheduler.simulation.metrics import summary
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.trace_generator import continuous

COUNTS = (0, 1, 2, 4, 8, 16, 32)
WAYS = (Estimating(13, 4), Estimating(13, 4, refine=False), Estimating(6, 0))
FITTINGS = {"nearest": Fitting(nearest_share=1.0), "completed": Fitting(nearest_share=0.0), "estimate": Fitting()}


def without(table: ThroughputTable, kinds: set[Kind]) -> ThroughputTable:
    """Throughput table without some kinds, and only with kinds of one worker."""
    rows = [k for k, kind in enumerate(table.kinds) if kind not in kinds and kind[1] == 1]
    part = np.ix_(rows, rows)
    return replace(table, kinds=tuple(table.kinds[k] for k in rows), alone=table.alone[rows], beside=table.beside[part])


def error(found: np.ndarray, truth: np.ndarray, measured: Sequence[tuple[int, int]], places: list[int]) -> float:
    """Mean absolute error over the pairs that were not measured.

    Arguments:
        found, truth: arrays of shape (2, reference jobs, places).
    """
    unknown = np.zeros(truth.shape, dtype=bool)
    unknown[:, :, places] = True
    for reference, place in measured:
        unknown[:, reference, place] = False
    return float(np.abs(found - truth)[unknown].mean())


def errors_of_kind(
    table: ThroughputTable, kind: Kind, family: bool, counts: Sequence[int], seed: int
) -> list[dict[str, float]]:
    """Errors of all methods for one new job, by the number of measured pairs."""
    model = kind[0].split(" (")[0]
    excluded = {other for other in table.kinds if other == kind or (family and other[0].split(" (")[0] == model)}
    reference, row = without(table, excluded), table.row[kind]
    at = [table.row[k] for k in reference.kinds]
    truth = np.stack([table.kept[row, at], table.kept[at, row]])
    start = {
        name: Estimator.of(reference, seed, fit).with_kind(kind, table.alone[row]) for name, fit in FITTINGS.items()
    }
    places = start["estimate"].fingerprints.places
    every = [(r, c) for r in range(len(at)) for c in places]
    random = [every[k] for k in np.random.default_rng(seed).permutation(len(every))]
    requested = [(reference.row[k], reference.column[p]) for k, p in start["estimate"].to_measure(kind, max(counts))]

    def estimated(estimator: Estimator, pairs: list[tuple[int, int]]) -> float:
        seen = (
            PairMeasurement(
                kind, reference.kinds[r], reference.places[c], table.beside[row, at[r], c], table.beside[at[r], row, c]
            )
            for r, c in pairs
        )
        kept = estimator.with_measured(seen).table.kept
        return error(np.stack([kept[-1, :-1], kept[:-1, -1]]), truth, pairs, places)

    # The distance also compares ratios between types.
    distance = np.log(reference.alone[:, places]) - np.log(table.alone[row, places])
    nearest = int((np.abs(distance).sum(1) + np.abs(distance[:, 1:] - distance[:, :1]).sum(1)).argmin())
    guesses = {
        "mean": np.stack([reference.kept.mean(0), reference.kept.mean(1)]),
        "alone": np.stack([reference.kept[nearest], reference.kept[:, nearest]]),
    }
    rows = []
    for count in counts:
        pairs = random[:count]
        found = {name: error(guess, truth, pairs, places) for name, guess in guesses.items()}
        found |= {name: estimated(estimator, pairs) for name, estimator in start.items()}
        rows.append({**found, "told": estimated(start["estimate"], requested[:count])})
    return rows


def errors(
    seeds: int, family: bool, counts: Sequence[int] = COUNTS, kinds: Sequence[Kind] | None = None
) -> list[dict[str, float]]:
    """Mean errors, by the number of measured pairs."""
    table = throughputs_json.packaged()
    kinds = kinds or [kind for kind in table.kinds if kind[1] == 1]
    found = [errors_of_kind(table, kind, family, counts, seed) for seed in range(seeds) for kind in kinds]
    names = list(found[0][0])
    return [{name: float(np.mean([job[k][name] for job in found])) for name in names} for k in range(len(counts))]


def completion_times(rates: Sequence[float], jobs: int, hows: Sequence[Estimating], seeds: int) -> None:
    """Print figures like Figure 5.16: means over seeds of workloads, of reference jobs and of estimators."""
    table = without(throughputs_json.packaged(), set())
    types = tuple(WorkerType(name, 4, 4) for name in ("v100", "p100", "k80"))
    first, last = jobs // 4, jobs * 3 // 4
    print(f"average JCT in hours of jobs {first} to {last}, {seeds} seeds")
    names = [f"{how.references} known, {how.pairs} pairs" + ("" if how.refine else ", kept") for how in hows]
    print(
        f"{'jobs/h':>7}{'no sharing':>12}"
        + "".join(f"{name:>24}" for name in names)
        + f"{'truth':>12}{'lost of gain':>14}"
    )
    for rate in rates:
        hours = []
        for seed in range(seeds):
            work = continuous(table, jobs, rate, seed)
            own = [replace(how, seed=seed) for how in hows]
            ways = [
                SimulatorOptions(last=last),
                *(SimulatorOptions(space_sharing=True, estimating=how, last=last) for how in own),
                SimulatorOptions(space_sharing=True, last=last),
            ]
            runs = [simulate(work, types, table, policy_named("max_min_fairness"), way) for way in ways]
            hours.append([summary(run, first, last).avg_jct_s / 3600 for run in runs])
            for run in runs if rate == rates[-1] else ():
                print("".join(f"    {note}\n" for note in run.notes), end="")
        alone, *estimated, truth = np.mean(hours, axis=0).tolist()
        lost = (estimated[0] - truth) / (alone - truth) if alone > truth else 0.0
        shown = "".join(f"{h:>24.2f}" for h in estimated)
        print(f"{rate:>7.2f}{alone:>12.2f}{shown}{truth:>12.2f}{lost:>14.1%}", flush=True)


def main() -> None:
    """Print the table of errors, and the cost of an estimate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--family", action="store_true")
    parser.add_argument("--jct", action="store_true")
    given = parser.parse_args()
    if given.jct:
        completion_times((0.4, 0.6, 0.8, 1.0), 200, WAYS, given.seeds)
        return
    rows = errors(given.seeds, given.family)
    print("mean absolute error of the part of its throughput that a job keeps; 75 pairs in all")
    print(f"{'pairs':>6}" + "".join(f"{name:>11}" for name in rows[0]))
    for count, row in zip(COUNTS, rows, strict=True):
        print(f"{count:>6}" + "".join(f"{value:>11.4f}" for value in row.values()))
    table = throughputs_json.packaged()
    kind = ("CycleGAN", 1)
    began = time.process_time()
    estimator = Estimator.of(without(table, {kind}), 0).with_kind(kind, table.alone[table.row[kind]])
    estimator.nearest(kind)
    fitted = time.process_time()
    again = estimator.with_measured([PairMeasurement(kind, ("A3C", 1), ("v100", True), 1.0, 1.0)])
    assert len(again.table.kinds) == 26
    print(f"completion of the reference {fitted - began:.3f} s; a new estimate {time.process_time() - fitted:.4f} s")


if __name__ == "__main__":
    main()
