"""Dual decomposition for many distinct jobs and few worker types.

Jobs share only the workers. At given worker prices (one dual per worker type), each job has a cheapest mix of two
options, its hull edge (breakpoints.py). At the right prices, all workers are used. Near these prices, few jobs are
tied, i.e. may change edges; the others stay on their edges. A small linear program of the tied jobs, valid while the
prices stay in a box, gives the best prices in the box. If these are in the interior of the box, they are optimal,
because the total cost is concave in the prices. Otherwise the box is rebuilt around them.

Initial prices come from the same program with every fourth job and a fourth of the workers.
Source: the boxstep method (Marsten, Hogan and Blankenship 1975).
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from hocket.scheduler.solver.dual.breakpoints import Edges, edges, reach
from hocket.scheduler.solver.dual.price_box import Box, Tied
from hocket.scheduler.solver.dual.separable_program import Common, Settled, Stand
from hocket.scheduler.solver.lp.linear_program import Infeasible, SolverTrouble

_TIED = 160  # tied jobs in a small program
_STRIDE = 4  # initial prices come from every job with an index that is a multiple of this
_STEPS = 60  # maximum number of boxes
_MORE = 1.15  # growth of the small program between boxes
_TURNS = 20  # maximum number of Newton steps for the level
_DEAR = 30.0  # upper price limit, as a multiple of the cost scale or the largest price, if all jobs are tied
_FLOOR = 0.02  # minimum box width, as a part of the largest price
_WIDEST = 1e3  # maximum box width, as a multiple of prices: no other job changes edges
_SMALL = 1e-9  # relative tolerance of demands and values


def settled(common: Common, place: str, start: Stand | None = None) -> Settled:
    """Solve the program.

    Arguments:
        place: name of the program in error messages.
        start: initial worker prices and level; None to compute them.

    Raises:
        Infeasible: the constraints are infeasible.
        SolverTrouble: the method finds no solution.
    """
    jobs = len(common.does)
    if start is None and jobs > 2 * _TIED:
        start = _prices(common.some(_STRIDE), place)
    if start is not None:
        return _Search(common, place, start).settled(_TIED)
    return _Search(common, place, _nothing(common)).settled(jobs)


def stands(common: Common, prices: np.ndarray) -> Edges:
    """Hull edge of each job at given worker prices and level 0."""
    return edges(common.does_or_idles, common.dear(prices), common.asked)


def _prices(common: Common, place: str) -> Stand:
    """Best worker prices found for a subset of the jobs.

    They may not be optimal: a fraction of the workers may be too few for the subset, although all workers suffice for
    all jobs.
    """
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
    """Search for the optimal prices.

    Attributes:
        stand: current prices and level.
    """

    def __init__(self, common: Common, place: str, start: Stand) -> None:
        self._common, self._place = common, place
        self.stand = start
        known = np.where(common.runs, common.costs, 0.0)
        # Cost scale of a worker, which is the scale of prices.
        self._scale = float(np.abs(known).max(initial=0.0)) / float(common.size.min(initial=1.0)) or 1.0
        self._most = float(known.max(axis=1, initial=0.0).sum())
        self._forced = np.zeros(len(common.does), dtype=bool)

    def settled(self, tied: int) -> Settled:
        """Solve small programs until the best prices are in the interior of a box.

        Arguments:
            tied: number of jobs in the first small program.

        Raises:
            Infeasible: the constraints are infeasible.
            SolverTrouble: no solution after the maximum number of boxes, or the solver failed.
        """
        common = self._common
        jobs = len(common.does)
        if not common.weight and (common.asked > common.does.max(axis=1) * (1 + _SMALL)).any():
            raise Infeasible(f"{self._place}: the constraints are infeasible")
        for _ in range(_STEPS):
            costs, at = self._lay()
            active, box = self._box(costs, at, tied)
            found, self.stand, off = Tied(common, box, at, active, self._place).best()
            if found is not None:
                return found
            # Jobs that the level moved furthest off their edges join the next program.
            self._forced = np.zeros(jobs, dtype=bool)
            worst = np.argsort(-off)[: tied // 2]
            self._forced[worst] = off[worst] > 0
            tied = int(tied * _MORE) + 1
        raise SolverTrouble(f"{self._place}: no solution after {_STEPS} boxes")

    def _lay(self) -> tuple[np.ndarray, Edges]:
        """Option costs and hull edges at the current prices, and the level they prove.

        The current prices prove a lower bound of the level, which becomes the current level. There, the total payment
        of all jobs equals the price of all workers; the payment is convex in the level. In a program with a level,
        nothing else has a cost, so prices are only determined up to a factor. The factor is chosen to give the level
        its cost.

        Raises:
            Infeasible: the prices prove that a program without a level is infeasible.
        """
        common, prices = self._common, self.stand.prices
        # A start from another program may have a level outside the bounds of this program.
        level = min(max(self.stand.level, common.level[0]), common.level[1])
        worth, costs = float(prices @ common.workers), common.dear(prices)
        for _ in range(_TURNS):
            asked = common.asked + common.slope * level
            at = edges(common.does_or_idles, costs, asked)
            falls, over = float(at.rate @ common.slope), float(at.rate @ asked - at.time.sum()) - worth
            if not common.weight:
                # `over` is a lower bound of all solutions; this is an upper bound of any feasible solution.
                if over > self._most + _SMALL * (abs(over) + self._most):
                    raise Infeasible(f"{self._place}: the constraints are infeasible")
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
        """Indices of the tied jobs, and a price box in which no other job changes edges.

        Arguments:
            costs: cost of each option at the current prices; shape (jobs, options).
            at: current hull edges.
            tied: minimum number of tied jobs.
        """
        common, prices = self._common, self.stand.prices
        jobs, dearest = len(common.does), float(prices.max(initial=0.0))
        wide = np.maximum(prices, max(_FLOOR * dearest, _SMALL * self._scale))
        moves = np.append(wide, 0.0)[common.type_or_none] * common.size[:, None]
        far = np.where(self._forced, -1.0, reach(at, common.does_or_idles, costs, moves))
        # Jobs at distance 0 change edges at any price change. Without further tied jobs, the box has no interior.
        tied = max(tied, int((far <= _SMALL).sum()) + _TIED // 2)
        if tied >= jobs:
            most = np.full(len(prices), _DEAR * max(self._scale, dearest))
            return np.arange(jobs), Box(np.zeros(len(prices)), most, self.stand.level)
        order = np.argpartition(far, tied)
        width = wide * min(float(far[order[tied]]), _WIDEST)
        return np.sort(order[:tied]), Box(np.maximum(prices - width, 0.0), prices + width, self.stand.level)
