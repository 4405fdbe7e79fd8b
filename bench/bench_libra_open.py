"""Sensitivity of LIBRA's gains to the settings that its paper leaves open.

    python bench/bench_libra_open.py           # one setting at a time, then all together (about 5 minutes)
    python bench/bench_libra_open.py --quick   # one setting at a time

The paper prints some of its fitted figures and omits others. bench_libra.py uses one value for each; here they vary:

    startup   of an all-reduce on 8 nodes, seconds (MG-WFBP's InfiniBand table has 0.0001; LIBRA's fit is not printed)
    threads   that NCCL chooses by itself
    line      fraction of the 50 Gbit/s that a long all-reduce reaches
    backward  factor on the predicted backward time (cuDNN has faster convolutions than the prediction assumes)
    window    of Horovod, seconds (its default was 0.005, later 0.001)
    agreeing  startups that Horovod's workers need to agree on each bucket before its all-reduce (bench_libra.py: none)

A row has LIBRA's gain over no overlap (SE), Horovod (H-N) and MG-WFBP (MG-N) on 8 nodes, as ranges over the models. It
also has LIBRA's gain for VGG-16 on 2,048 nodes, and the models for which Horovod is faster than MG-WFBP on 8 nodes. The
distance is the largest difference from the published ends of these ranges, in percentage points.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from bench_libra import STARTUP_S, Case, calibrated_contention, case, cases

from hocket import models
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.baselines import by_window, merged, no_overlap
from hocket.planning.buckets.tensor_fusion import ReadyGradients, joint

# Section V.C: minimum and maximum throughput gain of four models on 8 nodes. Section V.D: gain of VGG-16 on 2,048
# nodes.
PUBLISHED = {"SE": (0.113, 0.269), "H-N": (0.058, 0.138), "MG-N": (0.042, 0.062)}
PUBLISHED_LARGE = {"H-N": 0.200, "MG-N": 0.210}
NODES = 8, 2048


@dataclass(frozen=True)
class Setting:
    """One value for every open setting; the defaults are as in bench_libra.py."""

    startup_s: float = STARTUP_S
    threads: int = 1024
    line: float = 0.9
    backward: float = 1.0
    window_s: float = 0.005
    agreeing: int = 0

    def __str__(self) -> str:
        return (
            f"startup {self.startup_s * 1e6:4.0f} us, {self.threads:4} threads, line {self.line:.1f}, "
            f"backward {self.backward:.1f}, window {self.window_s * 1e3:2.0f} ms, agreeing {self.agreeing}"
        )


OPEN: dict[str, tuple[float, ...]] = {
    "startup_s": (20e-6, STARTUP_S, 500e-6),
    "threads": (256, 512, 1024, 2048),
    "line": (0.6, 0.9),
    "backward": (0.4, 0.7, 1.0),
    "window_s": (0.001, 0.005, 0.02),
    "agreeing": (0, 1, 4),
}
HOROVOD = "window_s", "agreeing"
"""Settings that affect only Horovod: they vary without a new search."""


@dataclass(frozen=True)
class Row:
    """Results of one setting.

    Attributes:
        small: LIBRA's gains on 8 nodes, by model and rule.
        large: LIBRA's gains for VGG-16 on 2,048 nodes, by rule.
        horovod_ahead: models for which Horovod is faster than MG-WFBP on 8 nodes.
    """

    setting: Setting
    small: dict[str, dict[str, float]]
    large: dict[str, float]
    horovod_ahead: tuple[str, ...]

    def range(self, way: str) -> tuple[float, float]:
        """Minimum and maximum gain of the models over one rule on 8 nodes."""
        gains = [own[way] for own in self.small.values()]
        return min(gains), max(gains)

    @property
    def distance(self) -> float:
        """Largest difference from the published figures."""
        ends = [
            abs(a - b) for way, published in PUBLISHED.items() for a, b in zip(self.range(way), published, strict=True)
        ]
        return max(*ends, *(abs(self.large[way] - published) for way, published in PUBLISHED_LARGE.items()))

    def __str__(self) -> str:
        ranges = "  ".join(f"{a:5.1%} to {b:5.1%}" for a, b in map(self.range, PUBLISHED))
        large = "  ".join(f"{self.large[way]:6.1%}" for way in PUBLISHED_LARGE)
        return f"{ranges}  {large}  {self.distance * 100:5.1f}  {', '.join(self.horovod_ahead) or '-'}"


def model_of(setting: Setting, base: OverlapModel) -> OverlapModel:
    """Contention model on 8 nodes.

    The loss with few threads stays the fraction of the bandwidth that follows from the 14 % of figure 1(b).
    """
    part = base.beside.lost_bytes_per_s / base.beside.most_bytes_per_s
    line = setting.line * 50e9 / 8
    rate = Rate(line, part * line, base.beside.decay)
    return replace(base, beside=rate, alone=rate, latency_s=setting.startup_s / 14)


def slowed(one: Case, backward: float) -> Case:
    """Model with its times multiplied by `backward`."""
    sizes, seconds = one.gradients.sizes_bytes, one.gradients.computes_s
    gradients = ReadyGradients(sizes, tuple(backward * s for s in seconds))
    return replace(one, forward_s=one.forward_s * backward, gradients=gradients)


def rows_of(models: list[Case], settings: list[Setting], base: OverlapModel) -> Iterator[Row]:
    """Yield a row for each setting. The settings differ only for Horovod, so everything else is timed once."""
    setting = settings[0]
    times: dict[tuple[str, int], dict[str, float]] = {}
    for one, nodes in product([slowed(one, setting.backward) for one in models], NODES):
        if nodes > NODES[0] and one.name != "vgg":
            continue
        model = model_of(setting, base).on(nodes)
        ways = {
            "SE": no_overlap(one.gradients, setting.threads),
            "MG-N": merged(one.gradients, model, setting.threads),
            "LIBRA": joint(one.gradients, model),
        }
        took = {k: one.forward_s + way.backward_s(one.gradients, model) for k, way in ways.items()}
        for own in settings:
            agreed = replace(model, latency_s=model.latency_s * (1 + own.agreeing))
            looks = by_window(one.gradients, agreed, own.threads, own.window_s)
            took[f"H-N {own}"] = one.forward_s + looks.backward_s(one.gradients, agreed)
        times[one.name, nodes] = took
    for each in settings:
        gains: dict[tuple[str, int], dict[str, float]] = {}
        for key, took in times.items():
            own = {"SE": took["SE"], "H-N": took[f"H-N {each}"], "MG-N": took["MG-N"]}
            gains[key] = {way: seconds / took["LIBRA"] - 1 for way, seconds in own.items()}
        small = {name: own for (name, nodes), own in gains.items() if nodes == NODES[0]}
        ahead = tuple(name for name, own in small.items() if own["H-N"] < own["MG-N"])
        yield Row(each, small, gains["vgg", NODES[1]], ahead)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="vary only one setting at a time")
    arguments = parser.parse_args()
    small = case("resnet", models.job("resnet", depth=152, classes=1000, batch_size=8, samples=8))
    base, models_, usual = calibrated_contention(small.gradients, 0.14), list(cases()), Setting()
    ranges = "  ".join(f"{a:5.1%} to {b:5.1%}" for a, b in PUBLISHED.values())
    large = "  ".join(f"{gain:6.1%}" for gain in PUBLISHED_LARGE.values())
    print(
        f"{'LIBRA ahead of, on 8 nodes:':88}{'SE':^16}{'H-N':^17}{'MG-N':^16}  VGG-16 on 2,048     distance; H-N before MG-N for"
    )
    print(f"{'published':86}{ranges}  {large}    0.0  -")
    for key, values in OPEN.items():
        settings = [replace(usual, **{key: value}) for value in values]  # type: ignore[arg-type]
        for own in [settings] if key in HOROVOD else [[setting] for setting in settings]:
            for row in rows_of(models_, own, base):
                print(f"{row.setting!s:86}{row}", flush=True)
    if arguments.quick:
        return
    print("\nall combinations: the nearest to what is published")
    others = [key for key in OPEN if key not in HOROVOD]
    found = []
    for values in product(*(OPEN[key] for key in others)):
        setting = replace(usual, **dict(zip(others, values, strict=True)))  # type: ignore[arg-type]
        pairs = product(*(OPEN[key] for key in HOROVOD))
        settings = [replace(setting, **dict(zip(HOROVOD, pair, strict=True))) for pair in pairs]  # type: ignore[arg-type]
        found += rows_of(models_, settings, base)
    for row in sorted(found, key=lambda row: row.distance)[:5]:
        print(f"{row.setting!s:86}{row}")
    print("\nall combinations: the most that LIBRA is ahead for VGG-16 on 2,048 nodes")
    for row in sorted(found, key=lambda row: -min(row.large.values()))[:3]:
        print(f"{row.setting!s:86}{row}")
    orders = sum(not row.horovod_ahead for row in found)
    print(f"\nHorovod is behind MG-WFBP for all models on 8 nodes in {orders} of {len(found)} combinations")


if __name__ == "__main__":
    main()
