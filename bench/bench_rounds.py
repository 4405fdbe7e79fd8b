"""CPU time of a round of the cluster scheduler's core: selection, placement and leases, apart from the allocation.

    python bench/bench_rounds.py

Jobs have scale factors 1 to 8. Three worker types have half as many workers as the jobs ask for. Shares are by max-min
fairness. The figure is the median CPU time of 50 rounds, in two settings: one job in ten is replaced in every round and
the allocation is recomputed, and nothing changes.
"""

import time
from statistics import median

import numpy as np

from hocket.scheduler.core.core import Core
from hocket.scheduler.core.events import JobArrived, JobFinished, RoundEnded
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType
from hocket.scheduler.policies import max_min_fairness

ROUNDS = 50
KINDS = 26  # kinds of jobs, as in the published workloads


class Policy:
    """Max-min fairness with a timer.

    With pairs, every job shares workers with its neighbor for half of its time.
    """

    def __init__(self, pairs: bool) -> None:
        self.pairs, self.cpu_s = pairs, 0.0

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Allocation for a snapshot."""
        began = time.process_time()
        found = max_min_fairness.allocate(snapshot)
        if self.pairs:
            found = self._paired(snapshot, found)
        self.cpu_s += time.process_time() - began
        return found

    def _paired(self, snapshot: Snapshot, found: Allocation) -> Allocation:
        order = np.argsort(snapshot.scale, kind="stable")
        alike = snapshot.scale[order[:-1]] == snapshot.scale[order[1:]]
        a, b = order[:-1][alike], order[1:][alike]
        first = np.repeat(np.minimum(a, b), len(snapshot.columns))
        column = np.tile(np.arange(len(snapshot.columns)), len(a))
        return Allocation(
            np.concatenate([found.first, first]),
            np.concatenate([found.second, np.repeat(np.maximum(a, b), len(snapshot.columns))]),
            np.concatenate([found.column, column]),
            np.concatenate([found.fraction / 2, np.full(len(first), 0.05)]),
            found.objective,
        )


def measure(jobs: int, pairs: bool) -> str:
    """Measure one line of the table."""
    rng = np.random.default_rng(jobs)
    scales = rng.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05])
    steps = rng.random((KINDS, 3)) + 0.1
    each = max(8, int(scales.sum()) // 6 // 8 * 8)
    types = tuple(WorkerType(name, each, 8) for name in ("v100", "p100", "k80"))
    policy = Policy(pairs)
    core = Core(ClusterSpec(types, tuple(Placement(k) for k in range(3))), policy, Settings())
    for k in range(jobs):
        core.handle(JobArrived(Job(str(k), "any", 1e9, int(scales[k])), tuple(steps[k % KINDS].tolist())), 0.0)
    now_s, count, alive = 0.0, jobs, list(range(jobs))
    core.handle(RoundEnded(), now_s)
    found = []
    for changing in (True, False):
        spent = []
        for _ in range(ROUNDS):
            began, policy.cpu_s = time.process_time(), 0.0
            for _ in range(jobs // 10 if changing else 0):
                gone = alive.pop(0)
                core.handle(JobFinished(str(gone)), now_s)
                alive.append(count)
                scale, own = int(scales[count % jobs]), tuple(steps[count % KINDS].tolist())
                core.handle(JobArrived(Job(str(count), "any", 1e9, scale, now_s), own), now_s)
                count += 1
            now_s += core.settings.round_s
            core.handle(RoundEnded(), now_s)
            spent.append(((time.process_time() - began - policy.cpu_s) * 1e3, policy.cpu_s * 1e3))
        found.append([median(column) for column in zip(*spent, strict=True)])
    (changing_ms, policy_ms), (still_ms, _) = found
    kind = "pairs" if pairs else "alone"
    return (
        f"{jobs:6} jobs {kind}: {len(core.leases):5} leases, {len(core.book.entries):6} entries; a round {still_ms:7.2f} ms, "
        f"while jobs come and go {changing_ms:7.2f} ms, beside {policy_ms:7.2f} ms for the allocation"
    )


if __name__ == "__main__":
    for many in (128, 512, 2048):
        for both in (False, True):
            print(measure(many, both), flush=True)
