"""Joint choice of buckets and threads (LIBRA) compared with DDP, MG-WFBP and no overlap, over a shaped network.

    python bench/bench_overlap.py [--workers 2] [--mbit 1000] [--jobs vgg gpt] [--draws 20] [--rounds 4] [--steps 10]

All workers run on this machine, each in its own network namespace. By default, there are two of them, and also three if
each has a core. On two cores, the draws of three workers take more than 15 minutes. For each job and number of
workers:

1. The job trains with buckets and threads drawn at random, and the contention model is fitted.
2. Each rule makes a plan from the same measured gradients.
3. The plans and DistributedDataParallel train in turn in the same processes.

The backward time lasts from the begin of the backward pass to the end of the last all-reduce. The figure is the median
over workers and over the steps of all rounds. The script needs root and iproute2; without them it prints so and stops.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from _netns import ADDRESSES, INTERFACES, command, missing, slow_link
from _workers import HERE, environment, free_port

from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.overlap import OverlapModel
from hocket.planning.buckets.baselines import by_bytes, merged, no_overlap
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients
from hocket.planning.buckets.threads import taken_buckets, taken_threads
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job_file import load_job
from hocket.training.calibrate.buckets.fit import Noted, OverlapMeasurement, PlainBackward, foretold, measured
from hocket.util.schema import read_as

MIB = 2**20


def main() -> None:
    """Print one JSON line for each job and number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_workers = [2, *(count for count in (3,) if count <= (os.cpu_count() or 1))]
    parser.add_argument("--workers", type=int, nargs="+", default=default_workers)
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000])
    parser.add_argument("--jobs", nargs="+", default=["vgg", "gpt"])
    for name, default in (("draws", 20), ("rounds", 4), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if reason := missing():
        print(f"skipped: {reason}")
        return
    for mbit_per_s in given.mbit:
        for workers in given.workers:
            for name in given.jobs:
                with tempfile.TemporaryDirectory() as folder, slow_link(mbit_per_s, workers):
                    about = {"job": name, "workers": workers, "mbit_per_s": mbit_per_s}
                    found = compare(HERE / "jobs" / f"{name}.py", workers, Path(folder), given)
                    print(json.dumps(about | found), flush=True)


def compare(job: Path, workers: int, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Fit the contention model, plan by each rule, and train with each plan."""
    loaded = load_job(job)
    size = -(-loaded.batch_size // workers)
    captured = capture(loaded, size)
    layers = tuple(layer.name for layer in captured.layers)
    cluster = Cluster("shaped", (Level("wire", workers, 1e9),), "cpu-core")
    stage = PlanStage(layers, tuple(range(workers)))
    plan = Plan("data_parallel", loaded.name, loaded.batch_size, size, (stage,), cluster)
    plan.save(folder / "default.yaml")
    run(workers, [str(job), str(folder), "draw", str(given.draws), str(given.steps)])
    notes = [
        [read_as(Noted, draw, "notes") for draw in json.loads((folder / f"notes-{rank}.json").read_text())]
        for rank in range(workers)
    ]
    fit = measured(notes)
    names, gradients = gradients_of(captured, fit.alone, notes[0][0])
    rules = chosen(gradients, fit.fitted.model)
    for name, fusion in rules.items():
        with_fusion(plan, names, fusion).save(folder / f"plan-{name}.yaml")
    run(workers, [str(job), str(folder), "plans", str(given.rounds), str(given.steps)])
    rounds = [json.loads((folder / f"rounds-{rank}.json").read_text()) for rank in range(workers)]
    return report(rounds, rules, fit)


def run(workers: int, arguments: Sequence[str]) -> None:
    """Run one worker in each namespace."""
    port = free_port()
    script = [sys.executable, str(HERE / "_overlap.py"), *arguments]
    started = [
        subprocess.Popen(command(rank, script), env=environment(rank, workers, ADDRESSES[0], port, INTERFACES[rank]))
        for rank in range(workers)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"{' '.join(arguments)} failed")


def gradients_of(
    captured: Captured, alone: Sequence[PlainBackward], one: Noted
) -> tuple[list[list[str]], ReadyGradients]:
    """Groups of layers in the order of the backward pass, with measured seconds and gradient bytes.

    A layer without gradients is in the group of the next layer that has some.
    """
    left = {name: p.nbytes for name, p in captured.job.model.named_parameters() if p.requires_grad}
    owned = {layer.name: [name for name in layer.parameters if name in left] for layer in captured.layers}
    for layer in captured.layers:  # a shared parameter counts for the last layer that uses it
        owned[layer.name] = [name for name in owned[layer.name] if left.pop(name, None) is not None]
    left = {name: p.nbytes for name, p in captured.job.model.named_parameters()}
    names: list[list[str]] = []
    sizes, computes, waiting, before_s = list[float](), list[float](), list[str](), 0.0
    for layer in reversed(captured.layers):
        waiting.append(layer.name)
        if owned[layer.name]:
            ready_s = max(before_s, mean(max(own.arrival_s[name] for name in owned[layer.name]) for own in alone))
            names.append(waiting)
            sizes.append(float(sum(left[name] for name in owned[layer.name])))
            computes.append(ready_s - before_s)
            waiting, before_s = [], ready_s
    names[-1] += waiting
    return names, ReadyGradients(tuple(sizes), tuple(computes))


def chosen(gradients: ReadyGradients, model: OverlapModel) -> dict[str, Fusion]:
    """Buckets and threads of each rule for the same gradients, as in the planner (planning/buckets/threads.py)."""
    fusion_only = merged(gradients, model, model.own_threads)
    return {
        "no overlap": no_overlap(gradients, model.own_threads),
        "25 MiB": by_bytes(gradients, 25 * MIB, model.own_threads),
        "MG-WFBP": fusion_only,
        "LIBRA-M": taken_threads(gradients, model, fusion_only.ends, model.usable),
        "LIBRA, own threads": taken_buckets(gradients, model),
        "LIBRA": taken_buckets(gradients, model, model.usable),
    }


def with_fusion(plan: Plan, names: Sequence[Sequence[str]], fusion: Fusion) -> Plan:
    """Plan with the given buckets and threads."""
    buckets = tuple(tuple(name for k in own for name in names[k]) for own in fusion.buckets)
    return replace(plan, stages=(replace(plan.stages[0], buckets=buckets, threads=fusion.threads),))


def report(rounds: Sequence[dict[str, Any]], rules: dict[str, Fusion], fit: OverlapMeasurement) -> dict[str, Any]:
    """Measured and predicted milliseconds of a backward pass by rule.

    It also has the relative reduction that LIBRA reaches over each rule.
    """
    model, found = fit.fitted.model, {}
    ddp_s = median(each for own in rounds for each in own["ddp"])
    for name, fusion in rules.items():
        each = [
            foretold([read_as(Noted, own[name][k], "rounds") for own in rounds], fit.alone, model)
            for k in range(len(rounds[0][name]))
        ]
        measured_s, predicted_s = median(run.measured_s for run in each), each[0].predicted_s
        found[name] = {
            "threads": list(fusion.threads),
            "measured_ms": round(measured_s * 1e3, 2),
            "predicted_ms": round(predicted_s * 1e3, 2),
            "error": round(predicted_s / measured_s - 1, 4),
        }
    libra_s = found["LIBRA"]["measured_ms"] / 1e3
    held_out = [abs(run.error) for run in fit.held_out]
    return {
        "alone_ms": round(fit.backward_s * 1e3, 2),
        "ddp_ms": round(ddp_s * 1e3, 2),
        "rules": found,
        "libra_shorter_than": {
            name: round(1 - libra_s / s, 4)
            for name, s in {"ddp": ddp_s, **{n: own["measured_ms"] / 1e3 for n, own in found.items()}}.items()
            if name != "LIBRA"
        },
        "mean_error_of_rules": round(mean(abs(own["error"]) for own in found.values()), 4),
        "mean_error_of_draws_not_seen": round(mean(held_out), 4) if held_out else None,
        "computation_keeps": {r: round(model.share(r), 3) for r in model.threads},
        "mb_per_s_beside": {r: round(model.beside.at(r) / 1e6, 1) for r in model.threads},
        "mb_per_s_alone": {r: round(model.alone.at(r) / 1e6, 1) for r in model.threads},
        "startup_ms": [round(s * 1e3, 3) for s in (model.beside_startup_s, model.startup_s)],
    }


if __name__ == "__main__":
    main()
