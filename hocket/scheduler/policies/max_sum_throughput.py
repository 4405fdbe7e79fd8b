"""Maximum total throughput: maximize the sum of steps per second.

Steps of different job types are added without normalization, as in Narayanan's dissertation. Jobs with short steps are
therefore preferred.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.session import Session, solved
from hocket.scheduler.solver.lp.to_allocation import answer
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.space_sharing.column_generation import many, sum_of

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 6.4.1"
SHARES, ENTITIES = True, False
_PLACE = "maximum total throughput"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation with the maximum total throughput.

    The objective is the sum of all throughputs, in steps per second.
    """
    unlike = many(snapshot)
    if unlike is not None:
        return sum_of(snapshot, unlike, np.ones(unlike.groups), _PLACE)
    shares = AllocationVariables(snapshot)
    steps = shares.steps_first + shares.steps_second
    # In units of the largest throughput, so that the solver's tolerances are relative.
    unit = float(steps.max(initial=0.0)) or 1.0
    solution = solved(session, shares, shares.program(-steps / unit), _PLACE)
    return answer(shares, solution.x, solution.duals, -solution.objective * unit, solution.gap)
