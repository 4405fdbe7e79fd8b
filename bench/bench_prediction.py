"""Prediction against reality on this machine: many plans of one GPT, on two and three local workers.

    python bench/bench_prediction.py [--steps 40] [--rounds 2]

Profiles the job and the links once, then for each (workers, strategy, microbatch size) takes the planner's best plan,
predicts it and trains it. Prints one JSON line a plan (iteration time and peak tensor memory, predicted and measured), then
the mean absolute error, the share of pairs of plans whose order is kept (pairs that differ by less than 5 % when measured
do not count), and the worst memory error. Trains each plan `rounds` times, all plans in turn, and takes medians.
"""

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hocket.demo import JOB
from hocket.plan.plan import Plan
from hocket.plan.search import search
from hocket.profile.companions import usual_neighbours
from hocket.profile.job import load_job
from hocket.profile.measure import measure
from hocket.run.local_links import measure_local
from hocket.run.loop import train

SIZES = (2, 4, 8)
STRATEGIES = ("data_parallel", "model_parallel", "gpipe", "flush", "interleaved", "pipedream", "two_bw")
CLEAR = 1.05


def plans(folder: Path) -> Iterator[tuple[str, Plan]]:
    """The best plan of each strategy, number of workers and microbatch size that uses all the workers."""
    job = load_job(JOB)
    profile = measure(job, (1, *SIZES), budget_s=40, neighbours=usual_neighbours())
    profile.save(folder / "profile.json")
    for workers in (2, 3):
        cluster = measure_local(workers)
        for strategy, size in itertools.product(STRATEGIES, SIZES):
            found = search(
                profile,
                cluster,
                job.batch_size,
                strategies=(strategy,),
                microbatch_sizes=(size,),
                profile_path="profile.json",
            )
            for candidate in found.candidates:
                if len({d for stage in candidate.plan.stages for d in stage.devices}) == workers:
                    yield f"{workers} workers, {strategy} {candidate.config}, microbatch {size}", candidate.plan
                    break


def main() -> None:
    """Print the lines and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = list(plans(folder))
        measured: dict[str, list[float]] = {label: [] for label, _ in chosen}
        peaks: dict[str, dict[int, int]] = {}
        for _ in range(given.rounds):
            for index, (label, plan) in enumerate(chosen):
                path = folder / f"{index}.yaml"
                plan.save(path)
                summary = train(JOB, path, steps=given.steps)
                measured[label].append(summary.iteration_s or float("nan"))
                peaks[label] = summary.peak_memory_bytes
    pairs, memory = [], []
    for label, plan in chosen:
        assert plan.predicted is not None
        real, believed = statistics.median(measured[label]), plan.predicted.iteration_s
        pairs.append((believed, real))
        errors = {d: plan.predicted.peak_memory_bytes[d] / peak - 1 for d, peak in peaks[label].items()}
        memory += list(errors.values())
        row = {
            "plan": label,
            "predicted_iteration_s": believed,
            "measured_iteration_s": real,
            "error": believed / real - 1,
        }
        print(json.dumps({**row, "peak_memory_error_by_device": errors}), flush=True)
    clear = [(a, b) for a, b in itertools.combinations(pairs, 2) if max(a[1], b[1]) > CLEAR * min(a[1], b[1])]
    kept = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in clear)
    summary_line = {
        "plans": len(pairs),
        "mean_absolute_error": statistics.fmean(abs(a / b - 1) for a, b in pairs),
        "worst_error": max((a / b - 1 for a, b in pairs), key=abs),
        "order_kept": kept / len(clear) if clear else 1.0,
        "memory_error_least": min(memory, default=0.0),
        "memory_error_most": max(memory, default=0.0),
    }
    print(json.dumps(summary_line), flush=True)


if __name__ == "__main__":
    main()
