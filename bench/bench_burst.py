"""Burst-parallel plans compared with DeepPool's public planner: search times, and both plans under one cost model.

    python -m bench.bench_burst [--rows | --printed | --whole | --simulated | --searched] [--model vgg16]

The data is shared/data/deeppool: profiles of one A100, and the answers of the public planner. An answer is for a model,
a number of GPUs, a batch size and an amplification limit. For each, the script compares the public planner's own time
of its plan, the time of that plan under our costs, and the time of our plan. If a public plan exceeds its limit under
our costs, it is also compared with our plan under the amplification that the public plan really has.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import lcm
from pathlib import Path
from typing import Any

from bench import burst_inception
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.predict.predict import predict_choice, trace_of_choice
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers import deeppool
from hocket.program.passes.gradients import DEFAULT_BUCKET_BYTES
from hocket.program.trace.busy_time import active_s
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import BurstPlan, DeviceCounts, plan_burst, plan_printed

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "deeppool"
MODELS = {"vgg16": "A100_vgg.prof", "wrn101_2": "A100_wrn.prof", "inception_v3": "A100_inception.prof"}
GOALS_S = {"vgg16": 0.02, "wrn101_2": 0.04, "inception_v3": 1.5}  # longest search at 1,024 GPUs, on one core
# The public planner's link: bytes per second per GPU, and latency. It has no start-up time of an all-reduce.
BYTES_PER_S, LATENCY_S = 266e9, 240e-6
NO_LIMIT = 99
EPSILON = 1e-9


@cache
def profile(model: str) -> ModelProfile:
    """Public profile of a model; Inception's profile has its layer graph."""
    path = DATA / MODELS[model]
    return burst_inception.read(path) if model == "inception_v3" else deeppool.read(path)


@cache
def cluster(gpus: int) -> Cluster:
    """GPUs on one non-blocking switch.

    An all-reduce sends the gradients once, as the public planner counts it.
    """
    ring = Link(2 * BYTES_PER_S, 0.0)
    level = Level("switch", gpus, BYTES_PER_S, LATENCY_S, shared=False, all_reduce=ring)
    return Cluster("a100s", (level,), "a100-40gb")


def timed(row: dict[str, Any], runs: int) -> tuple[float, BurstPlan]:
    """Least CPU time of `runs` searches, and the plan."""
    least, plan = float("inf"), None
    for _ in range(runs):
        start = time.process_time()
        plan = plan_burst(profile(row["model"]), cluster(row["gpus"]), row["batch"], BurstLimits(limit_of(row)))
        least = min(least, time.process_time() - start)
    assert plan is not None
    return least, plan


def limit_of(row: dict[str, Any]) -> float | None:
    """Amplification limit of a row; None for no limit."""
    return None if row["lim"] == NO_LIMIT else row["lim"]


@dataclass(frozen=True)
class Compared:
    """One answer of the public planner compared with ours; times are seconds of an iteration.

    Attributes:
        theirs: public plan under our costs; None if it cannot run.
        same: our plan under the amplification of `theirs`; None unless that exceeds the limit.
        faults: what is wrong with the public plan, in words.
    """

    row: dict[str, Any]
    ours: BurstPlan
    theirs: BurstPlan | None
    same: BurstPlan | None
    faults: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Verdict: which plan is better, and if theirs seems faster, whether it breaks its limit."""
        if self.theirs is None:
            return "theirs cannot be run"
        if self.ours.iteration_s <= self.theirs.iteration_s * (1 + EPSILON):
            return "ours at least as fast"
        if self.same is not None and self.same.iteration_s <= self.theirs.iteration_s * (1 + EPSILON):
            return "theirs breaks the limit"
        return "theirs faster"


def compared(row: dict[str, Any]) -> Compared:
    """Compare both plans of one row."""
    job, where, batch, limit = profile(row["model"]), cluster(row["gpus"]), row["batch"], limit_of(row)
    ours = plan_burst(job, where, batch, BurstLimits(limit))
    faults = []
    if row["missing_profile_entries"]:
        free = "filled from the nearest size" if row["pad"] else "free"
        faults.append(f"{row['missing_profile_entries']} entries {free}")
    if row["max_gpus"] > row["gpus"]:
        faults.append(f"{row['max_gpus']} GPUs of {row['gpus']}")
    try:
        theirs = plan_burst(
            job,
            where,
            batch,
            BurstLimits(None, memory_bytes=float("inf")),
            DeviceCounts(only=dict(enumerate(row["layer_gpus"]))),
        )
    except InputError as error:
        return Compared(row, ours, None, None, (*faults, str(error)))
    if theirs.peak_bytes > where.capacity_bytes(0):
        faults.append(f"{theirs.peak_bytes / 2**30:.0f} GiB on a GPU")
    worst = max(layer.amplification for layer in theirs.layers)
    same = None
    if limit is not None and worst > limit * (1 + EPSILON):
        faults.append(f"a layer at {worst:.3g}")
        same = plan_burst(job, where, batch, BurstLimits(worst))
    if ours.iteration_s > ours.data_parallel_s * (1 + EPSILON):
        assert any("slower than data parallelism" in remark for remark in ours.remarks)
    return Compared(row, ours, theirs, same, tuple(faults))


def answers(models: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the public planner's answers, without data parallelism."""
    for row in json.loads((DATA / "reference.json").read_text()):
        if row["model"] in models and not row["dp"]:
            yield row


