"""Demand rows for groups of jobs with equal throughputs but different demands.

An option of a group is a column, alone or beside another group. Laid end to end, fastest option first, the times of a
group of n jobs form its line of rates: a decreasing step function (steps per second) on a line of length n, which ends
with idle time. The jobs of the group can have the throughputs d if and only if for every rate l

    sum over options of time * max(rate - l, 0)  >=  sum over jobs of max(d - l, 0).

The left side is linear in l between the rates of options, and the right side is convex. So the constraints (rows) for
l = 0 and for these rates l suffice. The rows that matter are generated one by one (`missing`, min_cost_demand.py).
time_windows.py splits the times of a group among its jobs.
Source: weak majorization; also the condition of preemptive scheduling on uniform machines (Horvath, Lam and Sethi
1977).
"""

from functools import cached_property

import numpy as np

from hocket.scheduler.solver.lp.session import Labels
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints

MISSING = 1e-9  # tolerated violation of a row, as a fraction of the group's maximum throughput


class GroupLines:
    """Options of each group of jobs, with their rates.

    An option is a column, alone or beside another group.

    Attributes:
        shares: groups and variables of the linear program.
        group, variable, steps: group, variable and steps per second of a job, for each option, sorted by group.
        begins: the options of group g are range(begins[g], begins[g + 1]).
        fastest: steps per second of a job of each group on its fastest option.
        most: steps per second of each group with all its jobs on the fastest option.
    """

    def __init__(self, shares: AllocationVariables) -> None:
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

    def start(self, demand: np.ndarray) -> "LineCuts":
        """Initial demand rows: rate 0 of every group, and more for different demands.

        A group of jobs with different demands also gets a row for the rate of each option without a partner.

        Arguments:
            demand: steps per second, by job.
        """
        shares = self.shares
        runs = shares.group >= 0
        low, high = np.full(shares.groups, np.inf), np.zeros(shares.groups)
        np.minimum.at(low, shares.group[runs], demand[runs])
        np.maximum.at(high, shares.group[runs], demand[runs])
        group, rate = np.arange(shares.groups), np.zeros(shares.groups)
        alone = np.flatnonzero((shares.second < 0) & (low < high)[shares.first])
        if not len(alone):
            return LineCuts(self, group, rate)
        group, rate = np.append(group, shares.first[alone]), np.append(rate, shares.steps_first[alone])
        order = np.lexsort((rate, group))
        group, rate = group[order], rate[order]
        fresh = np.append(True, (group[1:] != group[:-1]) | (rate[1:] != rate[:-1]))
        return LineCuts(self, group[fresh], rate[fresh])

    def missing(self, times: np.ndarray, demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Group and rate of the most violated row of each group with a violated row.

        Arguments:
            times: values of the variables.
            demand: steps per second, by job.
        """
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
            if len(lack) and lack.max() > MISSING * self.most[g]:
                groups.append(g)
                rates.append(levels[lack.argmax()])
        return np.array(groups, dtype=np.int64), np.array(rates)

    def _missing_alone(self, times: np.ndarray, demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`missing` for programs without pairs: faster, as there are few rates."""
        every = self._every
        short = every.asked(demand) - every.done(times)
        order = np.lexsort((-short, every.group))
        worst = order[np.diff(every.group[order], prepend=-1) > 0]
        worst = worst[short[worst] > MISSING]
        return every.group[worst], every.rate[worst]

    @cached_property
    def _every(self) -> "LineCuts":
        """All possible rows of the groups with several jobs."""
        several = np.flatnonzero(self.shares.count > 1)
        own = np.isin(self.group, several)
        table = np.stack([self.group[own].astype(float), self.steps[own]])
        table = np.unique(np.hstack([table, [several, np.zeros(len(several))]]), axis=1)
        return LineCuts(self, table[0].astype(np.int64), table[1])


class LineCuts:
    """Demand rows of a linear program, each for one group and one rate.

    Each row is divided by the group's maximum throughput.

    Attributes:
        lines: options of the groups.
        group, rate: group and rate (steps per second) of each row.
    """

    def __init__(self, lines: GroupLines, group: np.ndarray, rate: np.ndarray) -> None:
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

    def with_more(self, group: np.ndarray, rate: np.ndarray) -> "LineCuts":
        """These rows, followed by rows for the given groups and rates."""
        return LineCuts(self.lines, np.concatenate([self.group, group]), np.concatenate([self.rate, rate]))

    @property
    def entries(self) -> int:
        """Number of matrix entries of a linear program with these rows."""
        return len(self._value) + len(self.lines.shares.limits.values)

    @property
    def labels(self) -> Labels:
        """Labels of the rows, for warm starts in a session."""
        return Labels(self.group, self.rate)

    def asked(self, demand: np.ndarray) -> np.ndarray:
        """Right side of each row: the throughput that the group's jobs demand above the row's rate.

        As in the row, it is divided by the group's maximum throughput.

        Arguments:
            demand: steps per second, by job.
        """
        over = np.maximum(demand[self._job] - self.rate[self._job_row], 0.0)
        return np.bincount(self._job_row, over, len(self.group)) / self.lines.most[self.group]

    def done(self, times: np.ndarray) -> np.ndarray:
        """Left side of each row: the throughput that the group gets above the row's rate.

        As in the row, it is divided by the group's maximum throughput.

        Arguments:
            times: values of the variables.
        """
        return np.bincount(self._row, self._value * times[self._column], len(self.group))

    def slopes(self, demand: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Derivative of each right side, if `change` is the derivative of the demands."""
        over = np.where(demand[self._job] > self.rate[self._job_row], change[self._job], 0.0)
        return np.bincount(self._job_row, over, len(self.group)) / self.lines.most[self.group]

    def by_job(self, demand: np.ndarray, prices: np.ndarray) -> np.ndarray:
        """Each job's part of the right sides, times the row prices; shape (jobs,)."""
        over = np.maximum(demand[self._job] - self.rate[self._job_row], 0.0)
        priced = over * (prices / self.lines.most[self.group])[self._job_row]
        return np.bincount(self._job, priced, len(self.lines.shares.group))

    def rows(self, demand: np.ndarray, slack: int | None = None) -> Constraints:
        """Rows as constraints of a linear program.

        Arguments:
            demand: steps per second, by job.
            slack: index of the variable that covers unmet demand; None to require all demand.
        """
        rows, columns, values = self._row, self._column, self._value
        if slack is not None:
            every = np.arange(len(self.group))
            rows = np.concatenate([rows, every])
            columns = np.concatenate([columns, np.full(len(every), slack)])
            values = np.concatenate([values, np.ones(len(every))])
        return Constraints(rows, columns, values, self.asked(demand), np.full(len(self.group), np.inf))
