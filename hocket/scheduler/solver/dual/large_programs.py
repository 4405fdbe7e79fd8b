"""Linear programs of hundreds or thousands of job groups that share only workers.

Each group has one demand row. The programs are solved by dual decomposition (dual_decomposition.py).
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.solver.dual.dual_decomposition import settled, stands
from hocket.scheduler.solver.dual.separable_program import Basic, Common, Stand
from hocket.scheduler.solver.lp.linear_program import Basis, Infeasible, Solution, SolverTrouble
from hocket.scheduler.solver.lp.variables import AllocationVariables

MANY = 400  # minimum number of groups; smaller programs are as fast with HiGHS alone
_MOST_COLUMNS = 16
_GAP = 1e-7  # relative tolerance of the duality gap
_AT_LOWER, _BASIC, _AT_UPPER = 0, 1, 2  # states in a basis


@dataclass(frozen=True, eq=False)
class GroupRows:
    """One demand row per group: throughput / unit >= asked + slope * level.

    The throughput is that of one job. The level is a variable of the whole program.

    Attributes:
        unit: unit of throughput in steps per second, by group.
        asked, slope: demand at level 0, and change of the demand per unit of level, by group.
    """

    unit: np.ndarray
    asked: np.ndarray
    slope: np.ndarray


def many(shares: AllocationVariables) -> bool:
    """True if dual decomposition is faster: many groups, few columns, and no pairs."""
    alone = not (shares.second >= 0).any()
    return alone and shares.groups >= MANY and len(shares.snapshot.columns) <= _MOST_COLUMNS


def solve(
    shares: AllocationVariables,
    rows: GroupRows,
    place: str,
    cost: np.ndarray | None = None,
    level: tuple[float, float] | None = None,
    start: Stand | None = None,
) -> tuple[Solution, Stand] | None:
    """Minimize the cost, or the level if the program has one.

    Arguments:
        shares: groups and variables, without pairs.
        rows: demand row of each group.
        place: name of the program in error messages.
        cost: cost of each variable; None to minimize the level.
        level: lower and upper bound of the level; None for no level. The level is the last variable of the solution.
        start: initial worker prices and level; None to compute them.

    Returns:
        The solution, and a start for the next call; None if the method finds no solution. The duals are those of
            `shares.limits`, followed by one per demand row. The bound is valid for any level.

    Raises:
        Infeasible: the constraints are infeasible.
    """
    common = _common(shares, rows, cost, level)
    try:
        found = settled(common, place, start)
    except Infeasible:
        raise
    except SolverTrouble:
        return None if start is None else solve(shares, rows, place, cost, level)
    times = found.parts[shares.first, shares.column] * shares.count[shares.first]
    duals = np.concatenate([-found.time / shares.count, -found.prices, found.rates])
    worth = float(found.rates @ rows.asked - found.time.sum() - found.prices @ common.workers)
    x = times if level is None else np.append(times, found.level)
    objective = found.level if cost is None else float(cost @ times)
    if abs(objective - worth) > _GAP * max(1.0, abs(objective)):
        return None if start is None else solve(shares, rows, place, cost, level)
    ends = max(map(abs, common.level))
    bound = min(worth, objective) - abs(common.weight + float(found.rates @ rows.slope)) * ends
    answer = Solution(x, duals, objective, bound, known=_basis(shares, found.basic, level is not None))
    return answer, Stand(found.prices, found.level)


def shown(
    shares: AllocationVariables, rows: GroupRows, prices: np.ndarray, cost: np.ndarray | None = None
) -> np.ndarray:
    """Row duals at given worker prices and level 0.

    Arguments:
        prices: price of a worker of each type.
        cost: cost of each variable. If it is None, the duals are scaled so that those of the demand rows add up to 1,
            as they do at a minimum level.
    """
    common = _common(shares, rows, cost, None)
    found = stands(common, prices)
    unit = float(found.rate.sum()) if cost is None else 1.0
    return np.concatenate([-found.time / shares.count, -prices, found.rate]) / (unit or 1.0)


def _common(
    shares: AllocationVariables, rows: GroupRows, cost: np.ndarray | None, level: tuple[float, float] | None
) -> Common:
    first, column = shares.first, shares.column
    shape = shares.groups, len(shares.snapshot.columns)
    does, costs = np.zeros(shape), np.full(shape, np.inf)
    does[first, column] = shares.steps_first / rows.unit[first]
    costs[first, column] = 0.0 if cost is None else cost * shares.count[first]
    size, own = shares.scale * shares.count, shares.snapshot
    weight, ends = float(level is not None), level or (0.0, 0.0)
    return Common(does, costs, rows.asked, rows.slope, size, own.type_of, own.workers, weight, ends)


def _basis(shares: AllocationVariables, basic: Basic, level: bool) -> Basis:
    """Basis of a solution; the last variable is the level, if there is one."""
    columns = np.where(basic.parts[shares.first, shares.column], _BASIC, _AT_LOWER)
    limits = np.where(np.concatenate([basic.time, basic.types]), _BASIC, _AT_UPPER)
    rows = np.append(limits, np.where(basic.asks, _BASIC, _AT_LOWER))
    return np.append(columns, [_BASIC] * level).astype(np.int8), rows.astype(np.int8)
