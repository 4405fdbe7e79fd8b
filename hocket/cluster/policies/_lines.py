"""Lines: jobs that run alike but ask for unlike throughputs, as one group in a program, exactly.

A group's times on its options (a column, or a column beside another group), fastest first, are a line of rates as long as the
group has jobs; the rest is idle. Its jobs can have throughputs d exactly if for every rate l

    sum over options of time * max(rate - l, 0)  >=  sum over jobs of max(d - l, 0).

The left side is linear in l between rates of options and the right side convex, so rows at 0 and at these rates are all that is
needed; those that matter are found one after the other (`missing`). How jobs get their parts: _windows.py.
Source: weak majorisation; as the condition of preemptive scheduling on uniform machines (Horvath, Lam and Sethi 1977).
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from hocket.cluster import session as sessions
from hocket.cluster.policies import _unlike as unlike
from hocket.cluster.policies._common import Stand
from hocket.cluster.policies._lp import Basis, Program, Solution, SolverTrouble, solve
from hocket.cluster.policies._shares import Rows, Shares
from hocket.cluster.session import Labels, Session

_ROUNDS = 200
_MISSING = 1e-9  # of what a group could do in all
_DEAR = 8.0  # times what jobs cost
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
        group, rate = np.arange(shares.groups), np.zeros(shares.groups)
        alone = np.flatnonzero((shares.second < 0) & (low < high)[shares.first])
        if not len(alone):
            return Cuts(self, group, rate)
        group, rate = np.append(group, shares.first[alone]), np.append(rate, shares.steps_first[alone])
        order = np.lexsort((rate, group))
        group, rate = group[order], rate[order]
        fresh = np.append(True, (group[1:] != group[:-1]) | (rate[1:] != rate[:-1]))
        return Cuts(self, group[fresh], rate[fresh])

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

    @property
    def entries(self) -> int:
        """How many a program with these rows has."""
        return len(self._value) + len(self.lines.shares.limits.values)

    @property
    def labels(self) -> Labels:
        """What the rows are about, for a session."""
        return Labels(self.group, self.rate)

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


class Served:
    """Times of variables of least cost at which jobs have what they ask for, for one demand after another.

    Attributes:
        cuts: rows that have mattered so far. solution: the last answer; None before the first.
    """

    def __init__(
        self,
        cuts: Cuts,
        cost: np.ndarray,
        place: str,
        most: float | None = None,
        session: Session | None = None,
        basis: Basis | None = None,
        start: Stand | None = None,
    ) -> None:
        """
        Arguments:
            cost: of the variables.
            place: for messages.
            most: what may lack at most. With it the variables cost nothing, and what lacks is the last of them and the cost.
            session: that may know where to begin. basis, start: to begin from where it does not.
        """
        self.cuts, self.place = cuts, place
        self.solution: Solution | None = None
        self._cost = cost if most is None else np.append(np.zeros_like(cost), 1.0)
        self._extra = () if most is None else ((0.0, most),)
        self._most = most or 0.0
        self._slack = None if most is None else cuts.lines.shares.variables
        self._name = place if most is None else lacking(place)
        worth = cuts.entries >= sessions.WORTH
        self._session, self._basis = session if worth else None, basis
        self._program: Program | None = None
        self._looked = False  # at what the session knows
        self._start = start
        lines = cuts.lines
        one_each = len(cuts.group) == lines.shares.groups and not cuts.rate.any()
        self._unlike = one_each and unlike.many(lines.shares)
        if self._unlike and session is not None:
            self._start = session.prices(lines.shares.snapshot, self._name) or start

    @property
    def prices(self) -> np.ndarray:
        """Of the rows, after the last answer."""
        assert self.solution is not None
        limits = len(self.cuts.lines.shares.limits.lower)
        return np.maximum(self.solution.duals[limits : limits + len(self.cuts.group)], 0.0)

    def known(self, demand: np.ndarray) -> np.ndarray | None:
        """Duals that these rows had in the session's last answer, or have at its prices; None where nothing is known."""
        if self._unlike and self._start is not None:
            cost = None if self._slack is not None else self._cost
            return unlike.shown(self.cuts.lines.shares, self._rows(demand)[0], self._start.prices, cost)
        self._looked = True
        if self._session is None:
            return None
        shares = self.cuts.lines.shares
        rows, columns = len(shares.limits.lower) + len(self.cuts.group), len(self._cost)
        start = self._session.start(shares, rows, columns, self._name, self.cuts.labels)
        if start is None:
            return None
        self._basis = start.basis
        return start.duals

    def bound(self, duals: np.ndarray, demand: np.ndarray) -> float:
        """What these jobs ask for costs no less, by any duals of the rows."""
        return self._at(demand).bound(duals)

    def ask(self, demand: np.ndarray) -> Solution:
        """The answer for what jobs ask for, steps a second.

        Raises:
            Infeasible: there is none.
        """
        shares = self.cuts.lines.shares
        found = self._by_prices(demand) if self._unlike else None
        if found is not None:
            self.solution = found
            return found
        for _ in range(_ROUNDS):
            again = self._program is not None
            program = self._at(demand)
            if again and self.solution is not None:
                found = solve(program, self.place, after=self.solution)
            else:
                if not self._looked:
                    self.known(demand)
                found = solve(program, self.place, self._basis)
            self.solution = found
            if found.x[shares.variables :].sum() > _MISSING:
                return found  # already short: what is missing besides does not matter
            group, rate = self.cuts.lines.missing(found.x, demand)
            known = set(zip(self.cuts.group.tolist(), self.cuts.rate.tolist(), strict=True)) if len(group) else set()
            new = [k for k, pair in enumerate(zip(group.tolist(), rate.tolist(), strict=True)) if pair not in known]
            if not new:
                return found
            self.cuts = self.cuts.with_more(group[new], rate[new])
            self._basis, self._program, self.solution = extended(found.basis, len(new)), None, None
        raise SolverTrouble(f"{self.place}: rows are missing after {_ROUNDS} rounds")

    def _by_prices(self, demand: np.ndarray) -> Solution | None:
        """The same where groups are many, and each has a row; None where it is not found so."""
        shares = self.cuts.lines.shares
        rows, level = self._rows(demand)
        cost = self._cost if level is None else None
        answer = unlike.solve(shares, rows, self.place, cost, level, self._start)
        if answer is None:
            return None
        found, self._start = answer
        return found if level is None else _not_below(found)

    def _rows(self, demand: np.ndarray) -> tuple[unlike.Rows, tuple[float, float] | None]:
        """A row a group, and the least and most of what lacks; less than nothing may lack: then it shows what would, next."""
        lines = self.cuts.lines
        lacks = self._slack is not None
        slope = np.full(lines.shares.groups, -1.0 if lacks else 0.0)
        rows = unlike.Rows(lines.fastest, self.cuts.asked(demand), slope)
        return rows, (-1.0, self._most) if lacks else None

    @property
    def start(self) -> Stand | None:
        """Prices where it is to begin the next time."""
        return self._start

    def scarce(self) -> Stand | None:
        """Prices to begin with where what lacks here is nearly nothing, and times are to cost least: then workers are dear."""
        if self._start is None:
            return None
        return Stand(self._start.prices * (_DEAR * self.cuts.lines.shares.groups), 0.0)

    def keep(self) -> None:
        """Let the session know where this ended."""
        if self._session is not None and self._unlike and self._start is not None:
            self._session.keep_prices(self.cuts.lines.shares.snapshot, self._name, self._start)
        elif self._session is not None and self.solution is not None:
            self._session.keep(self.cuts.lines.shares, self.solution, self._name, self.cuts.labels)

    def _at(self, demand: np.ndarray) -> Program:
        """The program for a demand; where there was one with these rows, only its sides change."""
        shares = self.cuts.lines.shares
        if self._program is None:
            self._program = shares.program(self._cost, self.cuts.rows(demand, self._slack), extra=self._extra)
        else:
            lower = np.concatenate([shares.limits.lower, self.cuts.asked(demand)])
            self._program = replace(self._program, row_lower=lower)
        return self._program


def _not_below(found: Solution) -> Solution:
    """What lacks, which is no less than nothing."""
    least = max(found.objective, 0.0)
    return replace(found, x=np.append(found.x[:-1], least), objective=least, bound=max(found.bound, 0.0))


def lacking(place: str) -> str:
    """What a session calls programs of what lacks."""
    return f"{place}, what lacks"


def extended(basis: Basis | None, rows: int) -> Basis | None:
    """A basis for a program that has some more rows at its end."""
    if basis is None:
        return None
    return basis[0], np.append(basis[1], np.full(rows, _BASIC, dtype=basis[1].dtype))


def without_slack(found: Solution) -> Basis | None:
    """The basis of an answer of what lacks for one with the same rows to begin from; a row stands in for what lacks there."""
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
