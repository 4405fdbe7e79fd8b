"""What a run that swapped teaches of other plans that swap: how far predictions of a small GPT's plans are off before and after.

Every plan is trained by local workers; then each is predicted as the profile says, and with what the run of every other one has taught:
of links to hosts the rate alone, and latency and rate. Packs of three sizes, on two workers in both modes, swaps in the compute lane or
ahead. `python -m bench.bench_swap_learning 1 40` (workers, steps); means of errors, and in brackets of what they are without signs.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from hocket.hardware.cluster import Cluster
from hocket.hardware.link_sums import LinkSums
from hocket.passes.swapping import Swapping
from hocket.plan.experience import Experience, learned_from
from hocket.plan.plan import Plan, PlanStage
from hocket.plan.predict import predict_iteration
from hocket.plan.swapped import completed
from hocket.profile.model import ModelProfile
from hocket.run.loop import train

BATCH, EACH, ROOM = 8, 2, 1.2e6
JOB = f"""
from functools import partial
import torch
from hocket import zoo

job = zoo.job("gpt", batch_size={BATCH}, n_layer=4, d_model=64, n_head=2, seq=32, dropout=0.0, tied=False, samples=64,
              optimizer=partial(torch.optim.Adam, lr=1e-3))
"""


def plans(profile: ModelProfile, cluster: Cluster) -> dict[str, Plan]:
    """By name."""
    found = {}
    for mode in ("data", "pipeline")[: cluster.devices]:
        for most in (60e3, 100e3, 200e3):
            packs, size = list[list[str]]([[]]), 0.0
            for layer in profile.layers:
                if packs[-1] and size + layer.weights_bytes > most:
                    packs.append([])
                    size = 0.0
                packs[-1].append(layer.name)
                size += layer.weights_bytes
            every = tuple(range(cluster.devices))
            where = [(k % len(every),) if mode == "pipeline" else every for k in range(len(packs))]
            stages = tuple(PlanStage(tuple(own), at, True) for own, at in zip(packs, where, strict=True))
            for ahead in (0, 1):
                swap = Swapping("next_use", ROOM, prefetch=ahead)
                plan = Plan(
                    "harmony", profile.name, BATCH, EACH, stages, cluster, {"mode": mode}, "profile.json", profile.digest, swap=swap
                )  # fmt: skip
                found[f"{mode}, {len(packs)} packs, {ahead} ahead"] = completed(plan, profile)
    return found


def main() -> None:
    """A row a plan."""
    workers, steps = [int(word) for word in sys.argv[1:]] or (1, 40)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        for words in (
            ("links", "-n", "2", "-o", "cluster.yaml"),
            ("profile", "job.py", "-b", "1", "-b", "2", "-o", "profile.json"),
        ):
            subprocess.run([sys.executable, "-m", "hocket", *words], cwd=folder, check=True, capture_output=True)
        profile, cluster = ModelProfile.read(folder / "profile.json"), Cluster.read(folder / "cluster.yaml")
        levels = (replace(cluster.levels[0], width=workers),)
        own = plans(profile, replace(cluster, levels=levels, memory_bytes=ROOM))
        seconds, learned = dict[str, float](), dict[str, list[Experience]]()
        for title, plan in own.items():
            plan.save(folder / "plan.yaml")
            done = train(folder / "job.py", folder / "plan.yaml", steps=steps)
            assert done.iteration_s is not None
            seconds[title] = done.iteration_s
            rate = {
                d: LinkSums.of(sums.size_bytes / sums.count, sums.mean_s, sums.count) for d, sums in done.swaps.items()
            }
            learned[title] = [
                learned_from(plan, profile, done.iteration_s, {}, steps, swaps) for swaps in (rate, done.swaps)
            ]
            print(f"{title}: {learned[title][1].line}", flush=True)
    print("| plan | measured | as profiled | rate learned | latency and rate |\n|---|---|---|---|---|")
    errors: tuple[list[float], ...] = ([], [], [])
    for title, plan in own.items():
        offs = [[predict_iteration(plan, profile).iteration_s / seconds[title] - 1]]
        for k in (0, 1):
            offs.append([])
            for experience in (runs[k] for other, runs in learned.items() if other != title):
                there, now = experience.on(plan.cluster), experience.applied(profile)
                plan_there = replace(plan, cluster=there, profile_digest=now.digest)
                offs[-1].append(predict_iteration(plan_there, now).iteration_s / seconds[title] - 1)
        for row, off in zip(errors, offs, strict=True):
            row += map(abs, off)
        cells = [f"{fmean(off):+.0%} ({fmean(map(abs, off)):.0%})" for off in offs]
        print(f"| {title} | {seconds[title] * 1e3:.1f} ms | {' | '.join(cells)} |")
    print(f"| mean absolute error | | {' | '.join(f'{fmean(row):.1%}' for row in errors)} |")


if __name__ == "__main__":
    main()
