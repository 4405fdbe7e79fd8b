"""The partitioner beside the public PipeDream optimizer: time to plan, and both plans under the one cost model.

Run: python -m bench.bench_partition [--sync ring] [--variants]
Prints, for each public profile and cluster, our best wall time of a few runs, the reference's, their ratio, both
bottlenecks under section 2.4.1 and both configurations; then the synthetic NASNet-like graphs.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench import pipedream_reference as reference
from hocket.profile import synthetic
from hocket.strategies._partition import Partition, partition
from hocket.strategies._pipedream_cost import evaluate

MODELS = ("alexnet", "vgg16", "resnet18", "resnet50", "densenet121", "squeezenet1_0", "gnmt", "inception_v3")
OPTIONS: dict[str, dict[str, Any]] = {
    "acr1": {},
    "acr1_fewer": {},
    "acr1_straight": {"replicate": False},
    "acr1_mem16": {},
    "noact": {},
}


def best_of(runs: int, call: Callable[[], Partition]) -> tuple[float, Partition]:
    """Least wall time of several runs, and the result."""
    least, result = float("inf"), call()
    for _ in range(runs):
        start = time.perf_counter()
        result = call()
        least = min(least, time.perf_counter() - start)
    return least, result


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync", choices=("paper", "ring"), default="paper")
    parser.add_argument("--variants", action="store_true", help="every variant of the reference, not only acr1")
    parser.add_argument("--runs", type=int, default=7)
    chosen = parser.parse_args()
    start = time.perf_counter()
    partition(synthetic.chain(4), reference.CLUSTERS["A1x4"], 1)
    print(f"first call of this process (loads or compiles the loops): {time.perf_counter() - start:.2f} s")
    head = ("model", "cluster", "variant", "ours", "reference", "ratio", "ours", "reference", "ours", "reference")
    print("{:14}{:8}{:14}{:>10}{:>11}{:>9}{:>11}{:>11}  {:22}{}".format(*head))
    published = {(row.model, row.cluster, row.variant): row for row in reference.rows()}
    for model in MODELS:
        profile = reference.profile(model)
        size = profile.microbatch_sizes[0]
        for name in ("A4x4", "B2x8"):
            cluster = reference.CLUSTERS[name]
            for variant, options in OPTIONS.items():
                row = published.get((model, name, variant))
                if variant != "acr1" and (row is None or not chosen.variants):
                    continue
                wall_s, ours = best_of(
                    chosen.runs,
                    lambda p=profile, c=cluster, s=size, o=options: partition(p, c, s, sync=chosen.sync, **o),
                )
                columns = [
                    model,
                    name,
                    variant,
                    f"{wall_s * 1e3:.2f} ms",
                    "-",
                    "-",
                    f"{ours.bottleneck_s * 1e3:.3f} ms",
                    "-",
                ]
                config = "-"
                if row is not None:
                    stages = reference.placement(row, profile)
                    columns[4:6] = f"{row.planner_wall_s:.2f} s", f"{row.planner_wall_s / wall_s:.0f}x"
                    if stages is not None:
                        theirs = evaluate(profile, cluster, size, stages, sync=chosen.sync)
                        columns[7] = f"{theirs.bottleneck_s * 1e3:.3f} ms"
                        config = "-".join(str(len(devices)) for _, devices in stages)
                print("{:14}{:8}{:14}{:>10}{:>11}{:>9}{:>11}{:>11}  {:22}{}".format(*columns, ours.config, config))
    for count in (12, 18, 24):
        profile = synthetic.cells(count)
        for name in ("A4x4", "B2x8"):
            wall_s, ours = best_of(
                2, lambda p=profile, c=reference.CLUSTERS[name]: partition(p, c, 32, sync=chosen.sync)
            )
            print(
                f"{profile.name:18}{name:6}{len(profile.layers)} layers, {ours.cuts} cuts: {wall_s * 1e3:.0f} ms, "
                f"{ours.bottleneck_s * 1e3:.3f} ms, {ours.config}"
            )


if __name__ == "__main__":
    main()
