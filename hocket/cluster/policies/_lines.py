"""Lines: jobs that run alike but ask for unlike throughputs, as one group in a program, exactly.

A group's times on its options (a column, or a column beside another group), fastest first, are a line of rates as long as the
group has jobs; the rest is idle. Its jobs can have throughputs d exactly if for every rate l

    sum over options of time * max(rate - l, 0)  >=  sum over jobs of max(d - l, 0).

The left side is linear in l between rates of options and the right side convex, so rows at 0 and at these rates are all that is
needed; those that matter are found one after the other (`missing`). How jobs get their parts: _windows.py.
Source: weak majorisation; as the condition of preemptive scheduling on uniform machines (Horvath, Lam and Sethi 1977).
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from hocket.cluster.policies._lp import Basis, Solution, SolverTrouble, solve
from hocket.cluster.policies._shares import Rows, Shares
from hocket.cluster.session import Session, solved

_ROUNDS = 200
_MISSING = 1e-9  # of what a group could do in all
_BASIC = 1  # a row or a variable that is not at a bound, in a basis


class Lines:
    """The lines of groups.

    Attributes:
        shares: the groups.
        group, variable, steps: of each option, sorted by group: a job of `group` does `steps` a second in the time of `variable`.
        begins: options of group g are begins[g] to begins[g + 1].
        fastest: steps a second of a job of each group on its fastest option.
        most: what a group does in all if all its jobs are there.
    """

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        both = np.flatnonzero(shares.second >= 0)
        group = np.concatenate([shares.first, shares.second[both]])
        order = np.argsort(group, kind="stable")
        self.group = group[order]
        self.variable = np.concatenate([np.arange(shares.variables), both])[order]
        self.steps = np.concatenate([shares.steps_first, shares.steps_second[both]])[order]
        self.begins = np.searchsorted(self.group, np.arange(shares.groups + 1))
        self.fastest = np.maximum.reduceat(self.steps, self.begins[:-1]) if shares.groups else np.zeros(0)
        self.most = self.fastest * shares.count

    def start(self, demand: np.ndarray) -> "Cuts":
        """Rows to begin with: rate 0, and where jobs of a group ask for unlike throughputs the rates of what it does alone.

        Arguments:
            demand: steps a second, by job.
        """
        shares = self.shares
        runs = shares.group >= 0
        low, high = np.full(shares.groups, np.inf), np.zeros(shares.groups)
        np.minimum.at(low, shares.group[runs], demand[runs])
        np.maximum.at(high, shares.group[runs], demand[runs])
        alone = np.flatnonzero((shares.second < 0) & (low < high)[shares.first])
        pairs = np.stack([shares.first[alone].astype(float), shares.steps_first[alone]], axis=1)
        zero = np.stack([np.arange(shares.groups, dtype=float), np.zeros(shares.groups)], axis=1)
        table = np.unique(np.concatenate([zero, pairs]), axis=0)
        return Cuts(self, table[:, 0].astype(np.int64), table[:, 1])

    def missing(self, times: np.ndarray, demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Group and rate of the row that is broken most, for groups where one is."""
        if len(self.group) == self.shares.variables:
            return self._missing_alone(times, demand)
        groups, rates = [], []
        order = np.argsort(self.shares.group, kind="stable")
        bounds = np.searchsorted(self.shares.group[order], np.arange(self.shares.groups + 1))
        for g in np.flatnonzero(self.shares.count > 1).tolist():
            wanted = demand[order[bounds[g] : bounds[g + 1]]]
            if wanted.max() == wanted.min():
                continue
            own = slice(self.begins[g], self.begins[g + 1])
            steps, time = self.steps[own], times[self.variable[own]]
            levels = np.unique(steps)
            levels = levels[levels < wanted.max()]
            does = np.maximum(steps - levels[:, None], 0.0) @ time
            lack = np.maximum(wanted - levels[:, None], 0.0).sum(axis=1) - does
            if len(lack) and lack.max() > _MISSING * self.most[g]:
                groups.append(g)
                rates.append(levels[lack.argmax()])
        return np.array(groups, dtype=np.int64), np.array(rates)

    def _missing_alone(self, times: np.ndarray, demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same without pairs, where rates are few."""
        every = self._every
        short = every.asked(demand) - every.done(times)
        order = np.lexsort((-short, every.group))
        worst = order[np.diff(every.group[order], prepend=-1) > 0]
        worst = worst[short[worst] > _MISSING]
        return every.group[worst], every.rate[worst]

    @cached_property
    def _every(self) -> "Cuts":
        """All rows of groups of several jobs."""
        several = np.flatnonzero(self.shares.count > 1)
        own = np.isin(self.group, several)
        table = np.stack([self.group[own].astype(float), self.steps[own]])
        table = np.unique(np.hstack([table, [several, np.zeros(len(several))]]), axis=1)
        return Cuts(self, table[0].astype(np.int64), table[1])


class Cuts:
    """Some rows of lines: groups and rates, in parts of what a group could do in all."""

    def __init__(self, lines: Lines, group: np.ndarray, rate: np.ndarray) -> None:
        self.lines, self.group, self.rate = lines, group, rate
        begins = lines.begins
        sizes = begins[group + 1] - begins[group]
        row = np.repeat(np.arange(len(group)), sizes)
        option = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes) + begins[group][row]
        above = lines.steps[option] - rate[row]
        used = above > 0
        self._row, self._column = row[used], lines.variable[option[used]]
        self._value = above[used] / lines.most[group[row[used]]]
        shares = lines.shares
        order = np.argsort(shares.group, kind="stable")
        starts = np.searchsorted(shares.group[order], np.arange(shares.groups + 1))
        jobs = starts[group + 1] - starts[group]
        self._job_row = np.repeat(np.arange(len(group)), jobs)
        offset = np.arange(jobs.sum()) - np.repeat(np.cumsum(jobs) - jobs, jobs)
        self._job = order[offset + starts[group][self._job_row]]

    def with_more(self, group: np.ndarray, rate: np.ndarray) -> "Cuts":
        """These and more."""
        return Cuts(self.lines, np.concatenate([self.group, group]), np.concatenate([self.rate, rate]))

    def asked(self, demand: np.ndarray) -> np.ndarray:
        """Right sides, for what jobs ask for."""
        over = np.maximum(demand[self._job] - self.rate[self._job_row], 0.0)
        return np.bincount(self._job_row, over, len(self.group)) / self.lines.most[self.group]

    def done(self, times: np.ndarray) -> np.ndarray:
        """Left sides, for the times of variables."""
        return np.bincount(self._row, self._value * times[self._column], len(self.group))

    def slopes(self, demand: np.ndarray, change: np.ndarray) -> np.ndarray:
        """By how much right sides change where what jobs ask for changes by so much."""
        over = np.where(demand[self._job] > self.rate[self._job_row], change[self._job], 0.0)
        return np.bincount(self._job_row, over, len(self.group)) / self.lines.most[self.group]

    def by_job(self, demand: np.ndarray, prices: np.ndarray) -> np.ndarray:
        """What each job's demand adds to the right sides, at a price a row; shape (jobs,)."""
        over = np.maximum(demand[self._job] - self.rate[self._job_row], 0.0)
        priced = over * (prices / self.lines.most[self.group])[self._job_row]
        return np.bincount(self._job, priced, len(self.lines.shares.group))

    def rows(self, demand: np.ndarray, slack: int | None = None) -> Rows:
        """As constraints; slack: a variable that may stand in for what is lacking."""
        rows, columns, values = self._row, self._column, self._value
        if slack is not None:
            every = np.arange(len(self.group))
            rows = np.concatenate([rows, every])
            columns = np.concatenate([columns, np.full(len(every), slack)])
            values = np.concatenate([values, np.ones(len(every))])
        return Rows(rows, columns, values, self.asked(demand), np.full(len(self.group), np.inf))


def lack(
    cuts: Cuts, demand: np.ndarray, place: str, basis: Basis | None = None, session: Session | None = None
) -> tuple[Solution, Cuts, np.ndarray]:
    """By how much the demands cannot be met: the answer (its last variable and objective), rows, and the prices of these.

    Arguments:
        basis: of an answer for the same rows, to begin from. session: that may know one where there is none.
    """
    shares = cuts.lines.shares
    cost = np.zeros(shares.variables + 1)
    cost[-1] = 1.0

    def least(cuts: Cuts, basis: Basis | None) -> Solution:
        most = float(cuts.asked(demand).max(initial=0.0))
        program = shares.program(cost, cuts.rows(demand, slack=shares.variables), extra=((0.0, most),))
        return solved(session, shares, program, place) if basis is None else solve(program, place, basis)

    return _cut(cuts, demand, least, place, basis)


def best(
    cuts: Cuts, demand: np.ndarray, cost: np.ndarray, place: str, basis: Basis | None = None
) -> tuple[Solution, Cuts, np.ndarray]:
    """Times of least cost at which every job has what it asks for; rows, and the prices of these.

    Arguments:
        basis: of an answer for the same rows, to begin from.

    Raises:
        Infeasible: they cannot.
    """
    shares = cuts.lines.shares

    def least(cuts: Cuts, basis: Basis | None) -> Solution:
        return solve(shares.program(cost, cuts.rows(demand)), place, basis)

    return _cut(cuts, demand, least, place, basis)


def _cut(
    cuts: Cuts,
    demand: np.ndarray,
    least: Callable[[Cuts, Basis | None], Solution],
    place: str,
    basis: Basis | None = None,
) -> tuple[Solution, Cuts, np.ndarray]:
    lines = cuts.lines
    limits = len(lines.shares.limits.lower)
    for _ in range(_ROUNDS):
        found = least(cuts, basis)
        prices = np.maximum(found.duals[limits : limits + len(cuts.group)], 0.0)
        slack = found.x[lines.shares.variables :].sum()
        if slack > _MISSING:
            return found, cuts, prices  # already short: what is missing besides does not matter
        group, rate = lines.missing(found.x, demand)
        known = set(zip(cuts.group.tolist(), cuts.rate.tolist(), strict=True))
        new = [k for k, pair in enumerate(zip(group.tolist(), rate.tolist(), strict=True)) if pair not in known]
        if not new:
            return found, cuts, prices
        cuts = cuts.with_more(group[new], rate[new])
        basis = extended(found.basis, len(new))
    raise SolverTrouble(f"{place}: rows are missing after {_ROUNDS} rounds")


def extended(basis: Basis | None, rows: int) -> Basis | None:
    """A basis for a program that has some more rows at its end."""
    if basis is None:
        return None
    return basis[0], np.append(basis[1], np.full(rows, _BASIC, dtype=basis[1].dtype))


def without_slack(found: Solution) -> Basis | None:
    """The basis of an answer of `lack` for `best` to begin from; a row stands in for the slack where that is in it."""
    basis = found.basis
    if basis is None:
        return None
    rows = basis[1].copy()
    if basis[0][-1] == _BASIC:
        tight = np.flatnonzero(rows != _BASIC)
        if not len(tight):
            return None
        rows[tight[-1]] = _BASIC
    return basis[0][:-1], rows
