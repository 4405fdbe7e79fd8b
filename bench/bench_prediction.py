"""Predicted and measured iteration times on this machine: many plans of one GPT, on two and three local workers.

    python bench/bench_prediction.py [--steps 24] [--rounds 3] [--workers 2 3] [--sizes 2 4 8] [--scaled]

There is one case for each number of workers, strategy and microbatch size: the planner's best plan. Each round profiles
the job and the links anew, and predicts every plan from that. All plans with the same number of workers are trained in
turns (hocket/training/calibrate/train_in_turns.py), so that they see the same machine. Medians over rounds are
compared.

Between turns a microbatch of the job is trained on all workers. The printed pace of the machine is the ratio of its
time to the profiled time; it includes waits for cores. With `--scaled`, predictions are scaled by that pace.

The script prints one JSON line per plan: the iteration time, and the errors of peak tensor memory of all rounds. Then
it prints the mean absolute error, the least and greatest memory error, and how well the order of plans was predicted:

- Spearman's rank correlation over all plans;
- share of pairs in the predicted order, of pairs that differ by at least 5 or 10 % and had the same order in every
  round;
- slowdown of the plan that was predicted to be the fastest, relative to the plan that was the fastest.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hocket.cli.train.demo import JOB
from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.planning.predict.at_pace import paced_iteration_s
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.job.job_file import load_job
from hocket.profiling.measure.background_load import usual_neighbours
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.training.calibrate.local_links import measure_local
from hocket.training.calibrate.train_in_turns import Turned, Turns, train_in_turns

SIZES = (2, 4, 8)
STRATEGIES = ("data_parallel", "model_parallel", "gpipe", "flush", "interleaved", "pipedream", "two_bw")
CLEAR = (1.05, 1.10)
TURN = 8  # steps of a turn


@dataclass
class Case:
    """One plan and its figures of each round.

    Attributes:
        memory: relative errors of peak memory of each device.
        paces: machine's pace in each round.
    """

    name: str
    plan: Plan
    predicted_s: list[float] = field(default_factory=list)
    measured_s: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)

    def planned(self, profile: ModelProfile, cluster: Cluster) -> Plan:
        """The plan with newly measured links and profile."""
        return replace(self.plan, cluster=cluster, profile_digest=profile.digest)

    def add(self, plan: Plan, profile: ModelProfile, found: Turned, scaled: bool) -> None:
        """Add the predicted and the measured iteration time of one round.

        Arguments:
            scaled: True to scale the prediction by the machine's pace.
        """
        predicted = predict_iteration(plan, profile)
        self.paces.append(statistics.fmean(found.slower.values()))
        paced_s = paced_iteration_s(plan, profile, found.slower)
        self.predicted_s.append(paced_s if scaled else predicted.iteration_s)
        self.measured_s.append(found.summary.iteration_s or float("nan"))
        peaks = found.summary.peak_memory_bytes
        self.memory += [predicted.peak_memory_bytes[d] / peak - 1 for d, peak in peaks.items()]


def plans(profile: ModelProfile, cluster: Cluster, batch_size: int, sizes: Sequence[int]) -> list[Case]:
    """Best plan of each strategy and microbatch size that uses all devices."""
    found = []
    for strategy, size in itertools.product(STRATEGIES, sizes):
        request = PlanRequest(batch_size, strategies=(strategy,), microbatch_sizes=(size,))
        for candidate in search(profile, cluster, request, profile_path="profile.json").candidates:
            if len({d for stage in candidate.plan.stages for d in stage.devices}) == cluster.devices:
                label = f"{cluster.devices} workers, {strategy} {candidate.config}, microbatch {size}"
                found.append(Case(label, candidate.plan))
                break
    return found


def run(rounds: int, steps: int, workers: Sequence[int], sizes: Sequence[int], scaled: bool) -> list[Case]:
    """Run all rounds."""
    job, cases = load_job(JOB), dict[int, list[Case]]()
    for _ in range(rounds):
        profile = measure(job, (1, *SIZES), MeasureRequest(budget_s=30, neighbours=usual_neighbours()))
        for count in workers:
            cluster = measure_local(count)
            if count not in cases:
                cases[count] = plans(profile, cluster, job.batch_size, sizes)
            now = [case.planned(profile, cluster) for case in cases[count]]
            found = train_in_turns(JOB, now, steps=steps, turns=Turns(min(TURN, steps), profile))
            for case, plan, turned in zip(cases[count], now, found, strict=True):
                case.add(plan, profile, turned, scaled)
    return [case for own in cases.values() for case in own]


def order(cases: Sequence[Case]) -> dict[str, float]:
    """Figures of the predicted order of plans; see the module's docstring."""
    believed = [statistics.median(case.predicted_s) for case in cases]
    real = [statistics.median(case.measured_s) for case in cases]
    ranks = [np.argsort(np.argsort(seconds)).tolist() for seconds in (believed, real)]
    found = {"rank_correlation": statistics.correlation(*ranks)}
    for clear in CLEAR:
        kept = []
        for a, b in itertools.combinations(range(len(cases)), 2):
            firsts = {x < y for x, y in zip(cases[a].measured_s, cases[b].measured_s, strict=True)}
            if max(real[a], real[b]) > clear * min(real[a], real[b]) and len(firsts) == 1:
                kept.append((believed[a] < believed[b]) == (real[a] < real[b]))
        found[f"order_kept_{clear - 1:.0%}"] = statistics.fmean(kept) if kept else 1.0
        found[f"pairs_{clear - 1:.0%}"] = len(kept)
    found["predicted_fastest_is_slower_by"] = real[believed.index(min(believed))] / min(real) - 1
    return found


def main() -> None:
    """Print one line per plan, and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="microbatch sizes of the plans")
    parser.add_argument("--scaled", action="store_true", help="scale predictions by the machine's pace")
    given = parser.parse_args()
    pairs, memory = [], []
    cases = run(given.rounds, given.steps, given.workers, given.sizes, given.scaled)
    for case in cases:
        believed, real = statistics.median(case.predicted_s), statistics.median(case.measured_s)
        pairs.append((believed, real))
        memory += case.memory
        row = {
            "plan": case.name,
            "predicted_iteration_s": believed,
            "measured_iteration_s": real,
            "error": believed / real - 1,
            "errors_by_round": [round(a / b - 1, 3) for a, b in zip(case.predicted_s, case.measured_s, strict=True)],
        }
        row["pace_by_round"] = [round(scale, 3) for scale in case.paces]
        rounded = [round(error, 4) for error in case.memory]
        print(json.dumps({**row, "peak_memory_errors": rounded}), flush=True)
    for count in (*given.workers, 0):
        own = [case for case in cases if count in (0, case.plan.cluster.devices)]
        print(json.dumps({"workers": count or "all", "plans": len(own), **order(own)}), flush=True)
    summary_line = {
        "plans": len(pairs),
        "mean_absolute_error": statistics.fmean(abs(a / b - 1) for a, b in pairs),
        "worst_error": max((a / b - 1 for a, b in pairs), key=abs),
        "memory_error_least": min(memory, default=0.0),
        "memory_error_most": max(memory, default=0.0),
    }
    print(json.dumps(summary_line), flush=True)


if __name__ == "__main__":
    main()
