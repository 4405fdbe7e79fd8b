"""Maximum weighted sum of throughputs, with a separate weight for each job.

The times of a group of jobs with equal throughputs form a line of rates, fastest first (demand_groups.py). The
heaviest job gets the first unit of length of the line, the next job the second unit, and so on. The value of a group
is the sum over positions k of (weight k - weight k+1) times the throughput of its first k jobs, which is concave in
the group's times. Any rate l gives an upper bound of this throughput,

    throughput of the first k jobs  <=  k l + sum over options of time * max(rate - l, 0),

which is exact if l is the rate at position k of the line. Bounds with one rate per position are added to a linear
program until they equal the value of its solution.
Source: cutting planes (Kelley 1960); the line as in demand_groups.py.
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.solver.lp.linear_program import Basis, Solution, SolverTrouble, solve
from hocket.scheduler.solver.lp.variables import Constraints
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.parametric.min_cost_demand import extended

_ROUNDS = 500
_BLOCKS = 4  # blocks per group, each with separate bounds; more blocks mean fewer rounds of larger programs
_CLOSE = 1e-9  # relative tolerance of bounds


@dataclass(frozen=True, eq=False)
class _Block:
    """Consecutive positions of a group's jobs, in descending order of weight.

    Attributes:
        number: index of the block among all blocks.
        group: index of the group.
        place: positions in the group, counted from 1.
        fall: decrease of the weight from each position to the next.
    """

    number: int
    group: int
    place: np.ndarray
    fall: np.ndarray


class Ranks:
    """Cutting-plane solver for the maximum weighted sum of throughputs."""

    def __init__(self, lines: GroupLines, weights: np.ndarray) -> None:
        """
        Arguments:
            lines: groups of jobs and their options.
            weights: weight of each job, >= 0, for its throughput relative to its fastest option without a partner.
        """
        self.lines = lines
        shares = lines.shares
        alone = shares.second < 0
        self.unit = np.zeros(shares.groups)
        np.maximum.at(self.unit, shares.first[alone], shares.steps_first[alone])
        order = np.lexsort((-weights, shares.group))
        bounds = np.searchsorted(shares.group[order], np.arange(shares.groups + 1))
        self.blocks: list[_Block] = []
        for g in range(shares.groups):
            own = weights[order[bounds[g] : bounds[g + 1]]]
            fall = own - np.append(own[1:], 0.0)
            for places in np.array_split(np.arange(len(own)), min(_BLOCKS, len(own))):
                self.blocks.append(_Block(len(self.blocks), g, places + 1.0, fall[places]))
        self._rows: list[tuple[np.ndarray, np.ndarray]] = []  # columns and values of each bound
        self._lower: list[float] = []
        self._extra: list[tuple[float, float]] = []
        for block in self.blocks:
            least = self._bound(block, np.full(len(block.place), self.lines.fastest[block.group]))
            self._extra.append((0.0, least[0]))
            self._add(block, *least)
            self._add(block, *self._bound(block, np.zeros(len(block.place))))

    def solve(self, place: str) -> tuple[Solution, float]:
        """Solve, adding bounds until they are tight.

        Arguments:
            place: name of the program in error messages.

        Returns:
            The solution of the last linear program, and the relative optimality gap of its value.

        Raises:
            SolverTrouble: the bounds do not become tight, or the solver failed.
        """
        shares = self.lines.shares
        unit = max(1.0, sum(most for _, most in self._extra))
        cost = np.append(np.zeros(shares.variables), np.full(len(self.blocks), -1.0 / unit))
        basis: Basis | None = None
        for _ in range(_ROUNDS):
            sizes = [len(columns) for columns, _ in self._rows]
            rows = Constraints(
                np.repeat(np.arange(len(sizes)), sizes),
                np.concatenate([columns for columns, _ in self._rows]),
                np.concatenate([values for _, values in self._rows]),
                np.array(self._lower),
                np.full(len(sizes), np.inf),
            )
            found = solve(shares.program(cost, rows, extra=self._extra), place, basis)
            worth, before = 0.0, len(self._rows)
            for block in self.blocks:
                constant, values = self._bound(block, self._rates(block, found.x))
                does = constant + float(values @ found.x[self._variables(block)])
                worth += does
                if found.x[shares.variables + block.number] > does + _CLOSE * max(1.0, does):
                    self._add(block, constant, values)
            if len(self._rows) == before or -found.bound * unit <= worth * (1 + _CLOSE):
                gap = max(0.0, -found.bound * unit / worth - 1) if worth > 0 else 0.0
                return found, gap
            basis = extended(found.basis, len(self._rows) - before)
        raise SolverTrouble(f"{place}: no solution after {_ROUNDS} rounds")

    def _variables(self, block: _Block) -> np.ndarray:
        return self.lines.variable[self.lines.begins[block.group] : self.lines.begins[block.group + 1]]

    def _rates(self, block: _Block, times: np.ndarray) -> np.ndarray:
        """Steps per second at each of the block's positions in the group's line of rates.

        Arguments:
            times: values of the variables of the linear program.
        """
        steps = self.lines.steps[self.lines.begins[block.group] : self.lines.begins[block.group + 1]]
        order = np.argsort(-steps, kind="stable")
        ends = np.cumsum(times[self._variables(block)][order])
        return np.append(steps[order], 0.0)[np.searchsorted(ends, block.place - 1e-12)]

    def _bound(self, block: _Block, rates: np.ndarray) -> tuple[float, np.ndarray]:
        """Upper bound of the block's value, linear in the times of the group's options.

        Arguments:
            rates: rate l of the bound at each position.

        Returns:
            Constant of the bound, and coefficient of each option's time.
        """
        steps = self.lines.steps[self.lines.begins[block.group] : self.lines.begins[block.group + 1]]
        unit = self.unit[block.group]
        above = np.maximum(steps[:, None] - rates, 0.0) @ block.fall
        return float((block.fall * block.place * rates).sum() / unit), above / unit

    def _add(self, block: _Block, constant: float, values: np.ndarray) -> None:
        used = values > 0
        own = self.lines.shares.variables + block.number
        self._rows.append((np.append(self._variables(block)[used], own), np.append(values[used], -1.0)))
        self._lower.append(-constant)
