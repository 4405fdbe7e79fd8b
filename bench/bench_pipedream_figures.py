"""PipeDream's microbenchmarks predicted from its public profiles: dissertation figures 2.15, 2.16 and 2.17.

    python -m bench.bench_pipedream_figures
    python -m bench.bench_pipedream_figures --only 2.16

The devices are one server of Cluster-A: four V100s of 16 GB with 12 GB/s of PCIe each. Minibatch sizes are those of
section 2.5.1; the profiles' figures are scaled to them in proportion. GNMT-16 has no public profile. Each figure's
heading has the statement of the source's text.
"""

import argparse
from collections.abc import Callable, Iterator

from bench import pipedream_reference as reference
from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster
from hocket.planning.predict.predict import predict_choice
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.strategies.pipedream_partition.cost import evaluate, journeys, owners
from hocket.strategies.pipedream_partition.cuts import cuts as cuts_of
from hocket.strategies.pipedream_partition.level import PartitionOptions
from hocket.strategies.pipedream_partition.memory import MemoryRule
from hocket.strategies.pipedream_partition.partition import partition

A = reference.CLUSTERS["A1x4"]
GB = 1e9
SAMPLES = {"gnmt": 64, "vgg16": 64, "resnet50": 128, "alexnet": 256}  # samples per device, section 2.5.1
Stages = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # (layers, devices) of each stage, from input to output


def everywhere(profile: ModelProfile, cluster: Cluster) -> Stages:
    """Data parallelism: one stage on every device."""
    return ((tuple(range(len(profile.layers))), tuple(range(cluster.devices))),)


