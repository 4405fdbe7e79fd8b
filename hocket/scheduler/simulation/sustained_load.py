"""Sustained load: arrival rate of two policies at equal average JCT.

Source: Narayanan's dissertation, section 5.7.3, which reports the increase in load at equal average JCT.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite, nan
from typing import NamedTuple

Course = Sequence[tuple[float, float]]  # ascending jobs per hour; average JCT in seconds, nan if unknown


class Sustained(NamedTuple):
    """Load that a policy sustains.

    Attributes:
        per_hour: jobs per hour at which the policy has the average JCT that another policy has at `as_at_per_hour`.
        as_at_per_hour: jobs per hour of the other policy.
        at_least: True if `per_hour` is only a lower bound: the largest simulated load, at which the policy's average
            JCT is still shorter.
    """

    per_hour: float
    as_at_per_hour: float
    at_least: bool = False

    @property
    def factor(self) -> float:
        """Ratio of the two loads: the policy's over the other policy's."""
        return self.per_hour / self.as_at_per_hour

    def sentence(self, policy: str, other: str) -> str:
        """Comparison of the two policies by name, as text."""
        takes, more = ("less time than", "more than ") if self.at_least else ("as long as", "")
        return (
            f"{policy} at {self.per_hour:.3g} jobs an hour takes {takes} {other} at {self.as_at_per_hour:.3g}: "
            f"{more}{self.factor:.3g} × the load"
        )


def course(runs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Mean JCT in seconds by ascending load in jobs per hour; nan if unknown.

    Arguments:
        runs: jobs per hour and average JCT in seconds, such as from several seeds.
    """
    found: dict[float, list[float]] = {}
    for per_hour, jct_s in runs:
        known = found.setdefault(per_hour, [])
        if isfinite(jct_s):
            known.append(jct_s)
    return [(per_hour, sum(known) / len(known) if known else nan) for per_hour, known in sorted(found.items())]


def sustained(own: Course, other: Course) -> Sustained | None:
    """Load at which a policy reaches the average JCT of another policy.

    The result is for the largest load of the other policy with a known answer. Between simulated loads, average JCT
    is interpolated linearly. If the policy's JCT is shorter at all its loads, the result is a lower bound, if it
    exceeds the other load.

    Arguments:
        own: average JCT of the policy by load.
        other: average JCT of the other policy by load.

    Returns:
        None if the simulated loads give no answer: the JCT is longer at the smallest load, or no load was simulated.
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
    """Smallest load at which a policy's average JCT reaches a level.

    None if the JCT is longer at the first load (shorter ones later are noise), or if the level is never reached.

    Arguments:
        own: average JCT of the policy by load.
    """
    if not own or own[0][1] >= level_s:
        return own[0][0] if own and own[0][1] == level_s else None
    for (low, before_s), (high, after_s) in pairwise(own):
        if before_s < level_s <= after_s:
            return low + (level_s - before_s) / (after_s - before_s) * (high - low)
    return None
