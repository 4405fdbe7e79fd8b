"""Ways to divide a GPT among 4 and 8 local workers: predicted before, measured after, and the order of both.

    python bench/bench_ranking.py [--workers 4 8] [--steps 8] [--rounds 1]

Every (stages p, tensor-parallel width t, columns d) whose product is the number of workers, with the schedules that it allows:
data_parallel, or flush, gpipe, two_bw and, in two chunks a device, interleaved; cuts are the planner's. Profiles of a device and of
members, and the cluster, are measured first, in this process; nothing is fitted to the runs. The ways of one width are trained in
turns (hocket/training/calibrate/train_in_turns.py), so that they meet the same machine. Prints one JSON line a way, then
Spearman's rank correlation for each number of workers and the mean absolute error of the iteration time. Eight workers share this
machine's cores: what is compared there is work, waiting and memory, not speed.
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
from hocket.profiling.job.job import Job, load_job
from hocket.profiling.measure.background_load import usual_neighbours
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.runtime.tensor_parallel.measure_rank import measure_member
from hocket.training.calibrate.local_links import measure_local
from hocket.training.calibrate.train_in_turns import Turns, train_in_turns
from hocket.training.worker.monitor.listener import RunSummary

WIDTHS, MICROBATCH = (1, 2, 4), 2
FLUSHED = ("flush", "gpipe", "two_bw")


def ways(profiles: dict[int, ModelProfile], cluster: Cluster, batch_size: int) -> Iterator[Case]:
    """All ways to divide the cluster."""
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
    """What a mesh is tried with."""
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
            for width in WIDTHS:  # groups are kept on cores in another way than single workers
                own = [way for way in known if way.plan.tensor == width]
                if own:
                    together(own, profiles[width], steps)
    return found


def together(ways: list[Case], profile: ModelProfile, steps: int) -> None:
    """Predict some ways, and train them in turns."""
    plans = [way.plan for way in ways]
    found = train_in_turns(JOB, plans, steps=steps, turns=Turns(max(4, steps // 2)))
    for way, turned in zip(ways, found, strict=True):
        add(way, predict_iteration(way.plan, profile), turned.summary)


def add(way: Case, predicted: Predicted, summary: RunSummary) -> None:
    """Keep and print what was predicted and found."""
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
    """Print the lines and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--steps", type=int, default=8)
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
