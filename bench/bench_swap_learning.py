"""Prediction errors of plans that swap, before and after learning from runs of other such plans.

    python -m bench.bench_swap_learning 40      # number of steps

The model is a small GPT, with packs of three sizes, and swaps in the compute lane or one operation ahead. A worker
process trains each plan on one device. Then each plan is predicted from the profile, and from the profile corrected by
the run of each other plan. A correction contains, of the link to the host:

- its rate only;
- its latency and rate;
- its latency and rate, learned only from plans that prefetch equally many operations ahead.

The table has mean errors, and mean absolute errors in parentheses. On a shared machine the result is meaningless,
because a worker that gets only a part of a core is several times as slow.
"""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench._swap_packs import packs_of
from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.link_sums import LinkSums
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.feedback import RunFeedback, learned_from
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.swapping.settings import Swapping
from hocket.training.calibrate.engine_overhead import instruction_s
from hocket.training.train import train

BATCH, EACH, ROOM = 8, 2, 1.2e6
JOB = f"""
from functools import partial
import torch
from hocket import models

job = models.job("gpt", batch_size={BATCH}, n_layer=4, d_model=64, n_head=2, seq=32, dropout=0.0, tied=False, samples=64,
              optimizer=partial(torch.optim.Adam, lr=1e-3))
"""


def plans(profile: ModelProfile, cluster: Cluster) -> dict[str, Plan]:
    """Plans by name."""
    found = {}
    for most in (60e3, 100e3, 200e3):
        packs = packs_of(profile, most)
        stages = tuple(PlanStage(own, (0,), True) for own in packs)
        for ahead in (0, 1):
            swap = Swapping("next_use", ROOM, prefetch=ahead)
            common = (profile.name, BATCH, EACH, stages, cluster, {}, "profile.json", profile.digest)
            found[f"{len(packs)} packs, {ahead} ahead"] = LoadedPlan(
                Plan("harmony", *common, swap=swap), profile
            ).completed
    return found


def _ahead(plan: Plan) -> int:
    return plan.swap.prefetch if plan.swap is not None else 0


def main() -> None:
    """Print one row per plan."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with TemporaryDirectory() as name:
        folder, scope = Path(name), dict[str, Any]()
        exec(JOB, scope)  # the text of the worker's job file
        (folder / "job.py").write_text(JOB)
        profile = measure(scope["job"], (1, EACH), MeasureRequest(budget_s=6.0))
        profile.save(folder / "profile.json")
        torch.set_num_threads(1)  # as in workers
        own_s = instruction_s()
        print(f"an instruction takes {own_s * 1e6:.0f} us besides its layers")
        levels = (Level("one", 1, 1e9),)
        own = plans(profile, Cluster("one", levels, "cpu-core", memory_bytes=ROOM, instruction_s=own_s))
        seconds, learned = dict[str, float](), dict[str, list[RunFeedback]]()
        for title, plan in own.items():
            plan.save(folder / "plan.yaml")
            done = train(folder / "job.py", folder / "plan.yaml", steps=steps)
            assert done.iteration_s is not None
            seconds[title] = done.iteration_s
            rate = {
                d: LinkSums.of(sums.size_bytes / sums.count, sums.mean_s, sums.count) for d, sums in done.swaps.items()
            }
            try:
                learned[title] = [
                    learned_from(plan, profile, done.iteration_s, {}, steps, swaps) for swaps in (rate, done.swaps)
                ]
                print(f"{title}: {learned[title][1].line}", flush=True)
            except RefusedError as error:
                print(f"{title}: nothing is learned, {error}", flush=True)
    print(
        "| plan | measured | as profiled | rate learned | latency and rate | of as many ahead |\n|---|---|---|---|---|---|"
    )
    errors: tuple[list[float], ...] = ([], [], [], [])
    for title, plan in own.items():
        offs = [[predict_iteration(plan, profile).iteration_s / seconds[title] - 1]]
        others = {other: runs for other, runs in learned.items() if other != title}
        alike = [runs[1] for other, runs in others.items() if _ahead(own[other]) == _ahead(plan)]
        for taught in ([runs[0] for runs in others.values()], [runs[1] for runs in others.values()], alike):
            offs.append([])
            for experience in taught:
                there, now = experience.on(plan.cluster), experience.applied(profile)
                plan_there = replace(plan, cluster=there, profile_digest=now.digest)
                offs[-1].append(predict_iteration(plan_there, now).iteration_s / seconds[title] - 1)
        for row, off in zip(errors, offs, strict=True):
            row += map(abs, off)
        cells = [f"{fmean(off):+.0%} ({fmean(map(abs, off)):.0%})" if off else "nothing learned" for off in offs]
        print(f"| {title} | {seconds[title] * 1e3:.1f} ms | {' | '.join(cells)} |")
    means = [f"{fmean(row):.1%}" if row else "nothing learned" for row in errors]
    print(f"| mean absolute error | | {' | '.join(means)} |")


if __name__ == "__main__":
    main()
