"""Small linear program of the tied jobs, which may change edges in a price box.

The other jobs stay on their hull edges (breakpoints.py). Their worker usage is known, and changes only with the level.
The duals of the worker types are the prices. They stay in the box, because extra workers can be bought at the upper
prices, and idle workers are sold at the lower prices.
Source: as dual_decomposition.py.
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.solver.dual.breakpoints import Edges
from hocket.scheduler.solver.dual.separable_program import Basic, Common, Settled, Stand
from hocket.scheduler.solver.lp.linear_program import Basis, LinearProgram, Solution, solve

_SMALL = 1e-9  # tolerance of surplus workers and of distances from an edge
_NOTHING = 2e-9  # value of idle workers that counts as 0, as a fraction of the total value
_NO_END = 1e12  # upper bound of extra and idle workers: larger than any cluster
_AT_LOWER, _BASIC, _AT_UPPER = 0, 1, 2  # states in a basis


@dataclass(frozen=True, eq=False)
class Box:
    """Range of worker prices.

    Attributes:
        least, most: lower and upper price of a worker of each type.
        level: level at which the hull edges were computed.
    """

    least: np.ndarray
    most: np.ndarray
    level: float


class Tied:
    """Small linear program of the tied jobs, with prices in a box."""

    def __init__(self, common: Common, box: Box, at: Edges, active: np.ndarray, place: str) -> None:
        """
        Arguments:
            common: program of all jobs.
            at: hull edges of all jobs.
            active: indices of the tied jobs, ascending.
            place: name of the program in error messages.
        """
        self._common, self._box, self._at, self._active, self._place = common, box, at, active, place
        self._others = np.ones(len(common.does), dtype=bool)
        self._others[active] = False
        self._own, self._column = np.nonzero(common.runs[active])
        self._job = active[self._own]
        self._asked = common.asked + common.slope * box.level

    def best(self) -> tuple[Settled | None, Stand, np.ndarray]:
        """Solve the program.

        Returns:
            Solution of the whole program, or None if prices outside the box may be better or jobs are off their
                edges; best prices and level in the box; distance of each job from its edge, 0 for tied jobs.
        """
        common, box = self._common, self._box
        count, types, width = len(self._active), len(common.workers), len(self._own)
        answer = self._solved()
        prices = np.clip(-answer.duals[2 * count :], box.least, box.most)
        over, under = answer.x[width : width + types], answer.x[width + types : width + 2 * types]
        level = box.level
        if common.weight:
            level = float(level + answer.x[-2] - answer.x[-1])
            worth = float(prices @ common.workers)
        else:
            worth = abs(float(self._at.rate @ self._asked - self._at.time.sum()))
        inside = (over <= _SMALL * np.maximum(common.workers, 1.0)).all() and under @ box.least <= _NOTHING * worth
        now = common.asked + common.slope * level
        part = self._at.part(now)
        # Distance relative to the edge length; without an edge, the unmet demand.
        off = np.where(self._at.low == self._at.high, now - self._at.begins, np.maximum(-part, part - 1))
        off = np.where(self._others & (off > _SMALL), off, 0.0)
        stand = Stand(prices, level)
        return self._settled(answer, stand, part) if inside and not off.any() else None, stand, off

    def _solved(self) -> Solution:
        common, active, column = self._common, self._active, self._column
        count, types, width = len(active), len(common.workers), len(self._own)
        every, of_types, index = np.arange(count), np.arange(types), np.arange(width)
        load, more = self._loads()
        room = common.workers - load
        # Variables: fractions of time; extra and idle workers of each type; increase and decrease of the level.
        type_rows = 2 * count + of_types
        rows = [self._own, count + self._own, 2 * count + common.type_of[column], type_rows, type_rows]
        columns = [index, index, index, width + of_types, width + types + of_types]
        size = common.size[self._job]
        values = [common.does[self._job, column], np.ones(width), size, -np.ones(types), np.ones(types)]
        cost = [common.costs[self._job, column], self._box.most, -self._box.least]
        upper = [np.full(width, 2.0), np.full(2 * types, _NO_END)]  # 2: the time rows bind first
        if common.weight:
            level, (least, most) = self._box.level, common.level
            cost.append(np.array([common.weight, -common.weight]))
            upper.append(np.array([most - level, level - least]))
            for sign, here in ((1.0, width + 2 * types), (-1.0, width + 2 * types + 1)):
                rows += [every, type_rows]
                columns += [np.full(count, here), np.full(types, here)]
                values += [-sign * common.slope[active], sign * more]
        costs = np.concatenate(cost)
        program = LinearProgram(
            costs,
            np.zeros(len(costs)),
            np.concatenate(upper),
            np.concatenate([self._asked[active], np.full(count, -np.inf), room]),
            np.concatenate([np.full(count, np.inf), np.ones(count), room]),
            np.concatenate(rows),
            np.concatenate(columns),
            np.concatenate(values),
        )
        return solve(program, self._place, self._began(len(costs), room), primal=True)

    def _loads(self) -> tuple[np.ndarray, np.ndarray]:
        """Workers by type used by the jobs not tied, and the change per unit of level."""
        common, at, rest = self._common, self._at, np.flatnonzero(self._others)
        low, high, part = at.low[rest], at.high[rest], at.part(self._asked)[rest]
        step = np.zeros(len(rest))
        np.divide(common.slope[rest], at.length[rest], out=step, where=low != high)
        load = common.load(rest, low, 1 - part) + common.load(rest, high, part)
        return load, common.load(rest, high, step) - common.load(rest, low, step)

    def _began(self, columns: int, room: np.ndarray) -> Basis:
        """Initial basis: each tied job on its edge, and extra or idle workers for balance.

        Arguments:
            columns: number of columns of the program.
            room: workers of each type that the other jobs leave.
        """
        common, active, at = self._common, self._active, self._at
        types, width = len(room), len(self._own)
        low, high, part = at.low[active], at.high[active], at.part(self._asked)[active]
        states = np.zeros(columns, dtype=np.int8)
        states[:width][(self._column == low[self._own]) | (self._column == high[self._own])] = _BASIC
        over = common.load(active, low, 1 - part) + common.load(active, high, part) > room
        states[width : width + types] = np.where(over, _BASIC, _AT_LOWER)
        states[width + types : width + 2 * types] = np.where(over, _AT_LOWER, _BASIC)
        asks = np.where(low == high, _BASIC, _AT_LOWER)
        time = np.where(low == common.does.shape[1], _BASIC, _AT_UPPER)
        return states, np.concatenate([asks, time, np.full(types, _AT_LOWER)]).astype(np.int8)

    def _settled(self, answer: Solution, stand: Stand, part: np.ndarray) -> Settled:
        """Solution and basis of the whole program.

        Arguments:
            answer: solution of the small program.
            stand: best prices and level.
            part: fraction of time of each job on the higher option of its edge.
        """
        common, at, active = self._common, self._at, self._active
        count, types, width = len(active), len(common.workers), len(self._own)
        rest, every = np.flatnonzero(self._others), np.arange(len(common.does))
        parts = np.zeros(common.does_or_idles.shape)
        inside = part[rest].clip(0, 1)
        parts[rest, at.low[rest]] += 1 - inside
        parts[rest, at.high[rest]] += inside
        parts[self._job, self._column] = answer.x[:width]
        costs = common.dear(stand.prices)
        length = np.where(at.low == at.high, 1.0, at.length)
        rates = np.maximum((costs[every, at.high] - costs[every, at.low]) / length, 0.0)
        rates[active] = np.maximum(answer.duals[:count], 0.0)
        time = (rates[:, None] * common.does_or_idles - costs).max(axis=1)
        assert answer.basis is not None
        columns, rows = (states == _BASIC for states in answer.basis)
        chosen = np.zeros(parts.shape, dtype=bool)
        chosen[rest, at.low[rest]] = chosen[rest, at.high[rest]] = True
        chosen[self._job, self._column] = columns[:width]
        asks, times = at.low == at.high, at.low == common.does.shape[1]
        asks[active], times[active] = rows[:count], rows[count : 2 * count]
        loose = columns[width : width + types] | columns[width + types : width + 2 * types] | rows[2 * count :]
        basic = Basic(chosen[:, :-1], asks, times, loose)
        return Settled(parts[:, :-1], stand.level, stand.prices, rates, time, basic)
