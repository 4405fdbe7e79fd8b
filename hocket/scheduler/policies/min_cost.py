"""Minimum cost: maximize throughput per dollar.

The objective in Narayanan's dissertation is a sum over jobs of throughput over cost. Taken literally, a job's term is
maximal after any moment on its cheapest type, whatever its share. The policy that Gavel's authors published instead
adds throughput on each type over the type's price, and so does this one: each worker is used where its price buys most
steps. A price is of one worker, independent of the scale factor. Free workers are used before all others
(hourly_cost.py). A linear-fractional objective, total throughput over total cost, is in min_cost_slo.py; it is
meaningful only with deadlines.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.hourly_cost import priced
from hocket.scheduler.solver.lp.session import Session, solved
from hocket.scheduler.solver.lp.to_allocation import answer
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.space_sharing.column_generation import many, sum_of

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 6.4.2"
SHARES, ENTITIES = True, False
_PLACE = "least cost"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation with the maximum throughput per dollar.

    The objective is the sum of throughputs over prices, in steps per second per dollar per hour.

    Raises:
        InputError: no type has a price.
    """
    unlike = many(snapshot)
    if unlike is not None:
        return sum_of(snapshot, unlike, np.tile(1 / priced(snapshot), (unlike.groups, 1)), _PLACE)
    shares = AllocationVariables(snapshot)
    worth = (shares.steps_first + shares.steps_second) / priced(snapshot)[shares.column]
    unit = float(worth.max(initial=0.0)) or 1.0
    solution = solved(session, shares, shares.program(-worth / unit), _PLACE)
    return answer(shares, solution.x, solution.duals, -solution.objective * unit, solution.gap)
