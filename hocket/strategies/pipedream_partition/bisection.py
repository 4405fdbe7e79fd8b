"""Bisection for the smallest bottleneck of a pipeline on parts of a cluster.

The bottleneck is the time between two inputs, in seconds. level.py defines parts. A sweep (kernel.py) says whether
there is a pipeline with a bottleneck below a limit. Limits rise from a lower bound until a sweep finds a pipeline,
because a sweep that finds none is the cheaper the lower its limit is. Bisection follows. Each step goes down to the
bottleneck of the pipeline that was found. The search ends with sweeps just below the answer that find none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hocket.strategies.pipedream_partition.level import LevelTask

GAP = 1e-9  # relative accuracy of the smallest bottleneck
FIRST_STEP = 1.5  # factor from the lower bound to the first limit; each next factor is the square of the one before


@dataclass(frozen=True)
class BisectionResult:
    """Pipeline that a sweep has found.

    Attributes:
        task: search on the part of the cluster that the pipeline is on.
        stages: number of stages.
        limit_s: limit of the sweep.
    """

    bottleneck_s: float
    task: LevelTask
    stages: int
    limit_s: float


def smallest(tasks: Sequence[LevelTask], low_s: float, high_s: float, tight: bool) -> BisectionResult | None:
    """Find the smallest bottleneck at or below `high_s`; None if there is none.

    Among equal bottlenecks the first part wins.

    Arguments:
        tasks: one for each part of the cluster, the largest part first. Smaller parts are swept first, which is
            cheap.
        low_s: lower bound of all bottlenecks.
        high_s: upper limit; infinite for none.
        tight: True if a pipeline is likely to be as fast as `low_s`.
    """
    low = max(low_s, min(task.least_s for task in tasks) * (1 - GAP))
    high = high_s if high_s < inf else max(task.most_s for task in tasks)
    if high <= 0 or high < low:
        return None
    best: BisectionResult | None = None
    failed_s = [0.0] * len(tasks)
    step, probe = 1 + 4 * GAP if tight else FIRST_STEP, False
    while True:
        if best is None:
            limit = min(high, low * step) if low > 0 else high
            step = FIRST_STEP if step < FIRST_STEP else step * step
        else:
            below = best.bottleneck_s * (1 - GAP)
            if below <= low:
                probe = True
            limit = below if probe else 0.5 * (low + below)
        found = _ask(tasks, limit, best if probe else None, failed_s)
        if found is not None:
            # This may already be the answer, so next probe just below it. If a pipeline is found there, bisect.
            best, probe = found, not probe
        elif best is None and limit < high:
            low = limit
        elif best is None or probe:
            return best
        else:
            low, probe = limit, True


def _ask(
    tasks: Sequence[LevelTask], limit_s: float, best: BisectionResult | None, failed_s: list[float]
) -> BisectionResult | None:
    """Sweep the parts of the cluster under a limit, the smallest part first.

    Arguments:
        limit_s: maximum bottleneck. A part that comes before the part of `best` may equal the bottleneck of `best`.
        best: best pipeline so far; None to use `limit_s` for all parts.
        failed_s: for each part, the highest limit without a pipeline; updated here.

    Returns:
        None if no pipeline is found.
    """
    before = tasks.index(best.task) if best is not None else 0
    for k in range(len(tasks) - 1, -1, -1):
        own_s = best.bottleneck_s * (1 + GAP) if best is not None and k < before else limit_s
        if own_s <= failed_s[k]:
            continue
        stages, cost_s = tasks[k].sweep(own_s)
        if stages:
            return BisectionResult(min(cost_s, own_s), tasks[k], stages, own_s)
        failed_s[k] = own_s
    return None
