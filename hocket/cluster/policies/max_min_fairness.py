"""Max-min fairness, or least attained service: the job that gets least, relative to its due, gets as much as it can.

A job's due is its throughput with an equal share of time on every worker. What it gets is divided by its due and by its weight,
and multiplied by its scale factor.
"""

import numpy as np

from hocket.cluster.allocation import Allocation
from hocket.cluster.policies._answer import answer
from hocket.cluster.policies._shares import Rows, Shares
from hocket.cluster.session import Session, answered, solved
from hocket.cluster.snapshot import Snapshot

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 5.4.1; least attained service: Tiresias (Gu et al. 2019)"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the least normalised throughput of any job that can run."""
    return answered(session, snapshot, lambda: _allocate(snapshot, session))


def _allocate(snapshot: Snapshot, session: Session | None) -> Allocation:
    shares = Shares(snapshot, (snapshot.weights,))
    groups, variables, steps = shares.throughput
    due = equal_share(snapshot)[shares.member] * snapshot.weights[shares.member] / shares.scale
    count, least = shares.groups, shares.variables
    rows = Rows(
        np.concatenate([groups, np.arange(count)]),
        np.concatenate([variables, np.full(count, least)]),
        np.concatenate([steps / due[groups], np.full(count, -1.0)]),
        np.zeros(count),
        np.full(count, np.inf),
    )
    cost = np.zeros(shares.variables + 1)
    cost[least] = -1.0
    most = float((np.bincount(groups, steps, count) * shares.count / due).max(initial=0.0))
    solution = solved(session, shares, shares.program(cost, rows, extra=((0.0, most),)), "max-min fairness")
    return answer(shares, solution.x, solution.duals, float(solution.x[least]), solution.gap)


def equal_share(snapshot: Snapshot) -> np.ndarray:
    """Steps a second of each job with an equal share of time on every worker, as it runs best on each; shape (jobs,)."""
    best = np.zeros((len(snapshot.jobs), len(snapshot.types)))
    for column, own in enumerate(snapshot.columns):
        np.maximum(best[:, own.type], snapshot.throughputs[:, column], out=best[:, own.type])
    return best @ (snapshot.workers / max(snapshot.workers.sum(), 1.0))