def run(profile: ModelProfile, size: int, stages: Stages, strategy: str, **options: int) -> tuple[float, list[float]]:
    """Samples per second, and peak bytes of the first device of every stage.

    Arguments:
        size: samples of a minibatch; with data parallelism, per device.
    """
    batch = size * len(stages[0][1]) if strategy == "data_parallel" else size
    space = SearchSpace(profile, A, batch, (size,))
    stage_cuts = tuple(cut(space, layers, devices) for layers, devices in stages)
    found = predict_choice(space, strategy, Candidate(stage_cuts, size, batch // size, dict(options)))
    return found.samples_per_s, [found.peak_memory_bytes[devices[0]] for _, devices in stages]


def straight(profile: ModelProfile, size: int, memory_bytes: float | None = None) -> Stages:
    """Four stages from the partitioner, without replicas.

    Arguments:
        memory_bytes: memory of a device; None for no limit.

    Raises:
        RefusedError: no four stages fit into the memory.
    """
    rule = MemoryRule(() if memory_bytes is None else (memory_bytes,) * A.devices)
    found = partition(profile, A, size, PartitionOptions(rule, replicate=False, exact_devices=True))
    return tuple((tuple(layers), tuple(devices)) for layers, devices in found.stages)


def gigabytes(sizes: list[float]) -> str:
    """Sizes in GB, separated by spaces."""
    return " ".join(f"{size / GB:5.2f}" for size in sizes)


def memory() -> None:
    """Print GB of each stage and of data parallelism (figure 2.15)."""
    print(
        "\nFigure 2.15: GB a device, four straight stages; published: the fullest stage is on par with data parallelism"
    )
    for model in ("vgg16", "resnet50", "gnmt"):
        profile, size = reference.profile(model), SAMPLES[model]
        _, (plain,) = run(profile, size, everywhere(profile, A), "data_parallel")
        print(f"  {model}, {size} samples: data parallelism {gigabytes([plain])}")
        for name, limit in (("fastest", None), ("fastest within data parallelism's memory", plain)):
            try:
                rate, sizes = run(profile, size, straight(profile, size, limit), "pipedream")
            except RefusedError:
                print(f"    {name}: none")
                continue
            times = max(sizes) / plain
            print(f"    {name}: stages {gigabytes(sizes)}, fullest {times:.2f} of it; {rate:.0f} samples/s")


def sent_bytes(profile: ModelProfile, size: int, stages: Stages) -> float:
    """Bytes that all devices send for one sample.

    They are activations, their gradients, and one ring all-reduce for each round of replicas.
    """
    sizes, total = profile.tensor_bytes(size), 0.0
    for index, source, last in journeys(profile, owners(stages, len(profile.layers))):
        total += float(sizes[index]) * (2 if profile.tensors[index].gradient else 1) * (last - source)
    for layers, devices in stages:
        # A ring sends 2 (r - 1) times the weights in total, once in r minibatches.
        total += 2 * (len(devices) - 1) * profile.weights_bytes(sorted(layers)) / len(devices)
    return total / size


def two_stages(profile: ModelProfile, size: int) -> Iterator[Stages]:
    """Yield all partitions into two stages on four devices."""
    places = cuts_of(profile, size)
    last = len(places.masks) - 1
    for k in range(1, last):
        for first in (1, 2, 3):
            yield (
                (tuple(places.layers(0, k)), tuple(range(first))),
                (tuple(places.layers(k, last)), tuple(range(first, 4))),
            )


def best_other(profile: ModelProfile, size: int) -> Stages:
    """Fastest configuration other than data parallelism.

    Candidates are two stages with replicas, four stages without replicas, and the partitioner's plan if it has several
    stages.
    """
    found = partition(profile, A, size, PartitionOptions(sync="ring", exact_devices=True, data_parallel_within=0.0))
    known = (straight(profile, size), tuple((tuple(layers), tuple(devices)) for layers, devices in found.stages))
    candidates = [*(one for one in known if len(one) > 1), *two_stages(profile, size)]
    return min(candidates, key=lambda stages: evaluate(profile, A, size, stages, sync="ring").bottleneck_s)


def communication() -> None:
    """Print bytes per sample of data parallelism and of other configurations (figure 2.16)."""
    print(
        "\nFigure 2.16: MB sent for a sample by four devices; published, best other by data parallelism: far less for"
    )
    print("  GNMT-8, GNMT-16 and VGG-16, more for ResNet-50")
    for model in ("gnmt", "vgg16", "resnet50", "alexnet"):
        profile, size = reference.profile(model), SAMPLES[model]
        plain = sent_bytes(profile, size, everywhere(profile, A))
        cells = []
        for name, stages in (("fastest other", best_other(profile, size)), ("straight", straight(profile, size))):
            config = "-".join(str(len(devices)) for _, devices in stages)
            sent = sent_bytes(profile, size, stages)
            cells.append(f"{name} {config} {sent / 1e6:.2f} ({sent / plain:.2f})")
        print(f"  {model}, {size} samples: data parallelism {plain / 1e6:.2f}, {', '.join(cells)}")


def in_flight() -> None:
    """Print throughput and memory of GNMT-8 by the number of inputs in flight (figure 2.17)."""
    print(
        "\nFigure 2.17, GNMT-8, four straight stages: samples/s and GB of each stage by inputs in flight; published: memory"
    )
    print("  grows from 2 to 7; 4 (NOAM) and 7 have the highest throughput; without pipelining memory differs by stage")
    profile, size = reference.profile("gnmt"), SAMPLES["gnmt"]
    stages = straight(profile, size)
    for count in (1, 2, 3, 4):
        rate, sizes = run(profile, size, stages, "pipedream", in_flight=count)
        print(f"  {count}: {rate:6.1f} samples/s, {gigabytes(sizes)}")
    print("  7: left out; the strategy admits NOAM inputs at most")


FIGURES: dict[str, Callable[[], None]] = {"2.15": memory, "2.16": communication, "2.17": in_flight}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=tuple(FIGURES), help="print only this figure")
    arguments = parser.parse_args()
    if not (reference.DATA / "profiles").is_dir():
        print(f"Left out: the public profiles are not in {reference.DATA / 'profiles'}.")
        return
    for number, figure in FIGURES.items():
        if arguments.only in (None, number):
            figure()


if __name__ == "__main__":
    main()
