"""PipeDream partitioner compared with the public PipeDream optimizer: planning times and predicted costs of the plans.

    python -m bench.bench_partition [--sync ring] [--variants] [--plain] [--table]

Each row is a public profile and a cluster. It has our least CPU time of a few runs, the reference's time, their ratio,
both bottlenecks under section 2.4.1, and both configurations. Our runs begin without any cached state except the
compiled loops. A "!" marks a reference plan that does not fit in its 16 GB. Then follow the synthetic NASNet-like
graphs.

With --table, the configurations of Table 2.2 are compared with the results for these profiles, under both readings of
the all-reduce.
"""

import argparse
import math
import sys
import time
from dataclasses import replace

from bench import pipedream_reference as reference
from hocket.hardware.cluster import Cluster
from hocket.profiling.analytic import synthetic
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition import buffers, memory, topology
from hocket.strategies.pipedream_partition.cost import Sync, evaluate
from hocket.strategies.pipedream_partition.cuts import cuts
from hocket.strategies.pipedream_partition.level import PartitionOptions
from hocket.strategies.pipedream_partition.memory import MemoryRule, pipeline_bytes
from hocket.strategies.pipedream_partition.partition import Partition, partition

MODELS = ("alexnet", "vgg16", "resnet18", "resnet50", "densenet121", "squeezenet1_0", "gnmt", "inception_v3")
OPTIONS = {
    "acr1": PartitionOptions(),
    "acr1_fewer": PartitionOptions(),
    "acr1_straight": PartitionOptions(replicate=False),
    "acr1_mem16": PartitionOptions(MemoryRule((16e9,) * 16)),
    "noact": PartitionOptions(),
}


def best_of(
    runs: int, profile: ModelProfile, cluster: Cluster, size: int, options: PartitionOptions
) -> tuple[float, Partition]:
    """Least CPU time of several runs; all caches are cleared before each run."""
    least, result = float("inf"), partition(profile, cluster, size, options)
    for _ in range(runs):
        for kept in (topology.topology, topology._runs, memory._flights):
            kept.cache_clear()
        fresh = replace(profile)
        start = time.process_time()
        result = partition(fresh, cluster, size, options)
        least = min(least, time.process_time() - start)
    return least, result


SYNCS: tuple[Sync, ...] = ("paper", "ring")
# Table 2.2: model, cluster (servers x devices), configuration, and batch size per device of section 2.5.1.
TABLE = (
    ("vgg16", "A4x4", "15-1", 64),
    ("vgg16", "B2x8", "15-1", 64),
    ("alexnet", "A4x4", "15-1", 256),
    ("alexnet", "B2x8", "15-1", 256),
    ("resnet50", "A4x4", "16", 128),
    ("resnet50", "B2x8", "16", 128),
    ("gnmt", "A1x4", "straight", 64),
    ("gnmt", "A3x4", "straight", 64),
    ("gnmt", "B2x8", "16", 64),
)


def table() -> None:
    """Print Table 2.2's configurations and ours, with the cost by the formula and by the text of section 2.4.1."""
    print(
        "{:9}{:6}{:>6} {:6}{:>20}{:>10}  {:>10}  {}".format(
            "model", "on", "batch", "sync", "ours", "", "16", "table 2.2"
        )
    )
    for model, name, theirs, paper_batch in TABLE:
        profile, cluster = reference.profile(model), reference.CLUSTERS[name]
        for size in sorted({profile.microbatch_sizes[0], paper_batch}):
            for sync in SYNCS:
                ours = partition(profile, cluster, size, PartitionOptions(sync=sync))
                everything = (tuple(range(len(profile.layers))), tuple(range(cluster.devices)))
                plain_s = evaluate(profile, cluster, size, [everything], sync=sync).bottleneck_s
                print(
                    f"{model:9}{name:6}{size:>6} {sync:6}{ours.config:>20}{ours.bottleneck_s * 1e3:>7.2f} ms"
                    f"  {plain_s * 1e3:>7.2f} ms  {theirs}: {_theirs(profile, cluster, size, sync, theirs)}"
                )


