"""sustained: how much load one policy sustains at the average JCT that another has at less, or at more.

Source: section 5.7.3, which says by how much load may grow at the same average JCT.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite, nan
from typing import NamedTuple

Course = Sequence[tuple[float, float]]  # jobs an hour, rising; average JCT in seconds, nan where it is not known


class Sustained(NamedTuple):
    """What a policy sustains.

    Attributes:
        per_hour: jobs, where its average JCT is that of the other policy.
        as_at_per_hour: jobs of the other policy.
        at_least: it is shorter at every load that was run, the greatest of which is `per_hour`.
    """

    per_hour: float
    as_at_per_hour: float
    at_least: bool = False

    @property
    def factor(self) -> float:
        """By which the load may be greater."""
        return self.per_hour / self.as_at_per_hour

    def sentence(self, policy: str, other: str) -> str:
        """For people, of the two policies by name."""
        takes, more = ("less time than", "more than ") if self.at_least else ("as long as", "")
        return (
            f"{policy} at {self.per_hour:.3g} jobs an hour takes {takes} {other} at {self.as_at_per_hour:.3g}: "
            f"{more}{self.factor:.3g} × the load"
        )


def course(runs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """By rising load, the mean of the times that are known; nan where none is.

    Arguments:
        runs: jobs an hour and average JCT in seconds, such as of several seeds.
    """
    found: dict[float, list[float]] = {}
    for per_hour, jct_s in runs:
        known = found.setdefault(per_hour, [])
        if isfinite(jct_s):
            known.append(jct_s)
    return [(per_hour, sum(known) / len(known) if known else nan) for per_hour, known in sorted(found.items())]


def sustained(own: Course, other: Course) -> Sustained | None:
    """The load at which a policy takes as long as another, at the other's greatest load for which that can be told.

    Between two loads that were run average JCT is taken to grow evenly. Where it is shorter at all of them, the load is told that
    it sustains at least, as long as that is more.

    Arguments:
        own: of the policy. other: of the one that it is measured by.

    Returns:
        None where the loads that were run tell nothing: it takes longer at the least of them, or there is none.
    """
    own, levels = ([point for point in course if isfinite(point[1])] for course in (own, other))
    for per_hour, level_s in reversed(levels):
        reached = _reached(own, level_s)
        if reached is not None:
            return Sustained(reached, per_hour)
    shorter = [per_hour for per_hour, level_s in levels if own and all(jct_s < level_s for _, jct_s in own)]
    if shorter and own[-1][0] > shorter[0]:
        return Sustained(own[-1][0], shorter[0], at_least=True)
    return None


def _reached(own: Course, level_s: float) -> float | None:
    """The least load at which a time is reached; None where it is longer from the first, and shorter later by chance, or never."""
    if not own or own[0][1] >= level_s:
        return own[0][0] if own and own[0][1] == level_s else None
    for (low, before_s), (high, after_s) in pairwise(own):
        if before_s < level_s <= after_s:
            return low + (level_s - before_s) / (after_s - before_s) * (high - low)
    return None
