"""Speed of the policies compared with the public ones, and with a plain cvxpy formulation in the same run.

    python bench/bench_policies.py [--largest 2048] [--only WORD] [--unlike]

Each row of the first table is a public policy and a snapshot. It has the CPU milliseconds of `allocate` (least of a few
runs, each on a fresh snapshot without cached state), the public policy's seconds on that snapshot (cvxpy 1.1 with ECOS,
one core, from the published data), their ratio, the required ratio, and our objective over the public one. The second
table is for cvxpy, if it is installed. --unlike adds snapshots in which all jobs differ: a cold start, a start after
one arrival or departure, and all pairs of jobs.

The required speedup is 10; it is 100 if the public policy took more than 10 seconds. A "<" marks rows that miss it. The
time to build the snapshot is not counted, because the public policies are given tables; docs/explanation/gavel.md lists
that time and the rest. The time to load numba is not counted either. A process loads it once, after some calls of
strict queues, so those rows are called a few times before they are timed.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported: one core, as for the public figures

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import _plain_cvxpy as plain
import numpy as np

from hocket.scheduler.core.heterogeneity_agnostic import agnostic
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Entity, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.readers import gavel_snapshot, gavel_throughputs
from hocket.scheduler.solver.lp.session import Session
from hocket.util import registry

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "gavel"
MOST_RUNS, ENOUGH_S = 30, 1.0
WARM_UP_CALLS = 20  # calls of a strict queue before timing: by then its loop is compiled
COST = "max_sum_throughput_normalized_by_cost"


# Policies that are timed with all pairs of jobs; with thousands of jobs that all differ; with jobs of about equal work.
SHARE = (
    "max_min_fairness", "max_sum_throughput", "min_cost", "fifo", "makespan", "finish_time_fairness", "min_cost_slo",
)  # fmt: skip
DIFFERENT = (*SHARE, "makespan_budget", "water_filling", "hierarchical")
PACED = ("makespan", "finish_time_fairness", "makespan_budget")


@dataclass(frozen=True)
class Case:
    """A public policy and ours.

    Attributes:
        public: name of the public policy.
        ours: name of our policy.
        objective_key: key of our objective in the public policy's evaluation; empty for none.
        pairs: True if jobs may share workers.
        blind: True for the heterogeneity-agnostic version.
        mixed: True for entities with different policies.
    """

    public: str
    ours: str
    objective_key: str
    pairs: bool = False
    blind: bool = False
    mixed: bool = False
    waited: float = 1.0  # fraction of the time since arrival that the public policy counts
    strict: bool = False  # strict queue, as in the public policy


CASES = (
    Case("max_min_fairness", "max_min_fairness", "min_maxmin_obj_agnostic", blind=True),
    Case("max_min_fairness_perf", "max_min_fairness", "min_maxmin_obj"),
    Case("max_min_fairness_packed", "max_min_fairness", "min_maxmin_obj", pairs=True),
    Case("max_min_fairness_packed_jobtype", "max_min_fairness", "min_maxmin_obj", pairs=True),
    Case("min_total_duration", "makespan", "", blind=True),
    Case("min_total_duration_perf", "makespan", "makespan_s"),
    Case("min_total_duration_packed", "makespan", "makespan_s", pairs=True),
    Case("max_sum_throughput_perf", "max_sum_throughput", "sum_throughput"),
    Case("finish_time_fairness", "finish_time_fairness", "", blind=True),
    Case("finish_time_fairness_perf", "finish_time_fairness", "rho_max"),
    Case("finish_time_fairness_packed", "finish_time_fairness", "rho_max", pairs=True),
    Case(f"{COST}_perf", "min_cost", "sum_throughput_per_cost"),
    Case(f"{COST}_perf_SLOs", "min_cost_slo", "sum_throughput_per_cost", waited=0.0),
    Case(f"{COST}_packed_SLOs", "min_cost_slo", "sum_throughput_per_cost", pairs=True, waited=0.0),
    Case("wf@none", "water_filling", "", blind=True),
    Case("wf_perf@none", "water_filling", "min_maxmin_obj"),
    Case("wf_packed@none", "water_filling", "", pairs=True),
    Case("wf_perf@fair", "hierarchical", ""),
    Case("wf_perf@mixed", "hierarchical", "", mixed=True),
    Case("wf_packed@fair", "hierarchical", "", pairs=True),
    Case("allox", "allox", ""),
    Case("gandiva", "gandiva", "", pairs=True),
    Case("fifo", "fifo", "", blind=True, strict=True),
    Case("fifo_perf", "fifo", "", strict=True),
    Case("fifo_packed", "fifo", "", pairs=True, strict=True),
    Case("isolated", "isolated", "min_maxmin_obj"),
)


def best_of(call: Callable[[Snapshot], Allocation], snapshot: Snapshot) -> tuple[float, Allocation]:
    """Least CPU seconds of some runs, each on a snapshot without cached state."""
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) < MOST_RUNS and sum(taken) < ENOUGH_S):
        fresh = replace(snapshot)
        start = time.process_time()
        found = call(fresh)
        taken.append(time.process_time() - start)
    return min(taken), found


def compare_with_public(largest: int, only: str) -> None:
    """Print one line per policy and snapshot."""
    references = json.loads((FOLDER / "policies" / "reference.json").read_text())
    table = gavel_throughputs.read(FOLDER / "simulation_throughputs.json")
    names = registry.names("hocket.scheduler.policies")
    print(f"{'public policy':50}{'snapshot':22}{'ours ms':>10}{'public s':>10}{'ratio':>9}{'asked':>6}  objective")
    for case in CASES:
        if only not in case.public or case.ours not in names:
            continue
        policy = registry.load("hocket.scheduler.policies", case.ours, "policy")
        for row in references:
            if row["policy"] == case.public and row["ok"] and row["N"] <= largest:
                _line(case, policy, row, table)


def _line(case: Case, policy: ModuleType, row: dict[str, Any], table: Any) -> None:
    path = FOLDER / "policies" / row["input"]
    snapshot = gavel_snapshot.read(path, table if case.pairs else None, mixed=case.mixed)
    # The public policies were called once: their counters from call to call are 0.
    newly = (replace(active, elapsed_s=active.elapsed_s * case.waited, isolated_s=0.0) for active in snapshot.jobs)
    snapshot = replace(snapshot, jobs=tuple(newly))
    if case.blind:
        snapshot = agnostic(snapshot, [own.name for own in snapshot.types].index("v100"))
    call = partial(policy.allocate, strict=True) if case.strict else policy.allocate
    for _ in range(WARM_UP_CALLS if case.strict else 0):
        call(replace(snapshot))
    seconds, found = best_of(call, snapshot)
    ratio, required = row["wall_median"] / seconds, 100 if row["wall_median"] > 10 else 10
    quality = f"{found.objective / row['eval'][case.objective_key]:.9f}" if case.objective_key else "-"
    short = "" if ratio >= required else " <"
    name = row["input"].removesuffix(".json")
    print(
        f"{case.public:50}{name:22}{seconds * 1e3:>10.4g}{row['wall_median']:>10.4g}"
        f"{ratio:>9.1f}{required:>6}  {quality}{short}"
    )


def compare_with_cvxpy(largest: int) -> None:
    """Print the comparison with plain cvxpy formulations."""
    version = plain.available()
    if not version:
        print("\ncvxpy is not installed: nothing to compare with (pip install cvxpy)")
        return
    print(
        f"\n{'policy':22}{'snapshot':22}{'ours ms':>10}{'cvxpy ' + version + ' ms':>18}{'ratio':>9}  solver, objective"
    )
    for name in ("max_min_fairness", "makespan", "max_sum_throughput"):
        policy = registry.load("hocket.scheduler.policies", name, "policy")
        for label, snapshot in _plain_snapshots(largest):
            seconds, found = best_of(policy.allocate, snapshot)
            for solver in ("HIGHS", "CLARABEL"):
                value, theirs = getattr(plain, name)(snapshot, solver)
                print(
                    f"{name:22}{label:22}{seconds * 1e3:>10.2f}{theirs * 1e3:>18.1f}{theirs / seconds:>9.1f}"
                    f"  {solver} {found.objective / value:.9f}"
                )


def _plain_snapshots(largest: int) -> Iterator[tuple[str, Snapshot]]:
    for size in (32, 128, 512, 2048):
        if size <= largest:
            yield f"N{size}_seed2_multi", gavel_snapshot.read(FOLDER / "policies" / f"N{size}_seed2_multi.json")
    yield "256 unlike, 3 types", unlike(256, 3)


def unlike(jobs: int, types: int, seed: int = 0, even: bool = False) -> Snapshot:
    """Snapshot in which all jobs differ, with workers for three of four jobs.

    Jobs are of the public kinds, and each has its own random factor for every type.

    Arguments:
        even: True for jobs of about equal work, so that workers limit the pace. False for jobs of very different work,
            so that
            the longest job does.
    """
    rng = np.random.default_rng(seed)
    known = gavel_snapshot.read(FOLDER / "policies" / "N2048_seed2_single.json").throughputs
    steps = known[rng.integers(0, len(known), jobs)][:, np.arange(types) % known.shape[1]]
    steps = steps * rng.uniform(0.5, 2, types) * rng.uniform(0.5, 1.5, (jobs, 1)) * rng.uniform(0.9, 1.1, (jobs, types))
    work = steps.max(axis=1) * rng.uniform(2e4, 4e4, jobs) if even else rng.uniform(1e3, 1e6, jobs)
    slo_s = work / steps.max(axis=1) * rng.uniform(2.2, 20, jobs)
    due = rng.random(jobs) < 0.6
    each = tuple(
        Active(
            Job(str(k), "one of its own", float(s), slo_s=float(t) if has else None, entity=f"team {k % 8}"), float(s)
        )
        for k, (s, t, has) in enumerate(zip(work, slo_s, due, strict=True))
    )
    prices = rng.uniform(0.3, 3, types).tolist()
    kinds = tuple(WorkerType(f"type {k}", jobs * 3 // 4 // types, 1, price) for k, price in enumerate(prices))
    teams = tuple(Entity(f"team {k}", 1.0 + k % 3) for k in range(8))
    return Snapshot(kinds, tuple(Placement(k) for k in range(types)), each, steps, None, teams)


def _with_budget(snapshot: Snapshot) -> Snapshot:
    """Snapshot with a budget of 97 % of the cost of the shortest makespan, so that the makespan gets longer."""
    policy = registry.load("hocket.scheduler.policies", "makespan_budget", "policy")
    found = policy.allocate(snapshot)
    paid_usd = (
        (snapshot.prices[found.column] * snapshot.scale[found.first] * found.fraction).sum() * found.objective / 3600
    )
    return replace(snapshot, budget_usd=float(paid_usd) * 0.97)


def all_different() -> None:
    """Print times of a cold start, and of warm starts after one job left or arrived."""
    print(
        f"\n{'policy':28}{'jobs':>8}{'types':>6}{'cold ms':>10}{'one leaves or comes: median ms':>32}{'worst':>8}  gap"
    )
    for jobs, types, events in ((2048, 3, 10), (2048, 8, 10), (10_000, 8, 2)):
        for name in DIFFERENT:
            for even in (False, True) if name in PACED else (False,):
                if even or name != "makespan_budget":
                    _events(name, jobs, types, events, even)


def _events(name: str, jobs: int, types: int, events: int, even: bool) -> None:
    policy = registry.load("hocket.scheduler.policies", name, "policy")
    full = unlike(jobs + events, types, 0, even)
    if name == "makespan_budget":
        full = _with_budget(full)
    rng, session = np.random.default_rng(1), Session()
    present, taken, gap = list(range(jobs)), [], 0.0
    for event in range(events + 1):
        if event % 2:
            present.append(jobs + event - 1)
        elif event:
            present.pop(int(rng.integers(len(present))))
        snapshot = replace(full, jobs=tuple(full.jobs[j] for j in present), throughputs=full.throughputs[present])
        start = time.process_time()
        found = policy.allocate(snapshot, session)
        taken.append((time.process_time() - start) * 1e3)
        gap = max(gap, found.gap)
    cold, warm = taken[0], taken[1:]
    label = f"{name}, even" if even else name
    print(f"{label:28}{jobs:>8}{types:>6}{cold:>10.1f}{np.median(warm):>32.1f}{max(warm):>8.1f}  {gap:.0e}", flush=True)


def all_different_with_pairs() -> None:
    """Print times with all pairs of jobs that differ."""
    table = gavel_throughputs.read(FOLDER / "simulation_throughputs.json")
    known = gavel_snapshot.read(FOLDER / "policies" / "N2048_seed2_single.json", table)
    factors = np.random.default_rng(0).uniform(0.9, 1.1, known.throughputs.shape)
    snapshot = replace(known, throughputs=known.throughputs * factors)
    print(f"\n{'policy':22}{'jobs':>8}{'types':>6}{'all pairs: s':>14}  gap, objective over that without pairs")
    for name in SHARE:
        policy = registry.load("hocket.scheduler.policies", name, "policy")
        start = time.process_time()
        found = policy.allocate(snapshot)
        taken = time.process_time() - start
        alone = policy.allocate(replace(snapshot, pairs=None)).objective
        print(
            f"{name:22}{len(snapshot.jobs):>8}{len(snapshot.types):>6}{taken:>14.2f}  "
            f"{found.gap:.0e}, {found.objective / alone:.4f}"
        )


def main() -> None:
    """Print the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=512, help="largest number of jobs of a snapshot (default 512)")
    parser.add_argument("--only", default="", help="run only public policies with this text in their names")
    parser.add_argument("--unlike", action="store_true", help="also run snapshots in which all jobs differ")
    arguments = parser.parse_args()
    if not FOLDER.is_dir():
        print("the public snapshots do not lie beside the repository: nothing to compare with")
        return
    compare_with_public(arguments.largest, arguments.only)
    if not arguments.only:
        compare_with_cvxpy(arguments.largest)
    if arguments.unlike:
        all_different()
        all_different_with_pairs()


if __name__ == "__main__":
    main()
