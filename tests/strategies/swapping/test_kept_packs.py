"""Harmony's packs of drawn models on drawn servers, equal to those that are kept in packs.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

import numpy as np

from hocket.errors import InputError
from hocket.strategies.swapping.costs import DirectionCosts, LayerProfile, Server
from hocket.strategies.swapping.search import plan_harmony
from hocket.strategies.swapping.tuner import Mode
from tests.kept import check

TASKS = 60
SIZES = (1, 2, 4, 8)


def profile(draw: random.Random) -> LayerProfile:
    """Unlike layers; a larger microbatch takes more, but less than in proportion."""
    layers = draw.randint(2, 9)

    def direction(most_s: float) -> DirectionCosts:
        each_s = np.array([draw.uniform(1e-3, most_s) for _ in range(layers)])
        each = np.array([draw.uniform(1e6, 3e7) for _ in range(layers)])
        own = np.array([draw.uniform(1e6, 5e7) for _ in range(layers)])
        sizes = np.array(SIZES, dtype=float)
        return DirectionCosts(sizes, sizes[:, None] ** 0.9 * each_s, np.floor(own + sizes[:, None] * each))

    return LayerProfile(
        direction(1e-2),
        direction(3e-2),
        np.array([draw.uniform(1e5, 1e6) for _ in range(layers)]),
        np.array([draw.uniform(1e6, 5e7) for _ in range(layers)]),
        np.array([draw.uniform(1e-4, 1e-2) for _ in range(layers)]),
    )


def test_packs(update_golden: bool) -> None:
    """Packs and microbatches of both directions, in both modes, where they fit and where nothing does."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        layers = profile(draw)
        server = Server(
            draw.choice((1, 2, 3, 4)),
            draw.uniform(5e7, 6e8),
            draw.uniform(1e9, 2e10),
            draw.uniform(1e9, 2e10),
            draw.uniform(1e9, 2e10),
            draw.choice((0.0, 0.01)),
        )
        for mode in Mode:
            try:
                plan = plan_harmony(layers, server, server.devices * draw.choice((2, 4, 6)), mode)
                packs = [[tuple(pack) for pack in tasks.packs] for tasks in (plan.forward, plan.backward)]
                found = f"{plan.forward.size} {packs[0]} {plan.backward.size} {packs[1]} {plan.iteration_s:.9g} s"
                found += f", {plan.peak_bytes:.9g} bytes"
            except InputError as error:
                found = f"refused: {error}"
            lines.append(f"{seed} {mode}: {found}")
    check(Path(__file__).with_name("packs.txt"), "\n".join(lines) + "\n", update_golden)
