"""Searches of drawn models, clusters and requests, equal to those that are kept in searches.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hocket.errors import HocketError
from hocket.hardware.cluster import Cluster
from hocket.planning.explain.baseline_comparison import of_profile
from hocket.planning.search.request import SWAPS, PlanRequest
from hocket.planning.search.result import Refused, Search
from hocket.planning.search.search import search
from hocket.planning.waves.explain import why_not
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.strategy import members
from tests.drawn import cluster, model
from tests.kept import check

SEARCHES = 18
SHOWN = 6
PIPELINES = ("data_parallel", "flush", "gpipe", "interleaved", "pipedream", "two_bw")


def request(draw: random.Random) -> PlanRequest:
    """A batch, and drawn wishes."""
    wish = draw.choice(("none", "none", "strategies", "swap", "amplification", "shard"))
    names = tuple(sorted(draw.sample(PIPELINES, 2))) if wish in ("strategies", "shard") else ()
    return PlanRequest(
        draw.choice((4, 6, 8)),
        (draw.choice(members()),) if wish == "strategies" and draw.random() < 0.5 else names,
        draw.choice(((), (1, 2), (2,))),
        draw.choice((None, None, False)),
        (draw.choice(("none", "optimizer", "full")),) if wish == "shard" else (),
        draw.choice(("auto", "default", 3e6)),
        draw.choice((1.2, 2.0)) if wish == "amplification" else None,
        draw.choice(SWAPS) if wish == "swap" else None,
    )


def sized(draw: random.Random, profile: ModelProfile, there: Cluster) -> Cluster:
    """The cluster with devices for which the model is small, nearly too large, or too large, and memory of hosts."""
    whole = sum(one.weights_bytes + one.gradients_bytes + one.optimizer_bytes for one in profile.layers)
    memory_bytes = whole * draw.choice((10.0, 1.5, 0.8, 0.5))
    hosts = draw.choice((None, 1e12, 4 * whole))
    nodes = tuple(replace(one, memory_bytes=memory_bytes) for one in there.nodes)
    return replace(there, memory_bytes=memory_bytes, host_memory_bytes=hosts, nodes=nodes)


def reason(one: Refused) -> str:
    """A refusal with its figures."""
    words = "swaps" * one.swaps, "too much" * one.too_much, "bug" * one.bug
    return f"{one.strategy} {one.config}: {one.reason} {' '.join(words)} {one.missing_bytes:.9g} {one.host_bytes:.9g}".rstrip()


def shown(found: Search) -> list[str]:
    """The best candidates and refusals, the choice, and what is said about it."""
    lines = [f"{found.considered} considered, {len(found.candidates)} fit, {len(found.refused)} refused"]
    for one in found.candidates[:SHOWN]:
        most = max(one.peak_memory_bytes.values())
        figures = (
            f"{one.iteration_s:.9g} s, {one.samples_per_s:.9g} a second, {one.bubble_fraction:.9g}, {most:.9g} bytes"
        )
        lines.append(f"  {one.label}: {figures}, {one.amplification} {one.plan.shard} {one.buckets}".rstrip())
        lines.append(f"    {one.updates}")
    lines += [f"  {name}: {count} refused" for name, count in Counter(one.strategy for one in found.refused).items()]
    lines += [f"  {reason(one)}" for one in found.refused[:SHOWN]]
    lines += [f"  note: {note}" for note in found.notes]
    lines += [f"  near: {found.named(one)}, {reason(one)}" for one in found.nearest_misses]
    try:
        best = found.best
    except HocketError as error:
        return [*lines, f"  none: {error}"]
    compared = (*why_not(found), of_profile(found))
    return [
        *lines,
        *(f"  {stage}" for stage in best.plan.stages),
        f"  {best.plan.options} {best.plan.swap}",
        *(f"  {one}" for one in compared),
    ]


def test_searches(update_golden: bool) -> None:
    """Candidates, refusals, notes and the choice, also where nothing fits or a wish cannot be met."""
    lines = []
    for seed in range(SEARCHES):
        draw = random.Random(f"search {seed}")
        profile = model(draw, most_layers=5)
        there = sized(draw, profile, cluster(draw, draw.choice([(2,), (3,), (2, 2)])))
        if draw.random() < 0.2:
            profile = replace(profile, elementwise_step=False)
        wish = request(draw)
        plain, apart = ((), None), ("precision", "prefetch", "loaders")
        asked = {name: value for name, value in vars(wish).items() if value not in plain and name not in apart}
        lines.append(f"{seed}: {asked}, {there.memory_bytes:.9g} and {there.host_memory_bytes} bytes")
        try:
            lines += shown(search(profile, there, wish, clock=lambda: 0.0))
        except HocketError as error:
            lines.append(f"  {error}")
    check(Path(__file__).with_name("searches.txt"), "\n".join(lines) + "\n", update_golden)
