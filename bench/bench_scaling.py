"""Time to accuracy by the number of devices, from DeepPool's profile of VGG-16.

    python bench/bench_scaling.py [PATH/A100_vgg.prof]    # by default, the profile in shared/data/deeppool

The curves are of the kinds in DeepPool's Figures 1 to 3: speedups of weak, strong and batch-optimal scaling by devices,
samples per device in the best batch, and speedups by the network's bandwidth. Then the script prints whether each curve
has the published shape.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from hocket.hardware.change import Change
from hocket.hardware.cluster import Cluster
from hocket.planning.goals.sample_efficiency import SampleCurve
from hocket.planning.goals.time_to_accuracy import OPTIMAL, STRONG, WAYS, WEAK, Scaling, data_parallel, scale
from hocket.profiling.readers import deeppool

PROFILE = Path(__file__).resolve().parents[2] / "shared" / "data" / "deeppool" / "A100_vgg.prof"
EXAMPLES = Path(__file__).parents[1] / "examples"
GIGABITS = (10, 100, 1000, 4800)
BASE = 256


def found(path: Path) -> dict[int, Scaling]:
    """Scaling by the network's Gbit/s."""
    cluster = Cluster.read(EXAMPLES / "clusters" / "a100-network.yaml")
    curve = SampleCurve.read(EXAMPLES / "curves" / "images.yaml")
    iteration = data_parallel(deeppool.read(path))
    own = cluster.levels[0].bandwidth_bytes_per_s * 8e-9
    changed = {rate: Change(bandwidth={"network": rate / own}).of(cluster) for rate in GIGABITS}
    return {rate: scale(iteration, one, curve, BASE) for rate, one in changed.items()}


def kinds(scalings: dict[int, Scaling]) -> Iterator[tuple[str, bool]]:
    """Yield each statement of the figures, and True if our curves confirm it."""
    usual = scalings[1000]
    speed = {way: {row.devices: row.speedup for row in usual.of(way)} for way in WAYS}
    last = {rate: {way: one.of(way)[-1].speedup for way in WAYS} for rate, one in scalings.items()}
    yield "1: nearly linear up to 4 devices", all(speed[way][4] > 3.2 for way in WAYS)
    yield "1: weak scaling gains little from 128 to 256", speed[WEAK][256] < 1.1 * speed[WEAK][128]
    yield "1: strong is better than weak on 64", speed[STRONG][64] > speed[WEAK][64]
    at_least = [max(speed[WEAK][n], speed[STRONG][n]) * (1 - 1e-9) for n in speed[WEAK]]
    yield (
        "1: the best batch is as good as both",
        all(a >= b for a, b in zip(speed[OPTIMAL].values(), at_least, strict=True)),
    )
    parts = [row.samples_per_device for row in usual.of(OPTIMAL)]
    yield "2: the part of a device falls", parts == sorted(parts, reverse=True) and parts[-1] < parts[0]
    yield "3: weak is better than strong on slow links", last[10][WEAK] > last[10][STRONG]
    strong = [last[rate][STRONG] for rate in GIGABITS]
    yield "3: strong gains most from fast links", strong[-1] / strong[0] > last[4800][WEAK] / last[10][WEAK]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("profile", type=Path, nargs="?", default=PROFILE)
    arguments = parser.parse_args()
    if not arguments.profile.exists():
        raise SystemExit(f"no profile {arguments.profile}")
    scalings = found(arguments.profile)
    print(f"{'devices':>8}" + "".join(f"{way:>15}" for way in WAYS) + f"{'of a device':>13}")
    for rows in zip(*(scalings[1000].of(way) for way in WAYS), strict=True):
        speeds = "".join(f"{row.speedup:>15.2f}" for row in rows)
        print(f"{rows[0].devices:>8}{speeds}{rows[2].samples_per_device:>13g}")
    print(f"\n{'Gbit/s':>8}" + "".join(f"{way:>15}" for way in WAYS))
    for rate, one in scalings.items():
        print(f"{rate:>8}" + "".join(f"{one.of(way)[-1].speedup:>15.2f}" for way in WAYS))
    for what, shown in kinds(scalings):
        print(f"Figure {what}: {'yes' if shown else 'NO'}")


if __name__ == "__main__":
    main()
