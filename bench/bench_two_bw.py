"""PipeDream-2BW's study predicted without devices: dissertation figures 3.6 to 3.12, on AWS p3.16xlarge servers.

    python bench/bench_two_bw.py            # all figures
    python bench/bench_two_bw.py --only 3.9

The paper names models by their number of parameters and prints no sizes; the sizes below have that many parameters. A
server has eight V100s of 16 GB with NVLink; servers are joined by 25 Gbit/s. Unless a figure says otherwise, each
system uses its fastest microbatch size, a power of two that fits in 16 GB. Blocks are recomputed, and numbers have 16
bits. `hocket.cost.analytic.transformer` predicts times and bytes. Each row has the statement of the source's text.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from hocket.cost.analytic.transformer import BlockExecution, analytic
from hocket.errors import RefusedError
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace
from hocket.planning.mesh.search.simulated import simulated
from hocket.planning.predict.predict import predict_choice
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut

V100 = catalog.device_type("v100-16gb")
GB = 1e9
SIZES = (1, 2, 4, 8, 16, 32, 64)


def gpt(layers: int, hidden: int, heads: int) -> Transformer:
    """GPT with 512 tokens per sample and a vocabulary of 51,200."""
    return Transformer(f"gpt {layers} x {hidden}", layers, hidden, heads, 51200, 512)


def bert(layers: int, hidden: int, heads: int) -> Transformer:
    """BERT with 512 tokens per sample and a vocabulary of 30,522.

    Attention is bidirectional, and the output layer has a square matrix.
    """
    return Transformer(
        f"bert {layers} x {hidden}", layers, hidden, heads, 30522, 512, causal=False, token_types=2, head_transform=True
    )  # fmt: skip


GPTS = {"0.8B": gpt(16, 1920, 24), "1.3B": gpt(24, 2048, 32), "2.2B": gpt(48, 1920, 24), "3.8B": gpt(48, 2560, 32)}
BERTS = {"2.2B": bert(48, 1920, 24), "3.8B": bert(48, 2560, 32)}


def servers(devices: int) -> Cluster:
    """Cluster of servers with eight GPUs."""
    inside = Level("server", min(8, devices), 30e9, 0.0, False)
    outside = (Level("cluster", devices // 8, 25e9 / 8, 20e-6),) if devices > 8 else ()
    return Cluster("p3.16xlarge", (inside, *outside), "v100-16gb")


@dataclass(frozen=True)
class Found:
    """Prediction of one configuration.

    Attributes:
        peak_bytes: peak memory of the fullest device.
        microbatch: samples of a microbatch.
    """

    samples_per_s: float
    peak_bytes: float
    microbatch: int

    @property
    def fits(self) -> bool:
        """True if the peak fits in the memory of a device."""
        return self.peak_bytes <= V100.memory_bytes


@cache
def profile_of(model: Transformer, recompute: bool) -> ModelProfile:
    """Analytic profile of the model's layers on a V100."""
    return analytic(model, V100, BlockExecution(recompute="full" if recompute else "none"), microbatch_sizes=SIZES)


