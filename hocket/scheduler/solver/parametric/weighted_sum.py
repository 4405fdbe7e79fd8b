"""Maximum weighted sum of throughputs, with a separate weight for each job.

In a group of jobs with equal throughputs, the jobs are ordered by weight along the group's line of rates
(demand_groups.py); no lighter job should precede a heavier one. The value of a group is the sum over positions k of
(weight k - weight k+1) times the maximum throughput of its first k jobs, which is concave in the group's times. Any
rate l per position gives an upper bound,

    throughput of the first k jobs  <=  k l + sum over options of time * max(rate - l, 0),

which is exact for the rate at position k of the line. Bounds are added until they meet the value of the times.
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
_CLOSE = 1e-9


@dataclass(frozen=True, eq=False)
class _Block:
    """Some positions of a group's line.

    The fields are the block number, the group, the positions from 1, and the decrease of the weight after each
    position.
    """

    number: int
    group: int
    place: np.ndarray
    fall: np.ndarray


class Ranks:
    """Cutting-plane program of the groups' lines, with a weight for each job."""

    def __init__(self, lines: GroupLines, weights: np.ndarray) -> None:
        """
        Arguments:
            weights: weights >= 0 by job, for throughput relative to the job's fastest option alone.
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
        self._rows: list[tuple[np.ndarray, np.ndarray]] = []  # columns, values
        self._lower: list[float] = []
        self._extra: list[tuple[float, float]] = []
        for block in self.blocks:
            least = self._bound(block, np.full(len(block.place), self.lines.fastest[block.group]))
            self._extra.append((0.0, least[0]))
            self._add(block, *least)
            self._add(block, *self._bound(block, np.zeros(len(block.place))))

    def solve(self, place: str) -> tuple[Solution, float]:
        """Times of the variables, and the relative gap of their value.

        Arguments:
            place: name for messages.
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
        """Rate at each position of the line."""
        steps = self.lines.steps[self.lines.begins[block.group] : self.lines.begins[block.group + 1]]
        order = np.argsort(-steps, kind="stable")
        ends = np.cumsum(times[self._variables(block)][order])
        return np.append(steps[order], 0.0)[np.searchsorted(ends, block.place - 1e-12)]

    def _bound(self, block: _Block, rates: np.ndarray) -> tuple[float, np.ndarray]:
        """Constant of the upper bound, and a coefficient for each option of the group."""
        steps = self.lines.steps[self.lines.begins[block.group] : self.lines.begins[block.group + 1]]
        unit = self.unit[block.group]
        above = np.maximum(steps[:, None] - rates, 0.0) @ block.fall
        return float((block.fall * block.place * rates).sum() / unit), above / unit

    def _add(self, block: _Block, constant: float, values: np.ndarray) -> None:
        used = values > 0
        own = self.lines.shares.variables + block.number
        self._rows.append((np.append(self._variables(block)[used], own), np.append(values[used], -1.0)))
        self._lower.append(-constant)
