"""Simulated plans that swap, on one server with a shared host link: Figure 2 of Harmony (HotOS 2021).

    python -m bench.bench_swaps

The model is a chain of eight equal layers. Each has 100 MB of weights, 100 MB of gradients and 100 MB of momentum, and
takes 150 ms per microbatch. There are four microbatches per device, a link of 1 GB/s, and devices of 650 MB. Nothing is
measured, and it takes seconds.
"""

from typing import Any

from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.swapping.settings import Swapping

LAYERS, MICROBATCHES, BUDGET_BYTES = 8, 4, 6.5e8
APART: dict[str, Any] = {"grouping": False, "just_in_time": False}
SCHEMES: list[tuple[str, dict[str, Any], Swapping]] = [
    ("data parallel, lru", APART, Swapping("lru", BUDGET_BYTES)),
    ("data parallel, next_use", APART, Swapping("next_use", BUDGET_BYTES)),
    ("Harmony-DP, task", {}, Swapping("task", BUDGET_BYTES)),
    ("Harmony-DP, next_use", {}, Swapping("next_use", BUDGET_BYTES)),
    ("  one ahead", {}, Swapping("next_use", BUDGET_BYTES, prefetch=1)),
    ("  two ahead", {}, Swapping("next_use", BUDGET_BYTES, prefetch=2)),
    ("pipeline, lru", APART | {"mode": "pipeline"}, Swapping("lru", BUDGET_BYTES)),
    ("Harmony-PP, task", {"mode": "pipeline"}, Swapping("task", BUDGET_BYTES)),
    ("Harmony-PP, next_use", {"mode": "pipeline"}, Swapping("next_use", BUDGET_BYTES)),
    ("  one ahead", {"mode": "pipeline"}, Swapping("next_use", BUDGET_BYTES, prefetch=1)),
    ("  two ahead", {"mode": "pipeline"}, Swapping("next_use", BUDGET_BYTES, prefetch=2)),
]


def main() -> None:
    """Print samples per second per device and swapped GB, by the number of devices; then Figure 2 (c)."""
    profile = chain(
        LAYERS, forward_s=0.05, backward_s=0.1, weights_bytes=1e8, activation_bytes=1e6, stash_bytes=4e6,
        device_type="cpu-core", microbatch_sizes=(1,),
    )  # fmt: skip
    print("| samples/s of each device, GB swapped | 1 | 2 | 4 |\n|---|---|---|---|")
    for name, options, swap in SCHEMES:
        cells = []
        for devices in (1, 2, 4):
            everywhere, pipeline = tuple(range(devices)), options.get("mode") == "pipeline"
            turn = [k * devices // LAYERS if options.get("grouping") is False else k % devices for k in range(LAYERS)]
            places = [(turn[k],) if pipeline else everywhere for k in range(LAYERS)]
            stages = tuple(PlanStage((layer.name,), where) for layer, where in zip(profile.layers, places, strict=True))
            cluster = Cluster("server", (Level("server", devices, 1e9),), "cpu-core", host_link=Link(1e9, 1e-5))
            plan = Plan("harmony", "chain", MICROBATCHES * devices, 1, stages, cluster, options=options, swap=swap)
            _, found = predict(plan, profile)
            cells.append(f"{found.samples_per_s / devices:.3f}, {found.swapped_bytes / 1e9:.1f}")
        print(f"| {name} | {' | '.join(cells)} |")

    large = chain(
        LAYERS, forward_s=0.05, backward_s=0.1, weights_bytes=1e8, activation_bytes=1e6, stash_bytes=1e8,
        device_type="cpu-core", microbatch_sizes=(1,),
    )  # fmt: skip
    stages = tuple(PlanStage(tuple(layer.name for layer in large.layers[2 * k : 2 * k + 2]), (k,)) for k in range(4))
    cluster = Cluster("server", (Level("server", 4, 1e9),), "cpu-core", host_link=Link(1e9, 1e-5))
    plan = Plan("flush", "chain", 16, 1, stages, cluster, swap=Swapping("lru", 1.1e9))
    _, found = predict(plan, large)
    assert found.swapped is not None
    swapped = ", ".join(f"{size / 1e9:.1f}" for size in found.swapped.device_bytes.values())
    print(f"\n1F1B of four stages, stashes of 200 MB, lru in 1.1 GB: GB swapped by device {swapped}")


if __name__ == "__main__":
    main()
