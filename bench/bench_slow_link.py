"""Hocket's own choice against DistributedDataParallel over a slow link: a VGG-style network on two workers.

    python bench/bench_slow_link.py

Two workers in two network namespaces joined by a veth pair that is shaped to 200 Mbit/s, then 2 Gbit/s. For each: the
link is measured, the job profiled, the planner chooses by itself, and its plan and DDP train in turn; ratios of median
iteration times from the same run. Needs root and iproute2; says so and stops elsewhere.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _netns import ADDRESSES, INTERFACES, command, missing, slow_link
from _workers import HERE, environment, free_port, last_json

from hocket.hardware.cluster import Cluster, Level
from hocket.plan.search import search
from hocket.profile.job import load_job
from hocket.profile.measure import measure
from hocket.typed import read_as

JOB = HERE / "jobs" / "vgg.py"
ROUNDS = 2
STEPS = {200: 12, 2000: 30}


def workers(arguments: list[str]) -> dict[str, Any]:
    """Run one command in both namespaces and return the JSON line that one of them prints last."""
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


def compare(mbit_per_s: int, folder: Path) -> dict[str, Any]:
    """Measure, plan and train on both sides over a link of one speed."""
    with slow_link(mbit_per_s):
        level = read_as(Level, workers([sys.executable, str(HERE / "_links.py")]), "link")
        cluster = Cluster(f"two workers, {mbit_per_s} Mbit/s", (level,), "cpu-core")
        profile = measure(load_job(JOB), (2, 4, 8, 16), budget_s=20)
        profile.save(folder / "profile.json")
        found = search(profile, cluster, 32, profile_path="profile.json", synchronous=False)
        plan = found.best.plan
        plan.save(folder / "plan.yaml")
        steps = str(STEPS[mbit_per_s])
        ours, theirs = [], []
        for _ in range(ROUNDS):
            train = [
                sys.executable,
                "-m",
                "hocket",
                "train",
                str(JOB),
                str(folder / "plan.yaml"),
                "--steps",
                steps,
                "--json",
            ]
            ours.append(workers(train)["iteration_s"])
            theirs.append(workers([sys.executable, str(HERE / "_ddp.py"), steps])["iteration_s"])
    best = {c.strategy: c.iteration_s for c in reversed(found.candidates)}
    return {
        "link_mbit_per_s": mbit_per_s,
        "measured_mbit_per_s": level.bandwidth_bytes_per_s * 8 / 1e6,
        "chosen": f"{plan.strategy} {found.best.config}, microbatches of {plan.microbatch_size}",
        "predicted_iteration_s": found.best.iteration_s,
        "predicted_data_parallel_s": best.get("data_parallel"),
        "hocket_iteration_s": statistics.median(ours),
        "ddp_iteration_s": statistics.median(theirs),
        "ddp_by_hocket": statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
    }


def main() -> None:
    """Print one JSON line a link speed."""
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return
    for speed in STEPS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(compare(speed, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
