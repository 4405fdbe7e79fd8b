"""Trajectory: level of each job group by rise, ignoring worker limits.

The level of a job stops rising where the job runs all the time on its fastest workers. A team is an entity of the
hierarchical policy. Each team has a height, which grows with the rise of the water. A job starts to rise at some
height of its team, at its own rate, until its maximum. In a fair team all jobs start at once. The share of finished
jobs goes to the other jobs of the team, so the height grows faster with fewer jobs left. In a FIFO team each job
starts where the previous one ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class JobGroup:
    """Unsaturated groups of a team.

    Attributes:
        groups: indices of the groups; in a FIFO team, in queue order.
        part: weight of each group in the team, summed over its jobs; 1 in a FIFO team.
        weight: weight of the team.
        in_line: True for a FIFO team.
    """

    groups: np.ndarray
    part: np.ndarray
    weight: float
    in_line: bool = False


class Path:
    """Level of each group as a function of the rise.

    Attributes:
        ends: rise from which on each group runs all the time; inf for groups that do not rise.
    """

    def __init__(self, level: np.ndarray, rate: np.ndarray, reach: np.ndarray, teams: Sequence[JobGroup] = ()) -> None:
        """
        Arguments:
            level: current level of each group.
            rate: increase of each group's level per unit of its team's height; 0 for saturated groups.
            reach: maximum level of each group.
            teams: teams that rise together; empty if all groups rise with the water, without teams.
        """
        self._level, self._rate, self._reach = level, rate, reach
        self._begins = np.zeros(len(level))
        self._team = np.zeros(len(level), dtype=np.int64)
        self._heights: list[
            tuple[np.ndarray, np.ndarray] | None
        ] = []  # height of each team by rise: breakpoints (rises, heights) of a piecewise linear function
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
            left = part.sum() - np.cumsum(part) + part  # weight of the groups that still rise just before each end
            rise = np.cumsum(np.diff(height, prepend=0.0) * left) / team.weight
            self.ends[own[order]] = rise
        self._heights.append((np.append(0.0, rise), np.append(0.0, height)))

    def at(self, rise: float) -> np.ndarray:
        """Level of each group after a rise."""
        heights = np.array([rise if known is None else np.interp(rise, *known) for known in self._heights])
        above = np.maximum(heights[self._team] - self._begins, 0.0)
        return np.minimum(self._level + self._rate * above, np.maximum(self._reach, self._level))
