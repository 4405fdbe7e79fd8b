"""Runs that a seed draws: a candidate of a strategy for a drawn model and cluster, with swaps or without."""

import random
from collections.abc import Iterator
from dataclasses import replace

from hocket.cost.sizes import PlanSizes
from hocket.errors import RefusedError
from hocket.planning.predict.planned_run import PlannedRun
from hocket.profiling.profile import ModelProfile
from hocket.program.memory_bound.footprint import footprints
from hocket.program.passes.swapping.settings import POLICIES, Swapping
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import strategy
from tests.drawn import cluster, model

MOST = 60
"""Candidates among which a plan is drawn."""


def drawn_runs(name: str, seeds: range, each: int = 1) -> Iterator[tuple[random.Random, PlannedRun]]:
    """Runs of a strategy, and what draws further things for them; refused ones are left out."""
    for seed in seeds:
        draw = random.Random(f"{name} {seed}")
        profile, there = model(draw, most_layers=6), cluster(draw, draw.choice([(2,), (3,), (4,), (2, 2)]))
        if draw.random() < 0.3:
            there = replace(there, host_cores=2.0, transfer_cores=0.3, sender_copies=draw.random() < 0.5)
        if draw.random() < 0.4:
            profile = varying(draw, profile)
        space = SearchSpace(profile, there, draw.choice((4, 6, 8)), shard=draw.choice((None, None, "optimizer")))
        try:
            offered = [one for choice in strategy(name).choices(space) for one in (choice, *choice.thriftier)][:MOST]
        except RefusedError:
            continue
        for choice in draw.sample(offered, min(each, len(offered))):
            run = PlannedRun.of_choice(space, name, choice)
            try:
                found = swapped(draw, run) if draw.random() < 0.4 else run
                _ = found.program
            except RefusedError:
                continue
            yield draw, found


def varying(draw: random.Random, profile: ModelProfile) -> ModelProfile:
    """The same with seconds of computation that vary from step to step."""
    forward_s, backward_s = (
        tuple(draw.uniform(0.05, 0.2) * sum(getattr(layer, name)[k] for layer in profile.layers) for k in range(3))
        for name in ("forward_s", "backward_s")
    )
    return replace(profile, whole_forward_std_s=forward_s, whole_backward_std_s=backward_s)


def swapped(draw: random.Random, run: PlannedRun) -> PlannedRun:
    """The same with a drawn policy and limit of swapping, if its program can swap; without swaps if not."""
    plain = run.program
    if plain.rule.kind != "sync" or any(stage.sharded for stage in plain.stages):
        return run
    most = max(found.bytes for found in footprints(plain, PlanSizes(run.costs, plain)).values())
    policy = draw.choice(POLICIES)
    limit = None if policy == "task" and draw.random() < 0.5 else most * draw.uniform(0.5, 1.1)
    return replace(run, swap=Swapping(policy, limit, None, draw.randint(0, 2), draw.random() < 0.3))
