"""Burst-parallel plans of drawn models over drawn clusters, equal to those that are kept in bursts.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

from hocket.errors import InputError
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import BurstPlan, DeviceCounts, plan_burst, plan_printed
from tests.drawn import cluster, model
from tests.kept import check

TASKS = 80


def shown(plan: BurstPlan) -> str:
    """Figures of a plan and of its layers."""
    lines = [
        f"{plan.iteration_s:.9g} s, {plan.gpu_s:.9g} GPU s, {plan.amplification:.9g} times, "
        f"data parallel {plan.data_parallel_s:.9g} s, {plan.peak_bytes:.9g} bytes {' '.join(plan.remarks)}".rstrip()
    ]
    for layer in plan.layers:
        figures = f"{layer.comp_s:.9g} {layer.comm_s:.9g} {layer.sync_s:.9g} s, {layer.amplification:.9g} times"
        lines.append(f"  {layer.devices}: {figures}")
    return "\n".join(lines)


def test_bursts(update_golden: bool) -> None:
    """Limits on layers, on the whole and on memory, numbers of devices, and the algorithm as it is printed."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        profile, there = model(draw, most_layers=8), cluster(draw, draw.choice([(4,), (8,), (2, 2), (4, 2)]))
        batch, limits = draw.choice((4, 8, 16)), (None, 1.3, 2.0, 4.0)
        whole = sum(layer.weights_bytes + layer.gradients_bytes + layer.optimizer_bytes for layer in profile.layers)
        limit = BurstLimits(
            draw.choice(limits),
            draw.choice((None, None, 1.2, 2.0)),
            draw.choice((None, whole * draw.uniform(0.9, 1.5))),
        )
        counts = DeviceCounts(draw.random() < 0.7, least=draw.choice((1, 1, 2)))
        try:
            found = shown(plan_burst(profile, there, batch, limit, counts, draw.choice((0.0, 5e6))))
        except InputError as error:
            found = f"refused: {error}"
        printed = plan_printed(profile, there, batch, draw.choice(limits))
        lines.append(f"{seed}: {found}\nas printed: {shown(printed)}")
    check(Path(__file__).with_name("bursts.txt"), "\n".join(lines) + "\n", update_golden)
