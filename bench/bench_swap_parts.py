"""Simulated effect of each of Harmony's four optimizations (HotOS 2021, section 3), and of larger forward packs.

    python -m bench.bench_swap_parts

The model is GPT-2 XL from its sizes: 1.5 billion weights, float32 and Adam, 25 GB of state. There are four V100s; a job
may use 10 GiB of each. They share a host link of 11.5 GiB/s in each direction. Nothing is measured, and it takes two
minutes.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hocket.cost.analytic.transformer import Precision, analytic
from hocket.errors import RefusedError
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.profiling.analytic.sizes import published
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.swapping.settings import Swapping
from hocket.strategies.swapping.costs import GIB

FULL = Precision(dtype="float32", weight_bytes=4, gradient_bytes=4, optimizer_bytes=8, step_bytes=28)
DEVICES, BATCH, ROOM, PACKS = 4, 32, 10 * GIB, 16
OFF: list[tuple[str, dict[str, Any], int]] = [
    ("all four", {}, PACKS),
    ("no input-batch grouping", {"grouping": False}, PACKS),
    ("no just-in-time updates", {"just_in_time": False}, PACKS),
    ("no peer transfers", {"peer": False}, PACKS),
    ("no packs: a layer each", {}, 0),
    ("none of them", {"grouping": False, "just_in_time": False, "peer": False}, 0),
]


def of(
    profile: ModelProfile, cluster: Cluster, batch: int, packs: int, options: dict[str, Any], swap: Swapping
) -> Plan:
    """Plan with packs of about equally many layers; in pipeline mode the packs go round the devices.

    Arguments:
        packs: number of packs; 0 for one layer each.
    """
    count, layers = packs or len(profile.layers), len(profile.layers)
    cuts = [round(k * layers / count) for k in range(count + 1)]
    turn, everywhere = options["mode"] == "pipeline", tuple(range(cluster.devices))
    stages = tuple(
        PlanStage(
            tuple(layer.name for layer in profile.layers[a:e]),
            (k % cluster.devices,) if turn else everywhere,
            recompute=True,
        )
        for k, (a, e) in enumerate(pairwise(cuts))
    )
    return Plan("harmony", profile.name, batch, 1, stages, cluster, options=options, swap=swap)


def parts() -> Iterator[str]:
    """Yield table rows with one optimization off in turn."""
    model = replace(published("gpt2-xl"), tied=False)
    kind = catalog.device_type("v100-16gb")
    profile = analytic(model, kind, precision=FULL, microbatch_sizes=(1,))
    levels = (Level("server", DEVICES, 8.2 * GIB, 1e-5, shared=False),)
    cluster = Cluster("server", levels, kind.name, memory_bytes=ROOM, host_link=Link(11.5 * GIB, 1e-5))
    for mode in ("data", "pipeline"):
        for name, options, packs in OFF:
            if mode == "data" and name == "no peer transfers":
                continue
            cells = []
            for policy in ("task", "next_use"):
                plan = of(profile, cluster, BATCH, packs, {"mode": mode} | options, Swapping(policy, ROOM))
                try:
                    _, found = predict(plan, profile)
                except RefusedError as error:
                    cells += [f"refused: {error.found}", ""]
                    continue
                cells += [f"{found.iteration_s:.2f}", f"{found.swapped_bytes / 1e9:.0f}"]
            yield f"| {mode} | {name} | {' | '.join(cells)} |"


def forward() -> Iterator[str]:
    """Yield table rows of forward packs that span one, two and four backward packs.

    Each row has one number of microbatches, on one device.
    """
    profile = chain(
        8, forward_s=0.005, backward_s=0.01, weights_bytes=20e6, activation_bytes=20e6, stash_bytes=8e7,
        device_type="v100-16gb", microbatch_sizes=(1,),
    )  # fmt: skip
    cluster = Cluster("one", (Level("server", 1, 10e9),), "v100-16gb", host_link=Link(10e9, 1e-5))
    for batch in (4, 16, 64):
        for policy in ("task", "next_use"):
            cells = []
            for width in (1, 2, 4):
                options: dict[str, Any] = {"mode": "data"} | ({"forward": [width] * (8 // width)} if width > 1 else {})
                _, found = predict(of(profile, cluster, batch, 8, options, Swapping(policy, 3.5e8)), profile)
                cells.append(f"{found.iteration_s:.3f}, {found.swapped_bytes / 1e9:.2f}")
            yield f"| {batch} | {policy} | {' | '.join(cells)} |"


def main() -> None:
    """Print both tables."""
    print("| mode | without | task: seconds | GB swapped | next_use: seconds | GB swapped |\n|---|---|---|---|---|---|")
    for row in parts():
        print(row, flush=True)
    print("\n| microbatches | policy | 8 forward packs | 4 | 2 |\n|---|---|---|---|---|")
    for row in forward():
        print(row, flush=True)


if __name__ == "__main__":
    main()
