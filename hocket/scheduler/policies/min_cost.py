"""Least cost: as much throughput for a dollar as there can be.

The dissertation's objective is a sum over jobs of throughput over cost; read so, a moment on its cheapest type makes a job's
term as large as it gets, whatever its share. The public policy adds up throughput on each type over the type's price, and this
does the same: every worker is to be where its price buys most steps. A price is that of one worker, whatever the scale factor;
workers that cost nothing are taken before all others (hourly_cost.py).
A program that is linear over linear, all throughput over all cost, is in min_cost_slo.py: it makes sense only with deadlines.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.hourly_cost import priced
from hocket.scheduler.solver.lp.session import Session, answered, solved
from hocket.scheduler.solver.lp.to_allocation import answer
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.space_sharing.column_generation import many, sum_of

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 6.4.2"
_PLACE = "least cost"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the sum of throughputs over prices, steps a second for a dollar an hour.

    Raises:
        InputError: no type has a price.
    """
    return answered(session, snapshot, lambda: _allocate(snapshot, session))


def _allocate(snapshot: Snapshot, session: Session | None) -> Allocation:
    unlike = many(snapshot)
    if unlike is not None:
        return sum_of(snapshot, unlike, np.tile(1 / priced(snapshot), (unlike.groups, 1)), _PLACE)
    shares = AllocationVariables(snapshot)
    worth = (shares.steps_first + shares.steps_second) / priced(snapshot)[shares.column]
    unit = float(worth.max(initial=0.0)) or 1.0
    solution = solved(session, shares, shares.program(-worth / unit), _PLACE)
    return answer(shares, solution.x, solution.duals, -solution.objective * unit, solution.gap)
