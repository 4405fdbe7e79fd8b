"""Max-min fairness with water filling: the job that gets least gets as much as it can, then the next one, and so on.

What a job gets is measured as in max-min fairness: relative to its due, its weight and its scale factor. Where that policy
stops, the jobs that can have more without taking from others still rise, at equal rates, until each is stuck. The answer is
the lexicographically greatest: no job gets more in any allocation where all that get less, or as much, keep theirs. It is
Pareto efficient.

The public policy takes a job for stuck when it cannot rise by 1e-4 of its level; here it is stuck when it cannot rise at all.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.session import Session, answered
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.water_filling.bisection import Leap
from hocket.scheduler.solver.water_filling.levels import Water, dues, fill, still, told
from hocket.scheduler.solver.water_filling.rounds import Levels
from hocket.scheduler.solver.water_filling.trajectory import Path

__all__ = ["PAPER", "allocate"]

_PLACE = "water filling"
PAPER = "Dissertation section 5.4.3, water filling for a single level"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the least normalised throughput of any job that can run, as in max-min fairness."""
    return answered(session, snapshot, lambda: _allocate(snapshot, session))


def _allocate(snapshot: Snapshot, session: Session | None) -> Allocation:
    shares = AllocationVariables(snapshot, (snapshot.weights,))
    # Weights are in what is due, so that all levels are of one size: solvers' tolerances are absolute.
    weights = snapshot.weights[shares.member] / shares.scale
    due = dues(shares) * weights
    levels = Levels(shares, due, _PLACE)
    water = still(shares)
    leap = Leap(shares, due, _PLACE, session) if snapshot.pairs is None else None

    def path(water: Water) -> Path:
        return Path(water.level, np.where(water.stuck, 0.0, 1.0), levels.reach)

    fill(levels, water, lambda stuck: np.where(stuck, 0.0, 1.0), leap, path)
    levels.close()
    water.level = water.level * weights
    return told(shares, water)
