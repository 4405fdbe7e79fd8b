"""Two-level policy: weighted fairness between entities, fairness or FIFO inside.

An entity's weight is divided among its unsaturated jobs: by their weights, or all of it to the first job of a FIFO
queue. A job's level rises in proportion to its part of the weight, divided by its scale factor. When a job saturates,
its part goes to other jobs of its entity. A job without an owner belongs to the entity with the empty name. An entity
missing from the snapshot has weight 1 and is fair inside.

A job's level is its throughput relative to an equal share of all workers, as in max-min fairness, and as in the policy
that Gavel's authors published. That policy treats a job as saturated when it cannot rise by 1e-4 of its level; here a
job is saturated when it cannot rise at all.

Identical jobs of a fair entity form one group. In a FIFO entity, the waiting jobs form one group, and so do jobs that
ended at the same level. The next few jobs of the queue are separate; when all of them have ended, the groups are
rebuilt.
"""

from functools import partial

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Entity, Snapshot
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.water_filling.bisection import Leap
from hocket.scheduler.solver.water_filling.levels import MANY, Water, dues, fill, moved, still, told
from hocket.scheduler.solver.water_filling.rounds import Levels
from hocket.scheduler.solver.water_filling.trajectory import JobGroup, Path

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 5.4.3: multi-level fairness, and fairness with FIFO inside"
SHARES, ENTITIES = True, True

_PLACE = "hierarchical policy"
_AHEAD = 16  # separate jobs per FIFO queue; with pairs, each costs one variable per other group
_AHEAD_OF_PAIRS = 4
_DECIMALS = 9  # precision at which levels of ended jobs are equal


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation by water filling over entities.

    The objective is the level that all entities could reach together, per unit of weight.
    """
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
    """Entities of a snapshot's jobs, and the queue of each FIFO entity.

    Attributes:
        team: entity index of each job.
        lines: indices of the runnable jobs of each FIFO entity, in order of arrival; by entity index.
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
        """Values by job that distinguish groups; jobs with equal values form a group.

        These are the entity, the weight, the position in the queue, and the level of ended FIFO jobs.

        Arguments:
            shares, water: current groups and levels; None before the first rise.
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
        """Trajectory of all levels if the number of workers were no limit.

        None if an unsaturated group of a FIFO entity has several jobs.

        Arguments:
            reach: maximum level of a job of each group.
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
        """Rate at which the level of each group rises; 0 for saturated and waiting ones.

        None if the next job of a FIFO queue is in a group with other jobs.

        Arguments:
            stuck: mask of the saturated groups.
        """
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
