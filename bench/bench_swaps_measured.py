"""Measured plans that swap, with real workers that share one host link: Figure 2 of Harmony (HotOS 2021).

    python -m bench.bench_swaps_measured 1 2    # numbers of devices

The model is a GPT with about 40 layers. There are two microbatches per device, and budgets of 18 % of weights,
gradients and Adam's state. The link is shaped (`hocket train --host-link`): swaps of all workers wait as if they shared
a link of that many bytes per second.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench._swap_packs import packs_of
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.program.passes.swapping.settings import Swapping
from hocket.training.train import train

RATE, STEPS, EACH, SHARE = 5e6, 4, 2, 9.0
APART = {"grouping": False, "just_in_time": False}
SCHEMES: tuple[tuple[str, dict[str, Any], str, int], ...] = (
    ("data parallel, lru", APART, "lru", 0),
    ("Harmony-DP, next_use", {}, "next_use", 0),
    ("one operation ahead", {}, "next_use", 1),
    ("Harmony-PP, next_use", {"mode": "pipeline"}, "next_use", 0),
    ("one operation ahead ", {"mode": "pipeline"}, "next_use", 1),
)
JOB = """
from functools import partial
import torch
from hocket import models

job = models.job("gpt", batch_size={batch}, n_layer=4, d_model=64, n_head=2, seq=16, dropout=0.1, tied=False, samples=64,
              optimizer=partial(torch.optim.Adam, lr=1e-3))
"""


def main() -> None:
    """Print samples per second per device, by the number of devices."""
    counts = [int(word) for word in sys.argv[1:]] or [1, 2]
    print(f"| samples/s of each device | {' | '.join(map(str, counts))} |\n|---|{'---|' * len(counts)}")
    rows: dict[str, list[str]] = {name: [] for name, _, _, _ in SCHEMES}
    with TemporaryDirectory() as name:
        folder = Path(name)
        for count in counts:
            batch, scope = EACH * count, dict[str, Any]()
            exec(JOB.format(batch=batch), scope)  # the text of the workers' job file
            (folder / "job.py").write_text(JOB.format(batch=batch))
            profile = measure(scope["job"], (1,), MeasureRequest(budget_s=0.5))
            state_bytes = 4 * sum(p.nbytes for p in scope["job"].model.parameters())
            packs = packs_of(profile, max(layer.weights_bytes for layer in profile.layers))
            for title, options, policy, ahead in SCHEMES:
                pipeline = options.get("mode") == "pipeline"
                where = [(k % count,) if pipeline else tuple(range(count)) for k in range(len(packs))]
                stages = tuple(PlanStage(own, at, True) for own, at in zip(packs, where, strict=True))
                cluster = Cluster("server", (Level("server", max(counts), 1e9),), "cpu-core", sender_copies=True)
                swap = Swapping(policy, state_bytes * 1.6 / SHARE, prefetch=ahead)
                plan = Plan("harmony", "gpt", batch, 1, stages, cluster, options, swap=swap)
                LoadedPlan(plan, profile).completed.save(folder / "plan.yaml")
                ends: list[float] = []
                train(
                    folder / "job.py",
                    folder / "plan.yaml",
                    steps=STEPS,
                    on_step=lambda _, ends=ends: ends.append(time.monotonic()),
                    host_link_bytes_per_s=RATE,
                )
                rows[title].append(f"{EACH * (STEPS - 2) / (ends[-1] - ends[1]):.3f}")
    for title, cells in rows.items():
        print(f"| {title.strip()} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
