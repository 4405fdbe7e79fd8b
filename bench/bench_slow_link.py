"""Hocket's own choice of a plan compared with DistributedDataParallel over a slow link.

    python bench/bench_slow_link.py

Two workers train a VGG-style network. They are in two network namespaces, joined by a veth pair that is shaped to 200
Mbit/s, then to 2 Gbit/s. For each speed, the link is measured and the job is profiled. The planner chooses twice: among
synchronous strategies (the default), and among all (`--stale`: weights may lag by one or more updates). Both plans and
DDP train in turn. The figures are ratios of median iteration times of the same run. The script needs root and iproute2;
without them it prints so and stops.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _netns import ADDRESSES, INTERFACES, command, missing, slow_link
from _workers import HERE, environment, free_port, last_json

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.job.job_file import load_job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.util.schema import read_as

JOB = HERE / "jobs" / "vgg.py"
ROUNDS = 2
CHOICES = {"synchronous": True, "stale": False}
STEPS = {200: 12, 2000: 30}


def workers(arguments: list[str]) -> dict[str, Any]:
    """Run one command in both namespaces.

    Returns:
        The last JSON line of the worker that prints one.
    """
    port = free_port()
    started = [
        subprocess.Popen(
            command(rank, arguments),
            env=environment(rank, 2, ADDRESSES[0], port, INTERFACES[rank]),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{' '.join(arguments)} failed")
    return last_json("".join(reversed(outputs)))


def compare(mbit_per_s: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Measure, plan and train over a link of one speed.

    Yields:
        One row per kind of choice.
    """
    with slow_link(mbit_per_s):
        level = read_as(Level, workers([sys.executable, str(HERE / "_links.py")]), "link")
        cluster = Cluster(f"two workers, {mbit_per_s} Mbit/s", (level,), "cpu-core")
        profile = measure(load_job(JOB), (2, 4, 8, 16), MeasureRequest(budget_s=20))
        profile.save(folder / "profile.json")
        chosen = {
            name: search(profile, cluster, PlanRequest(32, synchronous=synchronous), profile_path="profile.json")
            for name, synchronous in CHOICES.items()
        }
        steps = str(STEPS[mbit_per_s])
        ours: dict[str, list[float]] = {name: [] for name in chosen}
        theirs = []
        for name, found in chosen.items():
            found.best.plan.save(folder / f"{name}.yaml")
        for _ in range(ROUNDS):
            for name in chosen:
                train = [sys.executable, "-m", "hocket", "train", str(JOB), str(folder / f"{name}.yaml")]
                ours[name].append(workers([*train, "--steps", steps, "--json"])["iteration_s"])
            theirs.append(workers([sys.executable, str(HERE / "_ddp.py"), steps])["iteration_s"])
    for name, found in chosen.items():
        plan, best = found.best.plan, {c.strategy: c.iteration_s for c in reversed(found.candidates)}
        yield {
            "link_mbit_per_s": mbit_per_s,
            "measured_mbit_per_s": level.bandwidth_bytes_per_s * 8 / 1e6,
            "updates": name,
            "chosen": f"{plan.strategy} {found.best.config}, microbatches of {plan.microbatch_size}",
            "predicted_iteration_s": found.best.iteration_s,
            "predicted_data_parallel_s": best.get("data_parallel"),
            "hocket_iteration_s": statistics.median(ours[name]),
            "ddp_iteration_s": statistics.median(theirs),
            "ddp_by_hocket": statistics.median(b / a for a, b in zip(ours[name], theirs, strict=True)),
        }


def main() -> None:
    """Print one JSON line per link speed and kind of choice."""
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return
    for speed in STEPS:
        with tempfile.TemporaryDirectory() as folder:
            for row in compare(speed, Path(folder)):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