def searches(models: list[str]) -> None:
    """Print our search times and the public planner's."""
    print(f"{'model':14}{'GPUs':>6}{'batch':>7}{'limit':>7}{'ours':>10}{'public':>10}{'goal':>8}   ours / public plan")
    for row in answers(models):
        if row["pad"] or row["batch"] != row["gpus"] * (4 if row["gpus"] == 8 else 1):
            continue
        seconds, plan = timed(row, 5)
        goal = f"{GOALS_S[row['model']]:.2f} s" if row["gpus"] == 1024 else ""
        print(
            f"{row['model']:14}{row['gpus']:>6}{row['batch']:>7}{row['lim']:>7g}{seconds * 1e3:>7.1f} ms"
            f"{row['search_s'] * 1e3:>7.1f} ms{goal:>8}   {plan.iteration_s * 1e3:.2f} ms, amplification {plan.amplification:.2f}"
        )


def comparison(models: list[str], every: bool) -> None:
    """Print both plans of every answer, or only a summary.

    Arguments:
        every: True to print every answer.
    """
    counts: dict[str, Counter[str]] = {model: Counter() for model in models}
    gains: dict[str, list[float]] = {model: [] for model in models}
    slower: Counter[str] = Counter()
    if every:
        print(f"{'model':14}{'GPUs':>6}{'batch':>7}{'limit':>7}{'public':>9}{'= ours':>9}{'ours':>9}  verdict (faults)")
    for row in answers(models):
        found = compared(row)
        counts[row["model"]][found.verdict] += 1
        if found.theirs is not None and found.verdict != "theirs breaks the limit":
            gains[row["model"]].append(found.theirs.iteration_s / found.ours.iteration_s)
        slower[row["model"]] += found.ours.iteration_s > found.ours.data_parallel_s * (1 + EPSILON)
        if every:
            theirs = f"{found.theirs.iteration_s * 1e3:9.2f}" if found.theirs else f"{'-':>9}"
            print(
                f"{row['model']:14}{row['gpus']:>6}{row['batch']:>7}{row['lim']:>7g}{row['iter_ms']:>9.2f}{theirs}"
                f"{found.ours.iteration_s * 1e3:>9.2f}  {found.verdict}{' (' + '; '.join(found.faults) + ')' if found.faults else ''}"
            )
    for model in models:
        ratios = sorted(gains[model])
        print(
            f"{model}: {dict(counts[model])}; theirs takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as long as ours, in the "
            f"middle {ratios[len(ratios) // 2]:.2f}; {slower[model]} of ours are slower than data parallelism, and say so"
        )


def printed(models: list[str]) -> None:
    """Print Algorithm 1 as printed in the paper against the exact search.

    Answers with filled profile entries are left out.
    """
    print(
        f"{'model':14}{'GPUs':>6}{'batch':>7}{'limit':>7}{'printed':>10}{'exact':>10}  layers above the limit as printed, the worst"
    )
    for row in answers(models):
        if row["pad"] or row["lim"] == NO_LIMIT or row["batch"] != row["gpus"]:
            continue
        exact = plan_burst(profile(row["model"]), cluster(row["gpus"]), row["batch"], BurstLimits(row["lim"]))
        greedy = plan_printed(profile(row["model"]), cluster(row["gpus"]), row["batch"], row["lim"])
        above = [one.amplification for one in greedy.layers if one.amplification > row["lim"] * (1 + EPSILON)]
        worst = f"{len(above)}, {max(above):.1f}" if above else "none"
        print(
            f"{row['model']:14}{row['gpus']:>6}{row['batch']:>7}{row['lim']:>7g}{greedy.iteration_s * 1e3:>7.2f} ms"
            f"{exact.iteration_s * 1e3:>7.2f} ms  {worst}"
        )


