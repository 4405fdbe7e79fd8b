"""Time that training steps wait for checkpoints: saved in the background, and saved between steps.

    python bench/bench_checkpoints.py [--rounds 3] [--steps 40] [--every 10]

A GPT with Adam trains on two local workers with data parallelism, in three variants: without checkpoints, with
checkpoints in the background (the default), and with checkpoints between steps (--no-async-save). The script prints the
seconds of the whole run, the overhead of checkpoints, and the time that steps wait for them, as a share of the steps'
time. The variants alternate, so that a slow phase of the machine affects all of them.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.training.train import train
from hocket.training.worker.monitor.listener import Quiet

JOB = """
import torch
from hocket import models

job = models.job("gpt", n_layer=4, d_model=320, n_head=5, seq=64, batch_size=8, optimizer=lambda p: torch.optim.Adam(p))
"""


def main() -> None:
    """Train the variants in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "job.py"
        job.write_text(JOB)
        layers = tuple(layer.name for layer in capture(load_job(job)).layers)
        cluster = Cluster("local", (Level("machine", 2, 1e9),), "cpu-core")
        plan = Plan("data_parallel", "gpt", 8, 4, (PlanStage(layers, (0, 1)),), cluster)
        took: dict[str, list[float]] = {"no checkpoints": [], "in the background": [], "between steps": []}
        waits: dict[str, list[float]] = {kind: [] for kind in took}
        for turn in range(options.rounds):
            for kind, seconds in took.items():
                saved = folder / f"{turn}-{kind.replace(' ', '-')}"
                more = {} if kind == "no checkpoints" else {"checkpoint": saved, "every": options.every}
                began_s = time.perf_counter()
                summary = train(
                    job, plan, steps=options.steps, listener=Quiet(), async_save=kind == "in the background", **more
                )
                seconds.append(time.perf_counter() - began_s)
                waits[kind].append(summary.saving_s / (options.steps * (summary.iteration_s or 1.0)))
        size = sum(file.stat().st_size for file in max(saved.glob("step-*")).iterdir())
    plain = statistics.median(took["no checkpoints"])
    print(
        f"{options.steps} steps, a checkpoint of {size / 1e6:.0f} MB every {options.every} steps, {options.rounds} rounds"
    )
    for kind, seconds in took.items():
        middle = statistics.median(seconds)
        more, waited = (middle / plain - 1) * 100, statistics.median(waits[kind]) * 100
        print(
            f"{kind:18} {middle:7.2f} s  {more:+6.1f} %  steps wait {waited:5.2f} %  all {[round(s, 2) for s in seconds]}"
        )


if __name__ == "__main__":
    main()
