"""Max-min fairness with water filling: maximize the minimum, then the next one.

Normalized throughput is as in max-min fairness: relative to the equal share, weight and scale factor. Where max-min
fairness stops, jobs that can get more without taking from others rise further, at equal rates, until each is
saturated. The result is the lexicographic maximum: a job can only get more if a job with less, or as much, loses. It
is Pareto efficient.

The policy that Gavel's authors published treats a job as saturated when it cannot rise by 1e-4 of its level; here a job
is saturated when it cannot rise at all.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.water_filling.bisection import Leap
from hocket.scheduler.solver.water_filling.levels import Water, dues, fill, still, told
from hocket.scheduler.solver.water_filling.rounds import Levels
from hocket.scheduler.solver.water_filling.trajectory import Path

__all__ = ["PAPER", "allocate"]

_PLACE = "water filling"
PAPER = "Dissertation section 5.4.3, water filling for a single level"
SHARES, ENTITIES = True, False


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation by water filling.

    The objective is the minimum normalized throughput of the jobs that can run, as in max-min fairness.
    """
    shares = AllocationVariables(snapshot, (snapshot.weights,))
    # Weights scale the shares, so that all levels have similar size: solver tolerances are absolute.
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
