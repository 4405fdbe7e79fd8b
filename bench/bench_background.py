"""Simulated foreground and background job on one cluster, compared with DeepPool's measurements (figures 9, 10 and 11).

    python -m bench.bench_background [--model vgg16] [--points | --mechanisms] [--overlap]

The data is shared/data/deeppool (public profiles of an A100, as in bench_burst). There are 8 GPUs and the paper's batch
sizes, and both jobs train the same model. The rows are:

- DP: data parallelism on all GPUs.
- BP: the fastest burst-parallel plan.
- BP + gaps: BP with a background job in its gaps.
- BP + Col: BP with a background job in its gaps and concurrent with its layers.
- Partition: data parallelism on 1, 2, 4 or 8 GPUs, and the background job alone on the others.

All-reduces follow the backward pass, as in section 4.1; with `--overlap` they overlap with it, as in Hocket's programs.
The paper's figures are drawings without numbers, so the results are compared with figures in its text.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import inf, lcm

from bench.bench_burst import MODELS, cluster, profile
from hocket.cost.background.background import Background
from hocket.cost.contention import Collocation
from hocket.planning.background.background_job import alone
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import played
from hocket.program.passes.gradients import DEFAULT_BUCKET_BYTES
from hocket.simulation.background.background import background_of, collocate
from hocket.simulation.result import SimulationResult
from hocket.simulation.steady_state import steady_state
from hocket.strategies.base.search_space import SearchSpace, cut
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import plan_burst

GPUS, REPEATS = 8, 12
BATCHES = {"vgg16": 32, "wrn101_2": 16, "inception_v3": 32}  # figure 9
LIMITS: dict[str, tuple[float | None, ...]] = {
    "vgg16": (2.0, 4.0, None),
    "wrn101_2": (4.0, None),
    "inception_v3": (8.0, None),
}
# Samples per background step: "DeepPool runs background DNN jobs with small batch sizes" (section 5).
SIZES = (2, 4, 8)
# "The computation cost of each layer is often reduced below 100 us" (section 8): longer layers count as several
# kernels.
LAUNCH_S = 100e-6
# Between 1 and 2, so that nothing runs concurrently with all-reduces, which would take twice as long.
SLOWEST = 1.5
COL = Collocation(launch_s=LAUNCH_S, slowdown_limit=SLOWEST)
GAPS = Collocation(launch_s=LAUNCH_S, slowdown_limit=SLOWEST, beside=False)
MOST_LOST = 0.18  # "with less than 18% degradation of foreground throughput" (section 7.1)
PAPER = {
    "vgg16": (
        "BP is faster than DP; BP + Col almost doubles the throughput of BP with less than 18 % of the foreground lost",
        "up to 38 % more foreground than a partition of the same throughput",
    ),
    "wrn101_2": (
        "BP is faster than DP; BP + Col almost doubles the throughput of BP with less than 18 % of the foreground lost",
        "up to 11 % more foreground, and up to 25 % more throughput",
    ),
    "inception_v3": (
        "BP is DP; BP + Col adds 15 %: many very short kernels, which a background disturbs",
        "up to 37 % more foreground above the throughput of 2 foreground GPUs",
    ),
}


@dataclass(frozen=True)
class Point:
    """One way to use the cluster, with the samples per second of both jobs."""

    name: str
    size: int
    foreground: float
    background: float

    @property
    def total(self) -> float:
        """Samples per second of both jobs together."""
        return self.foreground + self.background


class Bench:
    """Simulations of one model."""

    def __init__(self, model: str, overlap: bool) -> None:
        self.model, self.batch, self.profile = model, BATCHES[model], profile(model)
        self.bucket_bytes = DEFAULT_BUCKET_BYTES if overlap else inf
        self.parallel, self.burst = cache(self._parallel), cache(self._burst)
        self.job, self.points = cache(self._job), cache(self._points)

    def _run(self, strategy: str, runs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> SimulationResult:
        """Simulate a plan.

        Arguments:
            runs: consecutive layers and their devices, for each stage.
        """
        space = SearchSpace(self.profile, cluster(GPUS), self.batch, bucket_bytes=self.bucket_bytes)
        names = [layer.name for layer in self.profile.layers]
        stages = []
        for layers, devices in runs:
            buckets = cut(space, layers, devices).buckets
            own = tuple(tuple(names[i] for i in bucket) for bucket in buckets)
            stages.append(PlanStage(tuple(names[i] for i in layers), devices, buckets=own))
        size = self.batch // lcm(*(len(devices) for _, devices in runs))
        plan = Plan(strategy, self.profile.name, self.batch, size, tuple(stages), cluster(GPUS))
        return played(plan, self.profile, REPEATS)

    def _parallel(self, gpus: int) -> SimulationResult:
        """Simulate data parallelism on `gpus` GPUs."""
        return self._run("data_parallel", [(tuple(range(len(self.profile.layers))), tuple(range(gpus)))])

    def _burst(self, limit: float | None) -> SimulationResult:
        """Simulate the fastest burst-parallel plan under an amplification limit.

        If that plan is data parallelism, it is simulated as data parallelism.
        """
        runs = [
            (run.layers, run.devices)
            for run in plan_burst(self.profile, cluster(GPUS), self.batch, BurstLimits(limit)).runs
        ]
        return self.parallel(GPUS) if len(runs) == 1 and len(runs[0][1]) == GPUS else self._run("burst_parallel", runs)

    def _job(self, size: int) -> Background:
        """Background job with `size` samples per step."""
        return background_of(played(alone(self.profile, cluster(GPUS), size), self.profile), self.model)

    def rate(self, outcome: SimulationResult) -> float:
        """Samples per second of a foreground job that runs alone."""
        return self.batch / steady_state(outcome).iteration_s

    def partitions(self, size: int) -> list[Point]:
        """The four partitions of figure 10."""
        rate = self.job(size).samples_per_s
        return [Point(f"DP on {g}", size, self.rate(self.parallel(g)), (GPUS - g) * rate) for g in (1, 2, 4, 8)]

    def together(self, limit: float | None, size: int, rules: Collocation) -> Point:
        """Burst-parallel plan with a background job."""
        found = collocate(self.burst(limit), self.job(size), rules)
        widths = "-".join(str(len(stage.devices)) for stage in found.foreground.program.stages)
        return Point(widths, size, found.foreground_samples_per_s, sum(found.background_samples_per_s.values()))

    def _points(self, rules: Collocation) -> tuple[Point, ...]:
        """All operating points."""
        return tuple(self.together(limit, size, rules) for limit in LIMITS[self.model] for size in SIZES)

    def chosen(self, rules: Collocation) -> Point:
        """Point with the most samples per second of both jobs.

        Only points count that lose at most `MOST_LOST`, the paper's figure, of the foreground. If there is none, the
        point with the fastest foreground is returned.
        """
        least = (1 - MOST_LOST) * self.fastest
        fitting = [point for point in self.points(rules) if point.foreground >= least]
        return max(fitting or self.points(rules), key=lambda p: p.total if fitting else p.foreground)

    @property
    def fastest(self) -> float:
        """Samples per second of the fastest burst-parallel plan alone."""
        return max(self.rate(self.burst(limit)) for limit in LIMITS[self.model])


def overview(bench: Bench) -> None:
    """Print figure 9: the throughput of each way to use the cluster."""
    parallel, bursts = bench.rate(bench.parallel(GPUS)), bench.fastest
    share = bench.batch // GPUS
    alike = bench.together(None, share, COL)
    gaps, col = bench.chosen(GAPS), bench.chosen(COL)
    title = "samples/s of foreground, background, both; both by DP and by BP"
    print(f"\n{bench.model}, {GPUS} GPUs, batch {bench.batch}: {title}")
    rows = [
        ("DP", Point("8", 0, parallel, 0.0)),
        ("BP", Point("", 0, bursts, 0.0)),
        (f"BP + gaps ({gaps.name}, background {gaps.size})", gaps),
        (f"BP + Col ({alike.name}, background {share})", alike),
        (f"BP + Col ({col.name}, background {col.size})", col),
        (f"background alone ({col.size})", Point("", 0, 0.0, GPUS * bench.job(col.size).samples_per_s)),
    ]
    for name, point in rows:
        both = f"{point.total / parallel:7.2f}{point.total / bursts:7.2f}"
        print(f"  {name:42}{point.foreground:8.0f}{point.background:8.0f}{point.total:8.0f}{both}")
    lost = ", ".join(
        f"{1 - p.foreground / bursts:.1%} ({what})"
        for p, what in ((gaps, "gaps"), (alike, "Col"), (col, "most of Col"))
    )
    print(f"  paper: {PAPER[bench.model][0]}")
    print(f"  here:  BP is {bursts / parallel - 1:+.1%} of DP; of its foreground are lost {lost}")


def tradeoff(bench: Bench, every: bool) -> None:
    """Print figure 10: foreground and total throughput, compared with partitions that have the same background job."""
    single = bench.rate(bench.parallel(1))
    gains: dict[str, float] = {}
    mores: dict[str, float] = {}
    for size in SIZES:
        points, partitions = [p for p in bench.points(COL) if p.size == size], bench.partitions(size)
        for point in (*partitions, *points) if every else ():
            what = f"  {point.name:12} background {size}: {point.foreground / single:5.2f} times one GPU"
            print(f"{what},{point.total:7.0f} samples/s")
        for one in partitions:
            ours = [p.foreground / one.foreground - 1 for p in points if p.total >= one.total]
            both = [p.total / one.total - 1 for p in points if p.foreground >= one.foreground]
            gains[one.name] = max((*ours, gains.get(one.name, -1.0)))
            mores[one.name] = max((*both, mores.get(one.name, -1.0)))
    shown = "; ".join(
        f"{name}: {f'{gains[name]:+.0%}' if gains[name] > -1 else 'never as much'}, "
        f"{f'{mores[name]:+.0%}' if mores[name] > -1 else 'never as fast'}"
        for name in gains
    )
    print(f"  paper: {PAPER[bench.model][1]}")
    print(f"  here:  foreground at no less throughput, throughput at no less foreground, than {shown}")


def mechanisms(bench: Bench) -> None:
    """Print figure 11: the effect of each mechanism. The paper's text tells only the direction."""
    whole = len(bench.job(32).divided(LAUNCH_S).launches)

    def ways() -> Iterator[tuple[str, int, Collocation]]:
        many = Collocation(launch_s=LAUNCH_S, priority=False, outstanding=whole)
        yield f"as they come: {whole} launches at once, a step of 32", 32, many
        yield "priorities", 32, Collocation(launch_s=LAUNCH_S, outstanding=whole)
        yield "two launches at once", 32, Collocation(launch_s=LAUNCH_S, outstanding=2)
        yield (
            f"none beside what takes {SLOWEST} times as long",
            32,
            Collocation(launch_s=LAUNCH_S, outstanding=2, slowdown_limit=SLOWEST),
        )
        yield "a step of 4", 4, Collocation(launch_s=LAUNCH_S, outstanding=2, slowdown_limit=SLOWEST)

    print(f"\n{bench.model}: one mechanism after the other; foreground by its own alone, samples/s of both")
    for name, size, rules in ways():
        point = bench.together(None, size, rules)
        print(f"  {name:50}{point.foreground / bench.fastest:8.1%}{point.total:8.0f}")
    print("  paper: a great loss; priorities help little; pacing, feedback and small steps help each")


def main() -> None:
    """Print the numbers of figures 9 and 10."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(MODELS), help="evaluate only this model")
    parser.add_argument("--points", action="store_true", help="print every point of figure 10")
    parser.add_argument("--mechanisms", action="store_true", help="also print figure 11: the effect of each mechanism")
    parser.add_argument("--overlap", action="store_true", help="overlap all-reduces with the backward pass")
    arguments = parser.parse_args()
    for model in [arguments.model] if arguments.model else MODELS:
        bench = Bench(model, arguments.overlap)
        overview(bench)
        tradeoff(bench, arguments.points)
        if arguments.mechanisms:
            mechanisms(bench)


if __name__ == "__main__":
    main()