def whole(models: list[str]) -> None:
    """Print plans under a limit on every layer against plans under the same limit on the whole plan."""
    print(
        f"{'model':14}{'GPUs':>6}{'limit':>7}{'of every layer':>24}{'of the whole':>24}{'searched':>10}{'parallel':>10}"
    )
    for model in models:
        for gpus in (64, 1024):
            for limit in (1.5, 2.0, 4.0):
                every = plan_burst(profile(model), cluster(gpus), gpus, BurstLimits(limit))
                start = time.process_time()
                plan = plan_burst(profile(model), cluster(gpus), gpus, BurstLimits(None, limit))
                took = time.process_time() - start
                both = "".join(
                    f"{one.iteration_s * 1e3:>11.2f} ms, {one.amplification:>4.2f} x" for one in (every, plan)
                )
                print(f"{model:14}{gpus:>6}{limit:>7g}{both}{took:>8.2f} s{plan.data_parallel_s * 1e3:>7.2f} ms")


def simulated(models: list[str]) -> None:
    """Print our plans of models without branches for 8 GPUs against simulations of their programs."""
    print(
        f"{'model':14}{'batch':>6}{'limit':>7}{'planned':>12}{'of it sync':>12}{'simulated':>12}  amplification, both; devices"
    )
    for row in answers([model for model in models if model != "inception_v3"]):
        if row["pad"] or row["gpus"] != 8 or row["missing_profile_entries"]:
            continue
        plan = plan_burst(profile(row["model"]), cluster(8), row["batch"], BurstLimits(limit_of(row)))
        space = SearchSpace(profile(row["model"]), cluster(8), row["batch"])
        microbatches = lcm(*(len(run.devices) for run in plan.runs))
        stages = tuple(
            replace(cut(space, run.layers, run.devices), merged=microbatches // len(run.devices)) for run in plan.runs
        )
        choice = Candidate(stages, row["batch"] // microbatches, microbatches)
        took_s = predict_choice(space, "burst_parallel", choice).iteration_s
        used_s = sum(active_s(trace_of_choice(space, "burst_parallel", choice)).values())
        spent = f"{plan.amplification:.3f} {used_s * plan.amplification / plan.gpu_s:.3f}"
        parts = (plan.iteration_s, sum(layer.sync_s for layer in plan.layers), took_s)
        figures = "".join(f"{part * 1e3:>9.2f} ms" for part in parts)
        print(
            f"{row['model']:14}{row['batch']:>6}{row['lim']:>7g}{figures}  {spent}  {[len(run.devices) for run in plan.runs]}"
        )


def searched(models: list[str]) -> None:
    """Print the plans that `hocket plan` finds on 8 GPUs under amplification limits.

    The column `every layer` is the burst-parallel plan with the same limit on every layer.
    """
    print(f"{'model':14}{'limit':>7}{'amplif.':>9}{'iteration':>12}{'every layer':>13}  plan, of choices, in seconds")
    for model in models:
        job, where = profile(model), cluster(8)
        for limit in (1.0, 1.1, 1.25, 1.5, 2.0, float("inf")):
            found = search(job, where, PlanRequest(32, amplification_limit=limit))
            best, every = found.best, plan_burst(job, where, 32, BurstLimits(limit), bucket_bytes=DEFAULT_BUCKET_BYTES)
            figures = f"{best.amplification:>9.2f}{best.iteration_s * 1e3:>9.2f} ms{every.iteration_s * 1e3:>10.2f} ms"
            print(f"{model:14}{limit:>7g}{figures}  {best.label}, {found.considered:,}, {found.search_s:.1f} s")


def main() -> None:
    """Print search times and a comparison of plans, or the table of one option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(MODELS), help="evaluate only this model")
    parser.add_argument("--rows", action="store_true", help="print every answer of the public planner")
    parser.add_argument("--printed", action="store_true", help="compare Algorithm 1 as printed with the exact search")
    parser.add_argument(
        "--whole", action="store_true", help="compare a limit on the whole plan with the same limit on every layer"
    )
    parser.add_argument(
        "--simulated", action="store_true", help="compare plans of chains with their simulated programs"
    )
    parser.add_argument("--searched", action="store_true", help="print the best plans of all strategies under limits")
    arguments = parser.parse_args()
    models = [arguments.model] if arguments.model else list(MODELS)
    modes = {"printed": printed, "whole": whole, "simulated": simulated, "searched": searched}
    for name, show in modes.items():
        if getattr(arguments, name):
            show(models)
            return
    searches(models)
    comparison(models, arguments.rows)


if __name__ == "__main__":
    main()
