"""Gradient buckets and threads for drawn gradients, with the seconds of each phase, equal to those kept in fusions.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

from hocket.planning.buckets import baselines
from hocket.planning.buckets.tensor_fusion import Fusion, allocate, joint
from hocket.planning.buckets.threads import taken_buckets, taken_threads
from tests.drawn import gradients, overlap
from tests.kept import check

TASKS = 40


def test_fusions(update_golden: bool) -> None:
    """The joint choice, each baseline, and threads alone."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        ready, contention = gradients(draw), overlap(draw, draw.choice((2, 4, 8)))
        threads, limit_bytes = draw.choice((1, 2, 4)), draw.uniform(1e5, 5e6)
        buckets = baselines.by_bytes(ready, limit_bytes, threads)
        found: dict[str, Fusion] = {
            "joint": joint(ready, contention, (1, 2, 4, 8), most_buckets=draw.choice((2, 5, 12)), chunks=40),
            "allocate": allocate(ready, contention, buckets.ends, (1, 2, 4, 8), chunks=40),
            "taken_buckets": taken_buckets(ready, contention, contention.threads),
            "taken_threads": taken_threads(ready, contention, buckets.ends, contention.threads),
            "no_overlap": baselines.no_overlap(ready, threads),
            "each_layer": baselines.each_layer(ready, threads),
            "by_bytes": buckets,
            "by_window": baselines.by_window(ready, contention, threads, draw.uniform(1e-4, 5e-3), limit_bytes),
            "merged": baselines.merged(ready, contention, threads),
        }
        for name, fusion in found.items():
            stages = ", ".join(f"{stage.seconds:.9g}" for stage in fusion.stages(ready, contention))
            lines.append(f"{seed} {name}: {fusion.ends} {fusion.threads}: {stages} s")
    check(Path(__file__).with_name("fusions.txt"), "\n".join(lines) + "\n", update_golden)
