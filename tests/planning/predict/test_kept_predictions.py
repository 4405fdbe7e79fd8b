"""Predictions, bounds and proved peaks of drawn plans of each strategy, equal to those that are kept in predictions/.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.errors import RefusedError
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict_choice, proven_peaks, shorter_runs
from hocket.planning.search.bounds.bounds import Bounds
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import members, strategy
from tests.drawn import cluster, model
from tests.kept import check

TASKS = 12
EACH = 3
MOST = 300
"""Candidates among which a plan is drawn."""


def figures(space: SearchSpace, name: str, choice: Candidate, bounds: Bounds) -> str:
    """What is predicted, proved and bounded for a candidate."""
    found, shapes = predict_choice(space, name, choice, most_forwards=24), bounds.shapes(choice)
    path = shorter_runs(PlannedRun.of_choice(space, name, choice)).critical_path
    stages = " ".join(f"{cut.layers}x{cut.devices}" for cut in choice.stages)
    least = bounds.peak_bytes(name, shapes, choice)
    return "\n".join(
        (
            f"{stages} b{choice.microbatch_size}: {found.iteration_s:.9g} s, bubble {found.bubble_fraction:.9g}",
            f"  at least {bounds.quick_s(choice):.9g} and {bounds.seconds(name, shapes, choice):.9g} s; {path}",
            f"  peaks {[f'{size:.9g}' for _, size in sorted(found.peak_memory_bytes.items())]}",
            f"  proved {[f'{size:.9g}' for _, size in sorted(proven_peaks(space, name, choice).items())]}",
            f"  at least {[f'{size:.9g}' for _, size in sorted(least.items())]}",
        )
    )


@pytest.mark.parametrize("name", members())
@pytest.mark.thinned(most=4)
def test_predictions(name: str, update_golden: bool) -> None:
    """Seconds, bubble, critical path and memory, for batches of whole and of uneven microbatches."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        profile, there = model(draw, most_layers=7), cluster(draw, draw.choice([(2,), (4,), (2, 2)]))
        if draw.random() < 0.3:
            there = replace(there, host_cores=2.0, transfer_cores=0.3, sender_copies=draw.random() < 0.5)
        space = SearchSpace(profile, there, draw.choice((4, 7, 12)), shard=draw.choice((None, "none", "optimizer")))
        bounds = Bounds(space)
        try:
            offered = [one for choice in strategy(name).choices(space) for one in (choice, *choice.thriftier)][:MOST]
        except RefusedError as error:
            lines.append(f"{seed}: {error}")
            continue
        for choice in draw.sample(offered, min(EACH, len(offered))):
            try:
                lines.append(f"{seed} {figures(space, name, choice, bounds)}")
            except RefusedError as error:
                lines.append(f"{seed} b{choice.microbatch_size}: {error}")
    check(Path(__file__).parent / "predictions" / f"{name}.txt", "\n".join(lines) + "\n", update_golden)
