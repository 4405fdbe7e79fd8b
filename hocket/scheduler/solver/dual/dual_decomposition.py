"""Ties: programs of many unlike jobs and few types of workers, of which only few jobs matter.

Jobs have nothing in common but workers. At prices of these, one a type, each job stands on an edge of its own (breakpoints.py), and
where prices are right all workers are used. Near them few jobs are tied, and can change edges; all others are known. So a small
program of the jobs that may change, as long as prices stay in a box, says where in the box prices are best. If that is inside, it
is the answer, as what all jobs cost is concave in prices; else the box is laid anew around it.

Prices to begin with come from the same program of every fourth job, and a fourth of the workers.
Source: the boxstep method (Marsten, Hogan and Blankenship 1975).
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from hocket.scheduler.solver.dual.breakpoints import Edges, edges, reach
from hocket.scheduler.solver.dual.price_box import Box, Tied
from hocket.scheduler.solver.dual.separable_program import Common, Settled, Stand
from hocket.scheduler.solver.lp.linear_program import Infeasible, SolverTrouble

_TIED = 160  # jobs in a small program
_STRIDE = 4  # of jobs, one is among those that prices come from
_STEPS = 60
_MORE = 1.15  # times as many jobs in the next small program
_TURNS = 20
_DEAR = 30.0  # times what a job costs: prices are not sought above at once
_FLOOR = 0.02  # of the largest price: the least that a box is as wide as
_WIDEST = 1e3  # times prices: nobody else changes edges at all
_SMALL = 1e-9  # relative: of what is asked or worth


def settled(common: Common, place: str, start: Stand | None = None) -> Settled:
    """The answer.

    Arguments:
        place: for messages. start: what is known; else it is found.

    Raises:
        Infeasible: nothing keeps the constraints.
        SolverTrouble: no answer is found so.
    """
    jobs = len(common.does)
    if start is None and jobs > 2 * _TIED:
        start = _prices(common.some(_STRIDE), place)
    if start is not None:
        return _Search(common, place, start).settled(_TIED)
    return _Search(common, place, _nothing(common)).settled(jobs)


def stands(common: Common, prices: np.ndarray) -> Edges:
    """Where jobs stand by themselves at prices of types and a level of 0."""
    return edges(common.does_or_idles, common.dear(prices), common.asked)


def _prices(common: Common, place: str) -> Stand:
    """Prices of some jobs, as far as they are found; few workers may be too few for them where they are enough for all."""
    jobs = len(common.does)
    if jobs > 2 * _TIED:
        search, tied = _Search(common, place, _prices(common.some(_STRIDE), place)), _TIED
    else:
        search, tied = _Search(common, place, _nothing(common)), jobs
    with suppress(SolverTrouble):
        search.settled(tied)
    return search.stand


def _nothing(common: Common) -> Stand:
    return Stand(np.zeros(len(common.workers)), common.level[1])


class _Search:
    """For the prices of a program.

    Attributes:
        stand: where it is.
    """

    def __init__(self, common: Common, place: str, start: Stand) -> None:
        self._common, self._place = common, place
        self.stand = start
        known = np.where(common.runs, common.costs, 0.0)
        # What a worker costs: prices are of that size.
        self._scale = float(np.abs(known).max(initial=0.0)) / float(common.size.min(initial=1.0)) or 1.0
        self._most = float(known.max(axis=1, initial=0.0).sum())
        self._forced = np.zeros(len(common.does), dtype=bool)

    def settled(self, tied: int) -> Settled:
        """Lay boxes until the best prices are inside."""
        common = self._common
        jobs = len(common.does)
        if not common.weight and (common.asked > common.does.max(axis=1) * (1 + _SMALL)).any():
            raise Infeasible(f"{self._place}: nothing keeps the constraints")
        for _ in range(_STEPS):
            costs, at = self._lay()
            active, box = self._box(costs, at, tied)
            found, self.stand, off = Tied(common, box, at, active, self._place).best()
            if found is not None:
                return found
            # Jobs that the level moved off their edges: those that are off furthest are in the next program.
            self._forced = np.zeros(jobs, dtype=bool)
            worst = np.argsort(-off)[: tied // 2]
            self._forced[worst] = off[worst] > 0
            tied = int(tied * _MORE) + 1
        raise SolverTrouble(f"{self._place}: {_STEPS} boxes were not enough")

    def _lay(self) -> tuple[np.ndarray, Edges]:
        """Costs and edges at the level that prices show there is none below.

        There all pay what workers are worth; what they pay is convex in the level. Where there is a level nothing else costs, so
        prices are right but for a factor, with which the level has the price that it should.
        """
        common, prices = self._common, self.stand.prices
        # Where a start comes from another program its level may be out of this one's bounds, by rounding or by what it means.
        level = min(max(self.stand.level, common.level[0]), common.level[1])
        worth, costs = float(prices @ common.workers), common.dear(prices)
        for _ in range(_TURNS):
            asked = common.asked + common.slope * level
            at = edges(common.does_or_idles, costs, asked)
            falls, over = float(at.rate @ common.slope), float(at.rate @ asked - at.time.sum()) - worth
            if not common.weight:
                # No answer costs less than `over`, and none that there is costs more than this.
                if over > self._most + _SMALL * (abs(over) + self._most):
                    raise Infeasible(f"{self._place}: nothing keeps the constraints")
                return costs, at
            if worth <= 0 or falls >= 0:
                break
            if abs(over) <= _SMALL * worth:
                factor = -common.weight / falls
                costs, prices = costs * factor, prices * factor
                at = replace(at, rate=at.rate * factor, time=at.time * factor)
                break
            level = min(max(level - over / falls, common.level[0]), common.level[1])
        self.stand = Stand(prices, level)
        return costs, at

    def _box(self, costs: np.ndarray, at: Edges, tied: int) -> tuple[np.ndarray, Box]:
        """So many jobs, and a box so wide that no others change edges in it."""
        common, prices = self._common, self.stand.prices
        jobs, dearest = len(common.does), float(prices.max(initial=0.0))
        wide = np.maximum(prices, max(_FLOOR * dearest, _SMALL * self._scale))
        moves = np.append(wide, 0.0)[common.type_or_none] * common.size[:, None]
        far = np.where(self._forced, -1.0, reach(at, common.does_or_idles, costs, moves))
        # Where jobs are tied however little prices move, there have to be some more, or the box has no inside.
        tied = max(tied, int((far <= _SMALL).sum()) + _TIED // 2)
        if tied >= jobs:
            most = np.full(len(prices), _DEAR * max(self._scale, dearest))
            return np.arange(jobs), Box(np.zeros(len(prices)), most, self.stand.level)
        order = np.argpartition(far, tied)
        width = wide * min(float(far[order[tied]]), _WIDEST)
        return np.sort(order[:tied]), Box(np.maximum(prices - width, 0.0), prices + width, self.stand.level)
