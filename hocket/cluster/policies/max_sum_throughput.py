"""Maximum total throughput: as many steps a second as there can be, whoever's they are.

Steps of unlike jobs are added up as they are, as in the dissertation: jobs of short steps come first.
"""

import numpy as np

from hocket.cluster.allocation import Allocation
from hocket.cluster.policies._answer import answer
from hocket.cluster.policies._roles import many, sum_of
from hocket.cluster.policies._shares import Shares
from hocket.cluster.session import Session, answered, solved
from hocket.cluster.snapshot import Snapshot

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 6.4.1"
_PLACE = "maximum total throughput"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the sum of all throughputs, in steps a second."""
    return answered(session, snapshot, lambda: _allocate(snapshot, session))


def _allocate(snapshot: Snapshot, session: Session | None) -> Allocation:
    unlike = many(snapshot)
    if unlike is not None:
        return sum_of(snapshot, unlike, np.ones(unlike.groups), _PLACE)
    shares = Shares(snapshot)
    steps = shares.steps_first + shares.steps_second
    # In units of the fastest, so that the solver's tolerances are relative.
    unit = float(steps.max(initial=0.0)) or 1.0
    solution = solved(session, shares, shares.program(-steps / unit), _PLACE)
    return answer(shares, solution.x, solution.duals, -solution.objective * unit, solution.gap)
