"""Ideal baseline of Figure 5.15b: jobs run exactly as the allocation says, without rounds and leases.

The policy is called at every arrival and at every completion. In between, each job progresses at its effective
throughput: the sum of its throughputs weighted by its fractions of time. No real cluster can do this; rounds
approximate it. Source: section 5.7.5.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from hocket.errors import InternalError
from hocket.scheduler.core.core import Policy
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import ClusterSpec, WorkerType
from hocket.scheduler.simulation.workload import Workload


def ideal_jct_s(
    work: Workload, types: Sequence[WorkerType], table: ThroughputTable, policy: Policy, first: int, last: int
) -> np.ndarray:
    """JCT in seconds of jobs `first` to `last`; other jobs keep arriving until these are finished.

    Raises:
        InternalError: the policy gives no job any time, and no job arrives any more.
    """
    cluster = ClusterSpec(tuple(types), table.columns(types))
    jobs, arrives_s = work.jobs, [job.arrived_s for job in work.jobs]
    steps_per_s = table.throughputs(work.rows(table), cluster)
    remaining = np.array([job.steps for job in jobs])
    finished_s = np.full(len(jobs), np.nan)
    present: list[int] = []
    arrived, now_s, waiting = 0, 0.0, set(range(first, last))
    while waiting:
        while arrived < len(jobs) and arrives_s[arrived] <= now_s:
            present.append(arrived)
            arrived += 1
        rate = np.zeros(len(present))
        if present:
            active = tuple(Active(jobs[k], float(remaining[k]), now_s - arrives_s[k]) for k in present)
            snapshot = Snapshot(cluster.types, cluster.columns, active, steps_per_s[present], now_s=now_s)
            rate = policy(snapshot).throughput(snapshot)
        own = np.array(present, dtype=np.int64)
        ends_s = now_s + np.divide(remaining[own], rate, out=np.full(len(present), inf), where=rate > 0)
        next_s = min(float(ends_s.min(initial=inf)), arrives_s[arrived] if arrived < len(jobs) else inf)
        if next_s == inf:
            raise InternalError("ideal baseline: nobody has any time, and nobody comes")
        done = ends_s <= next_s
        remaining[own] -= rate * (next_s - now_s)
        now_s = next_s
        finished_s[own[done]] = now_s
        waiting.difference_update(own[done].tolist())
        present = own[~done].tolist()
    found: np.ndarray = (finished_s - np.array(arrives_s))[first:last]
    return found
