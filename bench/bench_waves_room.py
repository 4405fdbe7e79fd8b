"""Simulated throughput of two waves of data parallelism relative to one, over fast and slow networks.

    python bench/bench_waves_room.py

The model is VGG-16 (553 MB of weights) from the published profile, on V100s as in sections 4.1.1 and 4.1.2 of Wavelet:
in one server with NVLink of 25 GB/s, and in two servers with 25 Gb/s. The samples of a wave use half of a device. Data
parallelism trains on as many samples per iteration as two waves, and sums their gradients once.

"network" marks cases in which Hocket's first estimate has no room for a second wave, because its sums of gradients
would keep the network busy for too long.
"""

from dataclasses import replace

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.waves.room import in_waves, room, wave_of
from hocket.profiling.layer import Layer
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers import pipedream

VGG16 = "hocket/profiling/examples/vgg16.graph.txt"
NVLINK, ETHERNET = Level("nvlink", 4, 25e9, 5e-6), Level("ethernet", 2, 25e9 / 8, 2e-5, shared=True)
CLUSTERS = {"2 GPUs, NVLink": (1, 2), "8": (1, 8), "1 + 1, 25 Gb/s": (2, 1), "4 + 4": (2, 4), "8 + 8": (2, 8)}
SAMPLES = (16, 32, 64)
FORWARD_SHARE = 1 / 3


def cluster(servers: int, gpus: int) -> Cluster:
    """Servers with `gpus` GPUs each, and memory for two waves."""
    levels = (replace(NVLINK, width=gpus),) * (gpus > 1) + (replace(ETHERNET, width=servers),) * (servers > 1)
    return Cluster("dgx", levels, "v100-16gb", memory_bytes=64e9)


def half_used(profile: ModelProfile, samples: int) -> ModelProfile:
    """The same model with samples that use half of a device: four times as many samples take twice as long."""
    each = samples / profile.microbatch_sizes[0]

    def layer(one: Layer) -> Layer:
        seconds = (one.forward_s[0] + one.backward_s[0]) * each
        shares = {"forward_s": FORWARD_SHARE, "backward_s": 1 - FORWARD_SHARE}
        found = {name: (seconds * share, 2 * seconds * share) for name, share in shares.items()}
        for name in ("stash_bytes", "working_bytes", "backward_bytes", "fresh_bytes", "flops", "noise_s"):
            if column := getattr(one, name):
                found[name] = (column[0] * each, 4 * column[0] * each)
        return replace(one, **found)  # type: ignore[arg-type]

    tensors = tuple(
        replace(one, size_bytes=(one.size_bytes[0] * each, 4 * one.size_bytes[0] * each)) for one in profile.tensors
    )
    layers = tuple(layer(one) for one in profile.layers)
    return replace(profile, microbatch_sizes=(samples, 4 * samples), layers=layers, tensors=tensors)


def cell(profile: ModelProfile, where: Cluster, samples: int) -> str:
    """Throughput of two waves over one with as many samples, and the limit if it is the network."""
    stage = PlanStage(tuple(layer.name for layer in profile.layers), tuple(range(where.devices)))
    plan = Plan("data_parallel", profile.name, samples * where.devices, samples, (stage,), where)
    alone = predict_iteration(replace(plan, batch_size=2 * plan.batch_size), profile).iteration_s
    limit = room(wave_of(plan, profile)).limit
    gain = alone / predict_iteration(in_waves(plan, 2), profile).iteration_s
    return f"{gain:.2f}" + (", network" if limit == "network" else "")


def main() -> None:
    """Print the table."""
    vgg16 = pipedream.read(VGG16)
    print(f"| samples of a wave | {' | '.join(CLUSTERS)} |\n|---|{'---|' * len(CLUSTERS)}")
    for samples in SAMPLES:
        profile = half_used(vgg16, samples)
        print(f"| {samples} | {' | '.join(cell(profile, cluster(*sizes), samples) for sizes in CLUSTERS.values())} |")


if __name__ == "__main__":
    main()
