"""Simulated waves of model parallelism compared with other strategies: throughput, compute, memory and traffic.

    python -m bench.bench_waves [--samples 16]

The model is BERT-base (110 million weights, SQuAD's 384 tokens, float32 with Adam). The clusters have V100s as in
section 4.2 of Wavelet: 4 and 8 with NVLink of 25 GB/s, and 4 + 4 with 25 Gb/s Ethernet between them. All plans have the
same number of samples per iteration: `--samples` for each device, which is also the size of a wave.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from hocket.cost.analytic.transformer import Precision, analytic
from hocket.errors import HocketError
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict
from hocket.planning.search.make_plan import make_plan
from hocket.profiling.analytic.sizes import published
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.swapping.settings import Swapping
from hocket.strategies.base.balance import Balancer, runs
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.util.units import show_bytes

FLOAT32 = Precision("float32", weight_bytes=4, gradient_bytes=4, optimizer_bytes=8, step_bytes=28)
NVLINK, ETHERNET = Level("nvlink", 4, 25e9, 5e-6), Level("ethernet", 2, 25e9 / 8, 2e-5, shared=True)
CLUSTERS = {
    "4 V100, NVLink": Cluster("4", (NVLINK,), "v100-16gb"),
    "8 V100, NVLink": Cluster("8", (replace(NVLINK, width=8),), "v100-16gb"),
    "4 + 4 V100, 25 Gb/s": Cluster("4+4", (NVLINK, ETHERNET), "v100-16gb"),
}
BASE = {"layers": 12, "hidden": 768, "heads": 12, "feed_forward": 3072, "sequence": 384, "tied": False}


def profile() -> ModelProfile:
    """BERT-base without a tied output layer, because question answering has none."""
    model = replace(published("bert-large"), **BASE)
    return analytic(model, device_type("v100-16gb"), precision=FLOAT32, microbatch_sizes=(1, 2, 4, 8, 16, 32))


def plans(found: ModelProfile, cluster: Cluster, samples: int) -> Iterator[tuple[str, Plan]]:
    """Yield every plan with its name; partitions are balanced by predicted cost (section 4.2 divides evenly)."""
    count = cluster.devices
    space = SearchSpace(found, cluster, count * samples, (samples,))
    parts = list(runs(Balancer(found, samples).cuts(count)[count - 1]))
    everything = tuple(range(count))

    def plan(strategy: str, waves: int, shard: str = "none", size: int = samples) -> Plan:
        devices = [tuple((r + s) % count for r in range(waves)) for s in range(count)]
        stages = tuple(replace(cut(space, own, at), shard=shard) for own, at in zip(parts, devices, strict=True))
        return make_plan(space, strategy, Candidate(stages, size, count * samples // size))

    yield "model_parallel", plan("model_parallel", 1)
    yield "gpipe", plan("gpipe", 1)
    yield "gpipe, microbatches of a quarter", plan("gpipe", 1, size=samples // 4)
    yield "flush (1F1B)", plan("flush", 1)
    yield "flush, microbatches of a quarter", plan("flush", 1, size=samples // 4)
    if count > 2:
        yield f"waves, {count // 2}", plan("waves", count // 2)
    whole = plan("waves", count)
    yield f"waves, {count}", whole
    yield f"waves, {count}, shard: full", plan("waves", count, "full")
    budget = 0.5 * max(predict(whole, found)[1].peak_memory_bytes.values())
    halved = replace(whole, swap=Swapping("next_use", budget, prefetch=2))
    yield f"waves, {count}, swapped into half", LoadedPlan(halved, found).completed
    alone = cut(space, range(len(found.layers)), everything)
    yield "data_parallel", make_plan(space, "data_parallel", Candidate((alone,), samples, count))
    units = tuple(replace(cut(space, own, everything), shard="full") for own in parts)
    yield "fully_sharded", make_plan(space, "fully_sharded", Candidate(units, samples, count))


def main() -> None:
    """Print a table for each cluster."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16, help="samples of a wave, a multiple of 4")
    samples = parser.parse_args().samples
    found = profile()
    for name, cluster in CLUSTERS.items():
        print(f"\n{name}: {cluster.devices * samples} samples an iteration")
        print("| plan | samples/s | of model_parallel | devices compute | peak memory | sent | swapped |")
        print("|---|---|---|---|---|---|---|")
        first = 0.0
        for label, plan in plans(found, cluster, samples):
            try:
                _, one = predict(plan, found)
            except HocketError as error:
                print(f"| {label} | {error.found} |")
                continue
            first = first or one.samples_per_s
            use = sorted(one.utilization.values())
            print(
                f"| {label} | {one.samples_per_s:.0f} | {one.samples_per_s / first:.2f} | {use[0]:.0%} to {use[-1]:.0%} | "
                f"{show_bytes(max(one.peak_memory_bytes.values()))} | {show_bytes(sum(one.sent_bytes.values()))} | "
                f"{show_bytes(one.swapped_bytes) if one.swapped_bytes else '–'} |"
            )


if __name__ == "__main__":
    main()
