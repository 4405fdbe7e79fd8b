"""Parallel layouts of drawn sizes on drawn clusters, equal to those that are kept in layouts.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

import pytest

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.mesh.plan_model import SizedSearch, search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from tests.kept import check

TASKS = 12
ROWS = 6


def sizes(draw: random.Random) -> Transformer:
    """A small transformer of the GPT, Llama or BERT kind."""
    heads = draw.choice((8, 16))
    gated, two_kinds = draw.random() < 0.4, draw.random() < 0.3
    return Transformer(
        "drawn",
        layers=draw.choice((4, 8, 12)),
        hidden=heads * draw.choice((64, 128)),
        heads=heads,
        vocabulary=draw.choice((30_522, 50_257, 32_000)),
        sequence=draw.choice((512, 1024, 2048)),
        kv_heads=draw.choice((0, 4)) if gated else 0,
        feed_forward=draw.choice((0, 3072)),
        gated=gated,
        biases=not gated,
        learned_positions=not gated,
        dropout=not gated,
        tied=draw.random() < 0.5,
        causal=not two_kinds,
        fused_attention=draw.random() < 0.5,
        token_types=2 if two_kinds else 0,
    )


def cluster(draw: random.Random) -> Cluster:
    """One or two levels of one or two kinds of devices, some short of memory."""
    inner, outer = draw.choice(((4, 1), (4, 2), (2, 4), (8, 1), (3, 2)))
    levels = [Level("server", inner, draw.uniform(2e10, 3e11), 5e-6, shared=False)]
    if outer > 1:
        levels.append(Level("network", outer, draw.uniform(1e9, 2.5e10), 2e-5))
    memory = draw.choice((None, draw.uniform(1e9, 1e10)))
    return Cluster("drawn", tuple(levels), draw.choice(("a100-80gb", "v100-32gb")), memory_bytes=memory)


def shown(found: SizedSearch) -> str:
    """The best layouts, and the best one's plan."""
    assert found.meshes.simulated <= found.meshes.considered
    all_of_them = found.meshes
    head = f"{all_of_them.simulated} of {all_of_them.considered} as {len(all_of_them.found)}, {all_of_them.too_large} too large"
    head += f"; nearest {all_of_them.nearest}; quicker {all_of_them.quicker}; behind {all_of_them.behind}"
    lines = [
        f"{head}; {found.buckets_text}",
        f"  {found.flops_per_s(found.best):.9g} flops/s, {found.share_of_peak(found.best):.9g}",
    ]
    for one in found.candidates[:ROWS]:
        now = one.predicted
        peaks = [f"{size:.9g}" for _, size in sorted(now.peak_memory_bytes.items())]
        lines.append(f"  {one.mesh}: {now.iteration_s:.9g} s, bubble {now.bubble_fraction:.9g}, {peaks}")
    plan = found.plan(found.best)
    lines += [f"  {stage}" for stage in plan.stages]
    return "\n".join(lines)


@pytest.mark.slow
def test_layouts(update_golden: bool) -> None:
    """Seconds, bubble and memory of the fastest layouts; what does not fit is refused with the nearest miss."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        model, there = sizes(draw), cluster(draw)
        request = PlanRequest(
            draw.choice((8, 16, 48)),
            tensors=draw.choice(((), (1,), (2,))),
            recomputes=draw.choice(((), ("none",), ("full",))),
            shards=draw.choice(((), ("none",), ("optimizer",))),
            buckets=draw.choice(("auto", "default")),
        )
        try:
            text = shown(search_sizes(model, there, request))
        except (InputError, RefusedError) as error:
            text = f"refused: {error}"
        lines.append(f"{seed}: {text}")
    check(Path(__file__).with_name("layouts.txt"), "\n".join(lines) + "\n", update_golden)
