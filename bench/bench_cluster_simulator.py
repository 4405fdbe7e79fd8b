"""Cluster simulator compared with the public one: average JCT, utilization and speed.

    python -m bench.bench_cluster_simulator [--all] [--long]

--all adds figures of the public simulator for more policies, seeds, arrival rates, solvers, and jobs with several
workers (bench/public_simulator.json, which says how they were measured). --long adds a run of 5,000 jobs with an
allocation at every event.

Times are CPU seconds of this process. Answers and times of the public simulator are read from the data beside the
repository, if it exists. Those times were measured on another machine, so the ratios of speed are rough.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hocket.scheduler.core.core import Policy
from hocket.scheduler.core.policy_by_name import as_published, policy_named
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers import read_workload
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import ClusterRun, jct_s, summary
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.trace_generator import continuous
from hocket.scheduler.simulation.workload import Workload

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "gavel" / "sim"
TYPES = tuple(WorkerType(name, 36) for name in ("v100", "p100", "k80"))
WINDOW = 300, 500


MEASURED = Path(__file__).parent / "public_simulator.json"


class Case(NamedTuple):
    """A policy of ours.

    Attributes:
        name: name of the policy.
        blind: True for the heterogeneity-agnostic version.
        shares: True if jobs may share workers.
    """

    name: str
    blind: bool = False
    shares: bool = False

    def made(self) -> tuple[Policy, SimulatorOptions]:
        """Create a new policy, and the options of its run."""
        policy, options = as_published(self.name, self.blind)
        return policy, replace(options, space_sharing=self.shares)


CASES = {
    "fifo": Case("fifo", blind=True),
    "max_min_fairness": Case("max_min_fairness", blind=True),
    "max_min_fairness_perf": Case("max_min_fairness"),
    "max_min_fairness_packed": Case("max_min_fairness", shares=True),
    "finish_time_fairness": Case("finish_time_fairness", blind=True),
    "finish_time_fairness_perf": Case("finish_time_fairness"),
    "min_total_duration": Case("makespan", blind=True),
    "min_total_duration_perf": Case("makespan"),
    "isolated": Case("isolated"),
    "allox": Case("allox"),
    "gandiva": Case("gandiva", shares=True),
}


def timed(work: Workload, policy: Policy, options: SimulatorOptions) -> tuple[ClusterRun, float]:
    """Simulate, and measure the CPU seconds."""
    began = time.process_time()
    run = simulate(work, TYPES, packaged(), policy, options)
    return run, time.process_time() - began


def compare_with_public() -> None:
    """Print one line per policy, with the public simulator's answer."""
    reference = json.loads((FOLDER / "reference.json").read_text())
    work = read_workload(FOLDER / "single_r4_s0.json")
    first, last = WINDOW
    print(
        f"{'policy':24} {'avg JCT, s':>12} {'public':>10} {'differs':>8} {'used':>6} {'public':>7} {'s':>7} {'public':>7}  faster"
    )
    for name in ("fifo", "max_min_fairness", "max_min_fairness_perf"):
        policy, options = CASES[name].made()
        run, took_s = timed(work, policy, replace(options, first=first, last=last))
        theirs = reference[f"single_r4_s0_{first}_{last}__{name}"]
        jct = jct_s(run.records[first:last]).mean()
        part = jct / theirs["avg_jct_s"] - 1
        print(
            f"{name:24} {jct:12.0f} {theirs['avg_jct_s']:10.0f} {part:8.2%} {summary(run).utilization:6.3f} "
            f"{theirs['utilization']:7.3f} {took_s:7.2f} {theirs['wall_s']:7.1f} {theirs['wall_s'] / took_s:6.1f} x"
        )


def compare_with_measured() -> None:
    """Print one line per run of the public simulator.

    Runs that differ only in the public simulator's solver are one run here.
    """
    print(
        f"{'policy':26} {'workload':21} {'jobs':>9} {'solver':>8} {'avg JCT, s':>10} {'public':>8} {'differs':>8} {'ended':>7} {'s':>6}"
    )
    runs: dict[tuple[str, str, int, int | None], tuple[ClusterRun, float]] = {}
    for row in json.loads(MEASURED.read_text())["rows"]:
        name, workload, first, last = row["policy"], row["workload"], row["first"], row["last"]
        key = name, workload, first, last
        if key not in runs:
            policy, options = CASES[name].made()
            runs[key] = timed(
                read_workload(FOLDER / f"{workload}.json"), policy, replace(options, first=first, last=last)
            )
        run, took_s = runs[key]
        jct = jct_s(run.records[first:last]).mean()
        window = "all" if last is None else f"{first}-{last}"
        print(
            f"{name:26} {workload:21} {window:>9} {row['solver'] or '':>8} {jct:10.0f} {row['avg_jct_s']:8.0f} "
            f"{jct / row['avg_jct_s'] - 1:8.2%} {run.ended_s / row['ended_s'] - 1:7.1%} {took_s:6.2f}",
            flush=True,
        )


def long_trace() -> None:
    """Simulate 5,000 jobs of one worker each, 5.6 per hour on 108 workers."""
    run, took_s = timed(continuous(packaged(), 5000, 5.6, 0), policy_named("max_min_fairness"), SimulatorOptions())
    print(f"5,000 jobs: {took_s:.1f} s, {run.rounds} rounds, {run.allocations} allocations")


def main() -> None:
    """Print all tables."""
    if (FOLDER / "reference.json").exists():
        compare_with_public()
    else:
        print(f"No public answers at {FOLDER}: nothing to compare with.")
    if "--all" in sys.argv[1:] and FOLDER.exists():
        compare_with_measured()
    if "--long" in sys.argv[1:]:
        long_trace()


if __name__ == "__main__":
    main()
