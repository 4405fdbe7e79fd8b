"""Two levels of policy: weighted fairness between entities, and inside each of them fairness or first in, first out.

Each entity's weight is divided among those of its jobs that are not stuck: by their own weights, or all of it to the first in
line. Jobs rise at the rates of what they are given, by their scale factors; when one is stuck, what it was given goes to others
of its entity. A job that nobody owns belongs to the entity without a name; an entity that the snapshot does not list has
weight 1 and shares fairly.

A job's throughput is measured against an equal share of all workers, as in max-min fairness. The public policy does the same,
and takes a job for stuck when it cannot rise by 1e-4 of its level; here it is stuck when it cannot rise at all.

Jobs that are alike and share fairly are one group. Of a line, those that still wait or that ended at one level are alike; the
next few are told apart, and when the line has moved past them the groups are made anew.
"""

from functools import partial

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Entity, Snapshot
from hocket.scheduler.solver.lp.session import Session, answered
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.water_filling.bisection import Leap
from hocket.scheduler.solver.water_filling.levels import MANY, Water, dues, fill, moved, still, told
from hocket.scheduler.solver.water_filling.rounds import Levels
from hocket.scheduler.solver.water_filling.trajectory import JobGroup, Path

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 5.4.3: multi-level fairness, and fairness with FIFO inside"

_PLACE = "hierarchical policy"
_AHEAD = (
    16  # of each line, jobs that are told apart; with pairs every one of them costs a variable for each other group
)
_AHEAD_OF_PAIRS = 4
_DECIMALS = 9  # to which levels of jobs that ended are alike


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is how far all entities could rise together, for a weight of 1."""
    return answered(session, snapshot, lambda: _allocate(snapshot, session))


def _allocate(snapshot: Snapshot, session: Session | None) -> Allocation:
    teams = _Teams(snapshot)
    shares = AllocationVariables(snapshot, teams.keys())
    water = still(shares)
    levels: Levels | None = None
    while True:
        due = dues(shares)
        levels = Levels(shares, due, _PLACE, levels)
        leap = Leap(shares, due, _PLACE, session) if snapshot.pairs is None and shares.groups > MANY else None
        fill(levels, water, partial(teams.rates, shares), leap, partial(teams.path, shares, levels.reach))
        if water.stuck.all():
            levels.close()
            return told(shares, water)
        before = shares
        shares = AllocationVariables(snapshot, teams.keys(shares, water))
        water = moved(water, before, shares)


class _Teams:
    """Who belongs to whom, and who is first in each line.

    Attributes:
        team: of each job. lines: by team that is first in, first out: those of its jobs that can run, in order.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        named = {entity.name: entity for entity in snapshot.entities}
        at: dict[str, int] = {}
        self.team = np.array([at.setdefault(a.job.entity, len(at)) for a in snapshot.jobs], dtype=np.int64)
        teams = [named.get(name, Entity(name)) for name in at]
        self._weight = np.array([team.weight for team in teams])
        fits = snapshot.scale[:, None] <= snapshot.workers[snapshot.type_of]
        able = ((snapshot.throughputs > 0) & fits).any(axis=1)
        self._in_line = np.array([team.policy == "fifo" for team in teams], dtype=bool)
        came = np.argsort(snapshot.arrived_s, kind="stable")
        came = came[able[came]]
        self.lines = {k: came[self.team[came] == k] for k in np.flatnonzero(self._in_line).tolist()}
        self._stand = np.zeros(len(teams), dtype=np.int64)
        self._ahead = _AHEAD if snapshot.pairs is None else _AHEAD_OF_PAIRS

    def keys(self, shares: AllocationVariables | None = None, water: Water | None = None) -> tuple[np.ndarray, ...]:
        """What tells jobs apart that run alike: team, weight, place in line, and level for those of a line that ended.

        Arguments:
            shares, water: as they stand; None before the first rise.
        """
        weight = self._snapshot.weights.copy()
        place, level = np.zeros(len(weight)), np.zeros(len(weight))
        for line in self.lines.values():
            weight[line] = 0.0
            waits = line
            if shares is not None and water is not None:
                ended = water.stuck[shares.group[line]]
                place[line[ended]] = -1.0
                level[line[ended]] = np.round(water.level[shares.group[line[ended]]], _DECIMALS)
                waits = line[~ended]
            place[waits[: self._ahead]] = np.arange(1, len(waits[: self._ahead]) + 1)
        return self.team, weight, place, level

    def path(self, shares: AllocationVariables, reach: np.ndarray, water: Water) -> Path | None:
        """How all would rise if workers held nobody; None where jobs of a line are not told apart.

        Arguments:
            reach: the most that a job of each group can get.
        """
        team, rises = self.team[shares.member], ~water.stuck
        weights = self._snapshot.weights[shares.member]
        rate, found = np.where(rises, weights / shares.scale, 0.0), []
        for k, weight in enumerate(self._weight.tolist()):
            if k in self.lines:
                own = shares.group[self.lines[k]]
                own = own[rises[own]]
                if (shares.count[own] > 1).any():
                    return None
                rate[own] = 1 / shares.scale[own]
                found.append(JobGroup(own, np.ones(len(own)), weight, True))
            else:
                own = np.flatnonzero((team == k) & rises)
                found.append(JobGroup(own, (weights * shares.count)[own], weight))
        return Path(water.level, rate, reach, found)

    def rates(self, shares: AllocationVariables, stuck: np.ndarray) -> np.ndarray | None:
        """How fast each group rises; None when one that is to rise is not told apart from others of its line."""
        team = self.team[shares.member]
        part = np.where(stuck, 0.0, self._snapshot.weights[shares.member])
        part[self._in_line[team]] = 0.0
        total = np.bincount(team, part * shares.count, len(self._weight))
        rate = np.divide(part, total[team], out=np.zeros_like(part), where=part > 0)
        for k, line in self.lines.items():
            while self._stand[k] < len(line) and stuck[shares.group[line[self._stand[k]]]]:
                self._stand[k] += 1
            if self._stand[k] < len(line):
                first = shares.group[line[self._stand[k]]]
                if shares.count[first] > 1:
                    return None
                rate[first] = 1.0
        return rate * self._weight[team] / shares.scale
