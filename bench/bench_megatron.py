"""Planning without devices compared with the published results of Megatron-LM on A100s of Selene.

    python bench/bench_megatron.py [--only WORD] [--calibrate 0 9] [--adding]

The source is sections 4.4 and 4.5 of the dissertation. The figures are achieved TFLOP/s per GPU, with operations
counted as in equation 4.2: predicted by the planner, and measured. Two rows of Table 4.1 calibrate the efficiency of
kernels on an A100 (`--calibrate` names them); everything else is predicted. Table 4.1 gives p, t, d and the batch size.
The microbatch size and the number of chunks are not given; the planner chooses them. Recomputation is full, as in the
source. Link speeds are the manufacturers': NVLink, and eight network cards of 200 Gbit/s per server. NCCL reaches 92 %
of the cards' bandwidth, and 230 GB/s for a ring in a server.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import ClassVar

from hocket.cost.analytic.transformer import BlockExecution, Precision, analytic
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.hardware.device_type import DeviceType
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace, Source
from hocket.planning.mesh.search.simulated import SimulatedLayout, simulated
from hocket.planning.predict.predict import predict_choice
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut
from hocket.strategies.base.search_space import Candidate, SearchSpace

SIZES = (1, 2, 4, 8, 16)
CARD, RING = Link(0.92 * 25e9, 5e-6), Link(230e9, 3e-6)
HALF = Precision(gradient_bytes=2, step_bytes=32)  # 16-bit gradients, as in the source
# each microbatch's gradient is added in its own pass: two values read, one written
ADDING = replace(HALF, adding_bytes=6)
A100 = catalog.device_type("a100-80gb")


def gpt(layers: int, hidden: int, heads: int) -> Transformer:
    """GPT of the experiments: vocabulary of 51,200, 2,048 tokens per sample."""
    return Transformer(f"gpt {layers} x {hidden}", layers, hidden, heads, 51200, 2048)


def selene(devices: int, kind: DeviceType) -> Cluster:
    """Cluster of servers with eight GPUs."""
    inside = Level("server", min(8, devices), 300e9, 3e-6, False, RING)
    outside = (Level("cluster", devices // 8, CARD.bandwidth_bytes_per_s, CARD.latency_s, False),)
    return Cluster("selene", (inside, *(outside if devices > 8 else ())), kind.name, types=(kind,))


@dataclass(frozen=True)
class Case:
    """A published experiment: p, t, and the microbatch size and chunks if they are known (0 if not)."""

    model: Transformer
    devices: int
    batch: int
    depth: int
    tensor: int
    samples: int = 0
    chunks: int = 0
    recompute: str = "full"
    slices: bool = True
    precision: ClassVar[Precision] = HALF

    def best(self, kind: DeviceType) -> SimulatedLayout | None:
        """Fastest layout that fits in memory, among all choices that the source leaves open."""
        # In the published runs every replica had the whole optimizer state.
        layout_space = LayoutSpace.of(self.source(kind), selene(self.devices, kind), LayoutFamily(self.tensor, self.recompute, SIZES, self.slices, shards=("none",)))  # fmt: skip
        waiting = sorted(((layout_space.bound(m), m) for m in self._open(layout_space)), key=lambda one: one[0].seconds)
        found: SimulatedLayout | None = None
        for bound, mesh in waiting:
            if found is not None and bound.seconds >= found.iteration_s:
                break
            if bound.bytes > kind.memory_bytes:
                continue
            one = simulated(layout_space, mesh)
            if one.bytes <= kind.memory_bytes and (found is None or one.iteration_s < found.iteration_s):
                found = one
        return found

    def source(self, kind: DeviceType) -> Source:
        """Source of analytic profiles on an A100."""

        def profile(
            tensor: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False
        ) -> ModelProfile:
            return analytic(
                self.model, kind, BlockExecution(tensor, recompute, sequence_parallel), precision=self.precision,
                microbatch_sizes=sizes,
            )  # fmt: skip

        return profile

    def _open(self, layout_space: LayoutSpace) -> Iterator[ParallelLayout]:
        for mesh in layout_space.meshes(self.batch):
            each = self.model.layers / (mesh.depth * mesh.chunks)
            if mesh.depth != self.depth or (mesh.chunks > 1 and each != int(each)):
                continue
            if self.samples in (0, mesh.samples) and self.chunks in (0, mesh.chunks):
                yield mesh

    def teraflops(self, found: SimulatedLayout) -> float:
        """TFLOP/s per GPU, with recomputation counted (equation 4.2)."""
        return self.model.model_flops(self.batch) / found.iteration_s / self.devices / 1e12


TABLE_4_1 = [
    (Case(gpt(24, 2304, 24), 32, 512, 1, 1), 137),
    (Case(gpt(30, 3072, 32), 64, 512, 1, 2), 138),
    (Case(gpt(36, 4096, 32), 128, 512, 1, 4), 142),
    (Case(gpt(40, 6144, 48), 256, 1024, 1, 8), 135),
    (Case(gpt(48, 8192, 64), 512, 1536, 2, 8), 138),
    (Case(gpt(60, 10240, 80), 1024, 1792, 4, 8), 140),
    (Case(gpt(80, 12288, 96), 1536, 2304, 8, 8), 148),
    (Case(gpt(96, 16384, 128), 1920, 2160, 16, 8), 155),
    (Case(gpt(105, 20480, 128), 2520, 2520, 35, 8), 163),
    (Case(gpt(128, 25600, 160), 3072, 3072, 64, 8), 163),
]
GPT3, GPT530 = gpt(96, 12288, 96), gpt(105, 20480, 128)
TABLE_4_2 = [
    *((Case(GPT3, n, 1536, 12, 8, 1), x) for n, x in ((384, 153), (768, 149), (1536, 141))),
    *((Case(GPT530, n, 2240, 35, 8, 1), x) for n, x in ((560, 171), (1120, 167), (2240, 159))),
]


# ZeRO-3 of Table 4.2: model, batch, GPUs, microbatch, TFLOP/s.
ZERO_3 = [
    *((GPT3, 1536, n, b, x) for n, b, x in ((384, 4, 144), (768, 2, 88), (1536, 1, 44))),
    *((GPT530, batch, n, b, x) for batch, n, b, x in ((2560, 640, 4, 138), (2240, 1120, 2, 98), (2240, 2240, 1, 48))),
]


def zero_3(
    model: Transformer, batch: int, devices: int, samples: int, kind: DeviceType, rings: int
) -> tuple[float, float]:
    """TFLOP/s and peak memory in GB of one GPU under ZeRO-3.

    Each layer is a unit, and all replicas gather it whole (docs/explanation/sharding.md).

    Arguments:
        rings: number of parallel rings of a collective between servers; each uses one network card of every server.
    """
    # Units on the same devices cannot share the embedding: the output layer has its own.
    profile = analytic(
        replace(model, tied=False), kind, BlockExecution(recompute="full"), precision=Case.precision,
        microbatch_sizes=(samples,),
    )  # fmt: skip
    inside, cards = (whole := selene(devices, kind)).levels
    each = replace(cards, bandwidth_bytes_per_s=cards.bandwidth_bytes_per_s * rings / inside.width)
    replicas = tuple(range(devices))
    units = tuple(StageCut((k,), replicas, False, ((k,),), shard="full") for k in range(len(profile.layers)))
    space = SearchSpace(profile, replace(whole, levels=(inside, each)), batch, (samples,))
    found = predict_choice(space, "fully_sharded", Candidate(units, samples, batch // samples))
    achieved = model.model_flops(batch) / found.iteration_s / devices
    return achieved / 1e12, max(found.peak_memory_bytes.values()) / 1e9


def zero_3_table(kind: DeviceType) -> None:
    """Print ZeRO-3 with all network cards of a server and with one, and the lead of PTD-P of Table 4.2."""
    print(
        f"\nTable 4.2, ZeRO-3\n{'model':<22}{'GPUs':>6}{'micro':>6}{'GB':>5}{'8 rings':>9}{'1 ring':>8}{'published':>10}",
        end="",
    )
    print(f"{'PTD-P ahead:':>14}{'8 rings':>9}{'1 ring':>8}{'published':>10}")
    for (model, batch, devices, samples, published), (case, theirs) in zip(ZERO_3, TABLE_4_2, strict=True):
        (first, held), (second, _) = (zero_3(model, batch, devices, samples, kind, rings) for rings in (8, 1))
        ahead = rate(case, kind)
        print(
            f"{model.name:<22}{devices:>6}{samples:>6}{held:>5.0f}{first:>9.1f}{second:>8.1f}{published:>10}{'':>14}",
            end="",
        )
        print(f"{ahead / first - 1:>+9.0%}{ahead / second - 1:>+8.0%}{theirs / published - 1:>+10.0%}", flush=True)


def table(title: str, rows: Sequence[tuple[Case, int]], kind: DeviceType, skip: Sequence[int] = ()) -> float:
    """Print one table.

    Returns:
        The mean absolute error of the rows that are not in `skip`.
    """
    print(
        f"\n{title}\n{'model':<22}{'GPUs':>6}  {'mesh':<42}{'GB':>5}{'TFLOP/s':>9}{'published':>10}{'error':>8}{'s':>7}"
    )
    errors = []
    for number, (case, published) in enumerate(rows):
        began = time.perf_counter()
        found = case.best(kind)
        took = time.perf_counter() - began
        if found is None:
            print(f"{case.model.name:<22}{case.devices:>6}  nothing fits")
            continue
        rate = case.teraflops(found)
        error = rate / published - 1
        if number not in skip:
            errors.append(abs(error))
        mark = "  calibrates" if number in skip else ""
        print(
            f"{case.model.name:<22}{case.devices:>6}  {found.mesh!s:<42}{found.bytes / 1e9:>5.0f}{rate:>9.1f}{published:>10}"
            f"{error:>+8.1%}{took:>7.2f}{mark}",
            flush=True,
        )
    print(f"mean absolute error of {len(errors)}: {fmean(errors):.1%}")
    return fmean(errors)


def calibrated(rows: Sequence[tuple[Case, int]]) -> DeviceType:
    """A100 with the least squared error of the given rows.

    The fitted values are the fractions of the peak rate and of the memory bandwidth that kernels reach.
    """
    best, kept = float("inf"), A100
    for product in (0.8, 0.82, 0.84, 0.86, 0.88, 0.9, 0.92, 0.94):
        for memory in (0.7, 0.75, 0.8, 0.85, 0.9):
            kind = replace(A100, kernels=replace(A100.kernels, product_share=product, memory_share=memory))
            wrong = 0.0
            for case, published in rows:
                found = case.best(kind)
                wrong += 1.0 if found is None else (case.teraflops(found) / published - 1) ** 2
            if wrong < best:
                best, kept = wrong, kind
    return kept


def rate(case: Case, kind: DeviceType) -> float:
    """TFLOP/s per GPU; 0 if nothing fits."""
    found = case.best(kind)
    return 0.0 if found is None else case.teraflops(found)


def falls(values: Sequence[float]) -> bool:
    """True if each value is below the one before."""
    return all(b < a for a, b in pairwise(values))


def formulas(kind: DeviceType) -> Iterator[tuple[str, str, dict[str, list[float]], bool]]:
    """Figures of section 4.3, in the form of `figures`.

    In the source they are computed from formulas; only the seconds of a layer are measured.
    """
    layers, model = chain(32, microbatch_sizes=(1,)), gpt(4, 4096, 128)
    widths = (1, 2, 4, 8, 16, 32)
    bubbles = {f"b' = {b}": [_bubble(layers, 32, b, d) for d in widths] for b in (32, 128, 512)}
    theirs = [[(32 - d) / b for d in widths] for b in (32, 128, 512)]
    shown = all(
        abs(x - y) < 1e-9 for a, b in zip(bubbles.values(), theirs, strict=True) for x, y in zip(a, b, strict=True)
    )
    yield "4.6 d 1 to 32 of 32, bubble", "simulated it is (n - d) / b'", bubbles, shown

    profile = analytic(model, kind, precision=Case.precision, microbatch_sizes=SIZES)
    busy_s = [float(sum(profile.column(name, b).sum() for name in ("forward_s", "backward_s"))) for b in SIZES]
    step_s = sum(layer.step_s for layer in profile.layers)
    whole_s = [seconds + step_s for seconds in busy_s]  # there, a microbatch is an iteration
    for name, seconds in (("with the step", whole_s), ("without", busy_s)):
        each = [s / b for s, b in zip(seconds, SIZES, strict=True)]
        gains = {"gain": [each[0] / one for one in each]}
        yield f"4.7 microbatch 1 to 16, {name}", "gains up to 1.3", gains, 1.2 < max(gains["gain"]) < 1.4
        rates = {
            f"batch {batch}": [batch / ((batch / b + 7) * s) for s, b in zip(seconds, SIZES, strict=True)]
            for batch in (128, 512)
        }
        shown = all(max(values) in values[1:4] for values in rates.values())
        yield f"4.8 the same, equation 4.1, {name}", "neither the smallest nor the largest is best", rates, shown


def _bubble(layers: ModelProfile, devices: int, batch: int, width: int) -> float:
    """Simulated bubble fraction for equal layers and free links."""
    cluster = Cluster("free", (Level("all", devices, 1e30, shared=False),), "synthetic", memory_bytes=1e30)
    layout_space = LayoutSpace.of(lambda *_: layers, cluster, LayoutFamily(1, "none", (1,)))
    mesh = next(m for m in layout_space.meshes(batch) if (m.width, m.chunks) == (width, 1))
    return simulated(layout_space, mesh).predicted.bubble_fraction


def figures(kind: DeviceType) -> Iterator[tuple[str, str, dict[str, list[float]], bool]]:
    """Yield each figure: title, published statement, our values by series, and True if they confirm the statement."""
    wide, mid, deep = (lambda layers: gpt(layers, 20480, 128)), gpt(32, 3840, 32), gpt(32, 20480, 128)

    weak = {f"batch {b}": [rate(Case(wide(3 * p), 8 * p, b, p, 8, 1, 1), kind) for p in (1, 2, 4, 8)] for b in (8, 128)}
    small, large = weak.values()
    shown = falls(small) and falls(large) and small[-1] / small[0] < large[-1] / large[0]
    yield "4.11 depth 1, 2, 4, 8", "deeper is slower, less so with a larger batch", weak, shown

    both = {
        name: [rate(Case(GPT3, 96, b, 12, 8, 1, v), kind) for b in (12, 24, 36, 48, 60)]
        for name, v in (("interleaved", 2), ("not", 1))
    }
    gain = [a / b for a, b in zip(*both.values(), strict=True)]
    yield "4.12 batch 12 to 60", "interleaving gains, less with larger batches", both, falls(gain) and gain[-1] > 1

    split = {
        f"batch {b}": [rate(Case(deep, 64, b, 64 // t, t, 1, 1), kind) for t in (2, 4, 8, 16, 32, 64)]
        for b in (32, 128)
    }
    shown = all(max(range(6), key=values.__getitem__) == 2 for values in split.values())
    yield "4.13 tensor 2 to 64 of 64", "tensor parallelism of 8, a server, is best", split, shown

    depths = {
        f"batch {b}": [rate(Case(mid, 64, b, p, 1, 1, 1), kind) for p in (2, 4, 8, 16, 32)] for b in (32, 128, 512)
    }
    yield "4.14 depth 2 to 32 of 64", "columns are better than stages", depths, all(map(falls, depths.values()))

    tensors = {
        f"batch {b}": [rate(Case(mid, 64, b, 1, t, 1, 1), kind) for t in (2, 4, 8, 16, 32)] for b in (32, 128, 512)
    }
    yield (
        "4.15 tensor 2 to 32 of 64",
        "columns are better than tensor parallelism",
        tensors,
        all(map(falls, tensors.values())),
    )

    # 91.4 billion parameters. The source names no sizes for its 91 billion; the other models of these sections have 32
    # layers.
    ninety = gpt(32, 15360, 128)
    sizes = {f"batch {b}": [rate(Case(ninety, 64, b, 8, 8, n, 1), kind) for n in (1, 2, 4, 8)] for b in (128, 512)}
    shown = all(max(values) in values[1:3] for values in sizes.values())
    yield "4.16 microbatch 1 to 8", "neither the smallest nor the largest is best", sizes, shown

    again = gpt(80, 12288, 96)
    batches = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    per_s = {
        how: [_samples_per_s(Case(again, 128, b, 16, 8, 1, 1, how), kind) for b in batches] for how in ("full", "none")
    }
    largest = max(b for b, value in zip(batches, per_s["none"], strict=True) if value > 0)
    loss = 1 - per_s["full"][0] / per_s["none"][0]
    shown = largest < 256 and 0.2 < loss <= 0.34 and per_s["full"][-1] > 1.5 * max(per_s["none"])
    yield "4.17 batch 1 to 256, samples/s", "recomputing loses up to 33 %, but fits larger batches", per_s, shown

    scatter = {
        name: [rate(Case(GPT3, 96, b, 12, 8, 1, 2, "full", slices), kind) for b in (12, 24, 36, 48, 60)]
        for name, slices in (("scatter/gather", True), ("whole", False))
    }
    gain = [a / b - 1 for a, b in zip(*scatter.values(), strict=True)]
    yield "4.18 batch 12 to 60", "scatter/gather gains, up to 11 %", scatter, 0 < max(gain) < 0.15 and min(gain) > 0


def _samples_per_s(case: Case, kind: DeviceType) -> float:
    found = case.best(kind)
    return 0.0 if found is None else case.batch / found.iteration_s


def training_days(kind: DeviceType) -> Iterator[tuple[str, float, float]]:
    """Training time by equation 4.4, 8 T P / (n X): name, published days, our days."""
    for name, case, tokens, days in (
        # As in Megatron-LM's examples/pretrain_gpt3_175B.sh: 16 stages, microbatches of 1.
        ("GPT-3 on 1,024", Case(GPT3, 1024, 1536, 16, 8, 1, 1), 300e9, 34),
        ("1T on 3,072", TABLE_4_1[-1][0], 450e9, 84),
    ):
        seconds = 8 * tokens * case.model.parameters / (case.devices * rate(case, kind) * 1e12)
        yield name, days, seconds / 86400


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="print only tables with this text in their names")
    parser.add_argument("--calibrate", type=int, nargs="*", default=[0, 9], help="calibrating rows of Table 4.1")
    parser.add_argument("--adding", action="store_true", help="gradients are added in a separate pass")
    arguments = parser.parse_args()
    if arguments.adding:
        Case.precision = ADDING
    kind = calibrated([TABLE_4_1[k] for k in arguments.calibrate]) if arguments.calibrate else A100
    shares = kind.kernels
    print(
        f"products reach {shares.product_share:.0%} of the peak rate, passes {shares.memory_share:.0%} of the bandwidth"
    )
    for title, rows, skip in (("Table 4.1", TABLE_4_1, arguments.calibrate), ("Table 4.2", TABLE_4_2, ())):
        if arguments.only in title:
            table(title, rows, kind, skip)
    if arguments.only in "Table 4.2, ZeRO-3":
        zero_3_table(kind)
    if arguments.only in "figures":
        for title, what, series, shown in (*formulas(kind), *figures(kind)):
            print(f"\nFigure {title}: {what}: {'yes' if shown else 'NO'}")
            for name, values in series.items():
                print(
                    f"  {name:<16}" + "".join(f"{value:8.3g}" if value else "       -" for value in values), flush=True
                )
    if arguments.only in "training days":
        for name, published, ours in training_days(kind):
            print(f"\n{name}: {ours:.1f} days, published {published:.0f}, {ours / published - 1:+.1%}")


if __name__ == "__main__":
    main()