def run(
    model: Transformer, strategy: str, devices: int, depth: int, batch: int, microbatch: int, recompute: bool = True
) -> Found | None:
    """Predict one configuration.

    Stages have about equal numbers of blocks. A pipeline is inside one server, and replicas of a stage are in different
    servers.

    Returns:
        The prediction; None if the batch is not divisible, or the strategy refuses.
    """
    width = devices // depth
    if batch % (width * microbatch):
        return None
    profile, cluster = profile_of(model, recompute), servers(devices)
    count = len(profile.layers)
    ends = [0, *(1 + round(model.layers * s / depth) for s in range(1, depth)), count]
    space = SearchSpace(profile, cluster, batch, (microbatch,))
    stages: tuple[StageCut, ...] = tuple(
        cut(space, range(ends[s], ends[s + 1]), tuple(s + depth * k for k in range(width))) for s in range(depth)
    )
    if depth == 1:
        stages = (cut(space, range(count), tuple(range(devices))),)
    try:
        found = predict_choice(space, strategy, Candidate(stages, microbatch, batch // microbatch))
    except RefusedError:
        return None
    return Found(batch / found.iteration_s, max(found.peak_memory_bytes.values()), microbatch)


def best(found: Iterable[Found | None]) -> Found | None:
    """Fastest configuration that fits in memory; None if there is none."""
    return max((one for one in found if one is not None and one.fits), key=lambda one: one.samples_per_s, default=None)


def tensor(model: Transformer, devices: int, batch: int, width: int) -> Found | None:
    """Predict tensor parallelism over `width` devices, with data parallelism over the groups."""

    def source(width: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False) -> ModelProfile:
        return analytic(model, V100, BlockExecution(width, recompute, sequence_parallel), microbatch_sizes=sizes)

    layout_space = LayoutSpace.of(source, servers(devices), LayoutFamily(width, "full", SIZES, False, shards=("none",)))
    meshes = [mesh for mesh in layout_space.meshes(batch) if mesh.depth == 1]

    def one(mesh: ParallelLayout) -> Found:
        found = simulated(layout_space, mesh)
        return Found(batch / found.iteration_s, found.bytes, mesh.samples)

    return best(map(one, meshes))


def throughputs(title: str, model: Transformer, devices: int, depth: int, batches: tuple[int, ...]) -> None:
    """Print samples per second of five systems (figures 3.6 and 3.10)."""
    print(f"\n{title}: samples/s (microbatch), 2BW against the others")
    for batch in batches:
        rows = {
            "tensor": tensor(model, devices, batch, depth),
            "inter-layer": best(run(model, "model_parallel", devices, depth, batch, b) for b in SIZES),
            "GPipe": best(run(model, "gpipe", devices, depth, batch, b) for b in SIZES),
            "Flush": best(run(model, "flush", devices, depth, batch, b) for b in SIZES),
            "2BW": best(run(model, "two_bw", devices, depth, batch, b) for b in SIZES),
        }
        cells = [
            f"{name} out of memory" if found is None else f"{name} {found.samples_per_s:.1f} ({found.microbatch})"
            for name, found in rows.items()
        ]
        print(f"  batch {batch:5}: {', '.join(cells)}")
        for name, others in (("2BW", ("tensor", "inter-layer", "GPipe", "Flush")), ("Flush", ("inter-layer", "GPipe"))):
            ours = rows[name]
            if ours is not None:
                ratios = [
                    f"{other} {ours.samples_per_s / found.samples_per_s:.2f}"
                    for other in others
                    if (found := rows[other]) is not None
                ]
                print(f"{'':15}{name} is ahead of {', '.join(ratios)}", flush=True)


def memory(title: str, model: Transformer) -> None:
    """Print GB of the fullest of eight devices, with the same microbatch size for all (figures 3.7 and 3.11)."""
    print(f"\n{title}: GB of the fullest device, microbatches of 4, eight stages")
    for batch in (32, 64, 128):
        cells = []
        for name, strategy in (
            ("inter-layer", "model_parallel"), ("GPipe", "gpipe"), ("Flush", "flush"), ("2BW", "two_bw")
        ):  # fmt: skip
            found = run(model, strategy, 8, 8, batch, 4)
            cells.append(
                f"{name} " + ("-" if found is None else f"{found.peak_bytes / GB:.1f}{'' if found.fits else ' (out)'}")
            )
        print(f"  batch {batch:4}: {', '.join(cells)}", flush=True)


def configurations() -> None:
    """Print the throughput of 2BW by depth, microbatch size and batch size (figure 3.8)."""
    print(
        "\nFigure 3.8, GPT 1.3B on 64: samples/s of (p, b) by batch; published: grows with the batch, (8, 32) above (8, 8)"
    )
    batches = (512, 1024, 2048, 4096, 8192)
    for depth, size in ((4, 1), (4, 4), (8, 8), (8, 32)):
        found = [run(GPTS["1.3B"], "two_bw", 64, depth, batch, size) for batch in batches]
        cells = ["       - " if one is None else f"{one.samples_per_s:8.1f}{' ' if one.fits else '*'}" for one in found]
        print(f"  ({depth}, {size:2}): {' '.join(cells)}", flush=True)
    print(f"  batches {batches}; *: does not fit; -: fewer microbatches in a pipeline than stages, which 2BW needs")


def sizes_by_depth() -> None:
    """Print the billions of parameters of the largest GPT that 2BW trains, by depth (figure 3.9)."""
    print(
        "\nFigure 3.9: largest GPT on 64 V100s with 2BW, blocks of 4,096; published: almost 30 billion, more with depth"
    )
    for depth in (2, 4, 8, 16, 32, 64):
        low, high = 0, 64
        while low < high:
            middle = (low + high + 1) // 2
            model = gpt(middle * depth, 4096, 64)
            # One sample per microbatch, and enough microbatches to keep the pipeline full.
            found = run(model, "two_bw", 64, depth, 64 // depth * max(depth, 1), 1)
            low, high = (middle, high) if found is not None and found.fits else (low, middle - 1)
        print(f"  {depth:2} deep: {gpt(low * depth, 4096, 64).parameters / 1e9 if low else 0:6.1f} billion", flush=True)


def recomputation() -> None:
    """Print the throughput with and without recomputation, by microbatch size (figure 3.12)."""
    print(
        "\nFigure 3.12, 2BW (1, 8) on eight: samples/s by microbatch; published: recomputing costs at most a third at one"
    )
    print("  microbatch, and pays where it lets a larger one fit: for the larger model and not for the smaller")
    for name, model in (("0.8B", GPTS["0.8B"]), ("2.2B", GPTS["2.2B"])):
        most = {}
        for again in (False, True):
            found = [
                one for size in SIZES if (one := run(model, "two_bw", 8, 8, 512, size, again)) is not None and one.fits
            ]
            cells = ", ".join(f"{one.microbatch}: {one.samples_per_s:.1f}" for one in found) or "nothing fits"
            most[again] = max((one.samples_per_s for one in found), default=0.0)
            print(f"  {name} {'recomputed' if again else 'stashed   '}: {cells}", flush=True)
        if most[False]:
            print(f"  {name}: best recomputed by best stashed {most[True] / most[False]:.2f}")


def figures() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each figure's name, and a function that prints it."""
    statement = (
        "published: ahead of tensor 1.3 on 8 and 20 on 64 (3.8B), of inter-layer up to 6.1, of GPipe up to 3.2, of Flush 1.6 to 1.15;\n"
        "  Flush ahead of inter-layer up to 4.1 at small batches and 5.3 at large ones (2.2B), of GPipe 2.1 and 3"
    )
    for number, models in (("3.6", GPTS), ("3.10", BERTS)):
        yield number, lambda n=number: print(f"\nFigure {n}; {statement}")  # type: ignore[misc]
        yield number, lambda n=number, m=models: throughputs(f"{n}(a) 2.2B, 8 V100s", m["2.2B"], 8, 8, (64, 512))  # type: ignore[misc]
        yield number, lambda n=number, m=models: throughputs(f"{n}(b) 2.2B, 64 V100s", m["2.2B"], 64, 8, (512, 2048))  # type: ignore[misc]
        yield number, lambda n=number, m=models: throughputs(f"{n}(c) 3.8B, 64 V100s", m["3.8B"], 64, 16, (512, 2048))  # type: ignore[misc]
    for number, models, out in (("3.7", GPTS, "GPipe is out of memory at 64"), ("3.11", BERTS, "GPipe fits at 64")):
        title = f"Figure {number}, 2.2B; published: inter-layer < Flush < 2BW < GPipe, {out}"
        yield number, lambda t=title, m=models: memory(t, m["2.2B"])  # type: ignore[misc]
    yield "3.8", configurations
    yield "3.9", sizes_by_depth
    yield "3.12", recomputation


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="print only this figure, such as 3.9")
    arguments = parser.parse_args()
    for name, model in (*GPTS.items(), *BERTS.items()):
        assert abs(model.parameters / 1e9 - float(name[:-1])) < 0.15, (name, model.parameters)
    for number, figure in figures():
        if arguments.only in (None, number):
            figure()


if __name__ == "__main__":
    main()
