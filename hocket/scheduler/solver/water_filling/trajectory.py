"""Path: what jobs would have as water rises, if workers held nobody, and each stopped where it runs all the time.

Every team has a height, which the rise of the water pushes up. A job begins to rise at some height of its team, at its own rate,
until it has all that it can get. In a team that shares fairly all begin at once, and what those that ended were given goes to
the others: its height grows the faster the fewer are left. In a line each begins where the one before it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class JobGroup:
    """Groups of a team that are not stuck, in line if it is one.

    Attributes:
        groups: indices. part: what each weighs among them, for all its jobs; 1 in a line. weight: of the team.
    """

    groups: np.ndarray
    part: np.ndarray
    weight: float
    in_line: bool = False


class Path:
    """Levels of groups after any rise.

    Attributes:
        ends: rises after which each group runs all the time; infinite for those that do not rise.
    """

    def __init__(self, level: np.ndarray, rate: np.ndarray, reach: np.ndarray, teams: Sequence[JobGroup] = ()) -> None:
        """
        Arguments:
            level: where they are. rate: how fast they rise with the height of their team; 0 for those that are stuck.
            reach: the most that a job of each can get.
            teams: who rises together; none where all do, at one height, that of the water.
        """
        self._level, self._rate, self._reach = level, rate, reach
        self._begins = np.zeros(len(level))
        self._team = np.zeros(len(level), dtype=np.int64)
        self._heights: list[
            tuple[np.ndarray, np.ndarray] | None
        ] = []  # rises and heights between which it is a straight line
        self.ends = np.full(len(level), np.inf)
        for team in teams:
            self._add(team)
        if not teams:
            self._heights.append(None)
            np.divide(reach - level, rate, out=self.ends, where=rate > 0)
        self.ends = self.ends.clip(min=0.0)

    def _add(self, team: JobGroup) -> None:
        own = team.groups
        self._team[own] = len(self._heights)
        long = np.maximum(self._reach[own] - self._level[own], 0.0) / self._rate[own]
        if team.in_line:
            height = np.cumsum(long)
            self._begins[own] = height - long
            rise = height / team.weight
            self.ends[own] = rise
        else:
            order = np.argsort(long, kind="stable")
            height, part = long[order], team.part[order]
            left = part.sum() - np.cumsum(part) + part  # that still rise before each of these ends
            rise = np.cumsum(np.diff(height, prepend=0.0) * left) / team.weight
            self.ends[own[order]] = rise
        self._heights.append((np.append(0.0, rise), np.append(0.0, height)))

    def at(self, rise: float) -> np.ndarray:
        """After a rise."""
        heights = np.array([rise if known is None else np.interp(rise, *known) for known in self._heights])
        above = np.maximum(heights[self._team] - self._begins, 0.0)
        return np.minimum(self._level + self._rate * above, np.maximum(self._reach, self._level))
