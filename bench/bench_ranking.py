"""Predicted and measured order of all layouts of a GPT on 4 and 8 local workers.

    python bench/bench_ranking.py [--workers 4 8] [--steps 16] [--rounds 1]

A layout is (stages p, tensor-parallel width t, columns d) with a product equal to the number of workers. Each layout
runs with the schedules that it allows: data_parallel; or flush, gpipe, two_bw, and interleaved with two chunks per
device. The planner makes the cuts.

This process first measures the profiles of a device and of a tensor-parallel rank, and the cluster. Nothing is fitted
to the runs. Plans of one width are trained in turns (hocket/training/calibrate/train_in_turns.py), so that they see the
same machine. The script prints one JSON line per plan. For each number of workers it prints Spearman's rank correlation
and the mean absolute error of the iteration time. Eight workers share this machine's cores, so that comparison is about
work, waiting and memory, not about speed.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace

from bench_prediction import Case, order

from hocket.cli.train.demo import JOB
from hocket.hardware.cluster import Cluster
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace
from hocket.planning.plan import Predicted
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.make_plan import make_plan
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.profiling.measure.background_load import usual_neighbours
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.runtime.tensor_parallel.measure_rank import measure_member
from hocket.training.calibrate.local_links import measure_local
from hocket.training.calibrate.train_in_turns import Turns, train_in_turns
from hocket.training.worker.monitor.listener import RunSummary

WIDTHS, MICROBATCH = (1, 2, 4), 2
LEAST = 8  # steps of a turn: with 4, two_bw measures a single period between filling and draining its pipeline
FLUSHED = ("flush", "gpipe", "two_bw")


def ways(profiles: dict[int, ModelProfile], cluster: Cluster, batch_size: int) -> Iterator[Case]:
    """Yield a case for every layout of the cluster and every schedule."""
    for width, profile in profiles.items():
        if cluster.devices % width:
            continue
        family = LayoutFamily(width, "none", (MICROBATCH,))
        layout_space = LayoutSpace.of(lambda *_, profile=profile: profile, cluster, family)  # type: ignore[misc]
        for mesh in layout_space.meshes(batch_size):
            for strategy in schedules(mesh):
                space, choice = layout_space.choice(mesh, batch_size)
                made = make_plan(space, strategy, choice, f"profile-{width}.json")
                plan = replace(made, cluster=cluster, tensor=width, slices=width > 1, profile_digest=profile.digest)
                yield Case(f"{cluster.devices} workers, {mesh.config} {strategy}", plan)


def schedules(mesh: ParallelLayout) -> tuple[str, ...]:
    """Schedules of a layout."""
    if mesh.depth == 1:
        return ("data_parallel",)
    return FLUSHED if mesh.chunks == 1 else ("interleaved",) if mesh.chunks == 2 else ()


def run(job: Job, workers: list[int], steps: int, rounds: int) -> dict[int, list[Case]]:
    """Profile, predict and train in rounds."""
    found: dict[int, list[Case]] = {}
    for _ in range(rounds):
        profiles = {
            width: measure_member(
                job, width, (1, MICROBATCH), MeasureRequest(budget_s=15, neighbours=usual_neighbours())
            )
            for width in WIDTHS
        }
        for count in workers:
            cluster = measure_local(count)
            now = list(ways(profiles, cluster, job.batch_size))
            known = found.setdefault(count, now)
            for way, fresh in zip(known, now, strict=True):
                way.plan = fresh.plan
            for width in WIDTHS:  # tensor-parallel groups are pinned to cores in another way than single workers
                own = [way for way in known if way.plan.tensor == width]
                if own:
                    predict_and_train(own, profiles[width], steps)
    return found


def predict_and_train(ways: list[Case], profile: ModelProfile, steps: int) -> None:
    """Predict some plans, and train them in turns."""
    plans = [way.plan for way in ways]
    found = train_in_turns(JOB, plans, steps=steps, turns=Turns(max(LEAST, steps // 2)))
    for way, turned in zip(ways, found, strict=True):
        add(way, predict_iteration(way.plan, profile), turned.summary)


def add(way: Case, predicted: Predicted, summary: RunSummary) -> None:
    """Add and print the predicted and measured figures of a plan."""
    way.predicted_s.append(predicted.iteration_s)
    way.measured_s.append(summary.iteration_s or float("nan"))
    way.memory += [
        predicted.peak_memory_bytes[worker // way.plan.tensor] / peak - 1
        for worker, peak in summary.peak_memory_bytes.items()
    ]
    row = {"way": way.name, "predicted_iteration_s": predicted.iteration_s, "measured_iteration_s": way.measured_s[-1]}
    row["error"] = round(way.predicted_s[-1] / way.measured_s[-1] - 1, 3)
    print(json.dumps({**row, "memory_errors": [round(x, 4) for x in way.memory]}), flush=True)


def main() -> None:
    """Print one line per plan, and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    for count, found in run(load_job(JOB), given.workers, given.steps, given.rounds).items():
        pairs = [(statistics.median(way.predicted_s), statistics.median(way.measured_s)) for way in found]
        row = {"workers": count, "ways": len(found), **order(found)}
        row["mean_absolute_error"] = statistics.fmean(abs(a / b - 1) for a, b in pairs)
        memory = [error for way in found for error in way.memory]
        print(json.dumps({**row, "memory_error_least": min(memory), "memory_error_most": max(memory)}), flush=True)


if __name__ == "__main__":
    main()
