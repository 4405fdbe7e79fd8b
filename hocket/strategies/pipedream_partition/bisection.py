"""The smallest bottleneck of any pipeline on several parts of a cluster, by asking whether there is one below a limit.

Limits rise from a lower bound until one is found, because a sweep that finds nothing costs the less the lower its limit
is; then bisection, each time stepping down to the bottleneck of the pipeline that was found. It ends with sweeps just
below the answer that find none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hocket.strategies.pipedream_partition.level import LevelTask

GAP = 1e-9  # relative: how far below the answer nothing better exists
FIRST_STEP = 1.5  # from the lower bound to the first limit above it; the next steps are its square, and so on


@dataclass(frozen=True)
class BisectionResult:
    """A bottleneck that a pipeline of so many stages on one part has; it was found under a limit."""

    bottleneck_s: float
    task: LevelTask
    stages: int
    limit_s: float


def smallest(tasks: Sequence[LevelTask], low_s: float, high_s: float, tight: bool) -> BisectionResult | None:
    """Smallest bottleneck at or below high_s, if any; among equal ones the first.

    Arguments:
        tasks: the largest part first. The others are asked before it, as that is cheap.
        low_s: no pipeline is faster; tight says that one may well be as fast.
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
            # What was found may well be the answer: ask for anything better at all; if there is, go half way next.
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
    """A pipeline with no term above the limit, or one as good as the best on a part that stands before it.

    failed_s: of each part, the highest limit below which there was none.
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