def _theirs(profile: ModelProfile, cluster: Cluster, size: int, sync: Sync, config: str) -> str:
    """Cost of the best pipeline with a given configuration, and its slowest terms."""
    if config == "straight":
        best = partition(profile, cluster, size, PartitionOptions(sync=sync, replicate=False)).costs
    else:
        places = cuts(profile, size)
        last, devices = len(places.masks) - 1, cluster.devices
        middles = range(1, last) if config == "15-1" else [last]
        candidates = [
            [(places.layers(0, k), tuple(range(devices - 1))), (places.layers(k, last), (devices - 1,))]
            if k < last
            else [(places.layers(0, last), tuple(range(devices)))]
            for k in middles
        ]
        best = min((evaluate(profile, cluster, size, c, sync=sync) for c in candidates), key=lambda c: c.bottleneck_s)
    compute_s = max(stage.compute_s for stage in best.stages)
    reduce_s = max(stage.all_reduce_s for stage in best.stages)
    border_s = max(stage.border_s for stage in best.stages)
    terms = f"compute {compute_s * 1e3:.2f}, all-reduce {reduce_s * 1e3:.2f}, border {border_s * 1e3:.2f}"
    return f"{best.bottleneck_s * 1e3:.2f} ms ({terms})"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync", choices=("paper", "ring"), default="paper")
    parser.add_argument("--variants", action="store_true", help="compare all variants of the reference, not only acr1")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--plain", action="store_true", help="use loops that are not compiled, as in a new process")
    parser.add_argument("--table", action="store_true", help="print only Table 2.2")
    arguments = parser.parse_args()
    if arguments.table:
        table()
        return
    buffers.PLAIN_WORK = sys.maxsize if arguments.plain else 0  # 0: use the compiled loops from the first call on
    start = time.perf_counter()
    partition(synthetic.chain(4), reference.CLUSTERS["A1x4"], 1, PartitionOptions(replicate=False))
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
                if variant != "acr1" and (row is None or not arguments.variants):
                    continue
                process_s, ours = best_of(arguments.runs, profile, cluster, size, replace(options, sync=arguments.sync))
                columns = [
                    model,
                    name,
                    variant,
                    f"{process_s * 1e3:.2f} ms",
                    "-",
                    "-",
                    f"{ours.bottleneck_s * 1e3:.3f} ms",
                    "-",
                ]
                config = "-"
                if row is not None:
                    stages = reference.placement(row, profile)
                    columns[4:6] = f"{row.planner_wall_s:.2f} s", f"{row.planner_wall_s / process_s:.0f}x"
                    if stages is not None:
                        theirs = evaluate(profile, cluster, size, stages, sync=arguments.sync)
                        columns[7] = f"{theirs.bottleneck_s * 1e3:.3f} ms"
                        config = "-".join(str(len(devices)) for _, devices in stages)
                        limit = max(options.rule.capacity_bytes, default=math.inf)
                        config += " !" if max(pipeline_bytes(profile, size, stages)) > limit else ""
                print("{:14}{:8}{:14}{:>10}{:>11}{:>9}{:>11}{:>11}  {:22}{}".format(*columns, ours.config, config))
    for count in (12, 18, 24):
        profile = synthetic.cells(count)
        for name in ("A4x4", "B2x8"):
            process_s, ours = best_of(2, profile, reference.CLUSTERS[name], 32, PartitionOptions(sync=arguments.sync))
            print(
                f"{profile.name:18}{name:6}{len(profile.layers)} layers, {ours.cuts} cuts: {process_s * 1e3:.0f} ms, "
                f"{ours.bottleneck_s * 1e3:.3f} ms, {ours.config}"
            )


if __name__ == "__main__":
    main()
