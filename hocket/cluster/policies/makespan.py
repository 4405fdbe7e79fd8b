"""Makespan: all jobs are finished as early as can be.

One program: the least part of any job's remaining steps that is done in a unit of time is to be as large as can be. The
public policy looks for the makespan by halving, down to 5 %; this one is the optimum.
"""

import numpy as np

from hocket.cluster.allocation import Allocation
from hocket.cluster.policies._answer import answer
from hocket.cluster.policies._lp import solve
from hocket.cluster.policies._shares import Rows, Shares
from hocket.cluster.snapshot import Snapshot

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 5.4.2"


def allocate(snapshot: Snapshot) -> Allocation:
    """The allocation; its objective is the seconds until the last job that can run is finished."""
    shares = Shares(snapshot, (snapshot.remaining_steps,))
    if not shares.groups:
        return answer(shares, np.zeros(0), np.zeros(len(snapshot.types)), 0.0, 0.0)
    groups, variables, steps = shares.throughput
    remaining = snapshot.remaining_steps[shares.member]
    count, least = shares.groups, shares.variables
    fastest = np.zeros(count)
    np.maximum.at(fastest, groups, steps * shares.count[groups])
    alone_s = remaining / fastest
    # A time of the right size, so that the program's figures are near 1: of the longest job, or of all work on all workers.
    unit_s = max(alone_s.max(), (alone_s * shares.count * shares.scale).sum() / snapshot.workers.sum())
    rows = Rows(
        np.concatenate([groups, np.arange(count)]),
        np.concatenate([variables, np.full(count, least)]),
        np.concatenate([steps * unit_s / remaining[groups], np.full(count, -1.0)]),
        np.zeros(count),
        np.full(count, np.inf),
    )
    most = float((unit_s / alone_s).min())
    cost = np.zeros(shares.variables + 1)
    cost[least] = -1.0
    solution = solve(shares.program(cost, rows, extra=((0.0, most),)), "makespan")
    done = -solution.objective
    return answer(shares, solution.x, solution.duals, float(unit_s / done), solution.gap / done)
