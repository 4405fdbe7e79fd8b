"""Variables of the policies' linear programs, and constraints of all allocations.

Jobs with equal values of all that a policy considers get equal shares: they form one group. This is exact, because
averaging an allocation over identical jobs keeps the objective. A variable is the fraction of time that a group, or
two groups that share workers, spends on a column (a placement on a worker type), summed over the group's jobs.
Source: Narayanan's dissertation, equations 5.1 to 5.3, and section 5.3.1 for space sharing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.linear_program import LinearProgram

_INFINITY = float("inf")
# As arrays, because array operands are faster than scalars.
_ODD, _SHIFT = np.array([0x9E3779B97F4A7C15], dtype=np.uint64), np.array([29], dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class Constraints:
    """Linear constraints: matrix entries (row, column, value), and bounds of each row."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class AllocationVariables:
    """Groups of identical jobs of a snapshot, and the variables of the groups.

    Attributes:
        snapshot: the snapshot.
        refused: reason by job index, for jobs that cannot run; they have no group.
        group: group of each job; -1 for refused jobs.
        count: number of jobs in each group.
        member: index of one job of each group.
        first, second, column: group, second group (ALONE for none) and column of each variable.
        steps_first, steps_second: steps per second of a job of the first and of the second group, by variable.
    """

    def __init__(self, snapshot: Snapshot, keys: Sequence[np.ndarray] = ()) -> None:
        """
        Arguments:
            keys: further job attributes that the policy considers, besides throughputs, scale factors and
                space-sharing classes; each of shape (jobs,).
        """
        self.snapshot = snapshot
        able = self._steps_alone = snapshot.able
        columns, jobs = able.shape[1], len(snapshot.jobs)
        pairs = snapshot.pairs
        table = np.empty((columns + 1 + len(keys) + (pairs is not None), jobs))
        table[:columns] = able.T
        table[columns] = snapshot.scale
        for row, key in enumerate(keys, columns + 1):
            table[row] = key
        if pairs is not None:
            table[-1] = pairs.classes
        self.refused: dict[int, str] = {}
        if snapshot.all_run:
            self.group, self.member, count = _alike(table)
        else:
            ways = np.count_nonzero(able, axis=1)
            there = np.flatnonzero(ways)
            self.refused = _refused(snapshot, np.flatnonzero(ways == 0))
            group, member, count = _alike(table[:, there])
            self.group = np.full(jobs, -1, dtype=np.int64)
            self.group[there], self.member = group, there[member]
        self.count = count.astype(float)
        self.first, self.second, self.column, self.steps_first, self.steps_second = self._variables()

    def _variables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        steps = self._steps_alone[self.member]
        own, column = np.nonzero(steps)
        size = len(own)
        alone = own, np.full(size, ALONE), column, steps[own, column], np.zeros(size)
        pairs = self.snapshot.pairs
        if pairs is None:
            return alone
        classes = pairs.classes[self.member]
        # kept[a, b, column]: fraction of its throughput that a job of group a keeps beside a job of group b.
        kept = pairs.kept[classes[:, None], classes[None, :]]
        beside = kept * steps[:, None, :]
        able = (beside > 0) & (beside.transpose(1, 0, 2) > 0)
        able &= (self.snapshot.scale[self.member][:, None] == self.snapshot.scale[self.member][None, :])[:, :, None]
        able &= np.triu(np.ones(able.shape[:2], dtype=bool))[:, :, None]
        able[np.arange(len(steps)), np.arange(len(steps))] &= (self.count > 1)[:, None]
        a, b, c = np.nonzero(able)
        shared = a, b, c, beside[a, b, c], beside[b, a, c]
        return tuple(np.concatenate(both) for both in zip(alone, shared, strict=True))  # type: ignore[return-value]

    @property
    def variables(self) -> int:
        """Number of variables."""
        return len(self.first)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.count)

    @cached_property
    def scale(self) -> np.ndarray:
        """Scale factor (number of workers) of a job of each group."""
        return self.snapshot.scale[self.member]

    @cached_property
    def _pairs(self) -> np.ndarray:
        return (self.second != ALONE).nonzero()[0]

    @cached_property
    def throughput(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Matrix entries (group, variable, steps per second) of the throughputs.

        The matrix times the variables gives the throughput of one job of each group.
        """
        both = self._pairs
        groups = np.concatenate([self.first, self.second[both]])
        steps = np.concatenate([self.steps_first, self.steps_second[both]])
        return groups, np.concatenate([np.arange(self.variables), both]), steps / self.count[groups]

    @cached_property
    def limits(self) -> Constraints:
        """Constraints of every allocation: time per group, then workers per type.

        A time row (equation 5.2), one per group: no job runs for more than all of the time. A type row (equation 5.3),
        one per worker type: no more workers are in use than there are.
        """
        both, every = self._pairs, np.arange(self.variables)
        times = len(every) + len(both)
        values = np.ones(times + len(every))
        values[times:] = self.scale[self.first]
        kind = self.groups + self.snapshot.type_of[self.column]
        return Constraints(
            np.concatenate([self.first, self.second[both], kind]),
            np.concatenate([every, both, every]),
            values,
            np.full(self.groups + len(self.snapshot.types), -_INFINITY),
            np.concatenate([self.count, self.snapshot.workers]),
        )

    def program(self, cost: np.ndarray, *more: Constraints, extra: Sequence[tuple[float, float]] = ()) -> LinearProgram:
        """Linear program of minimum cost under `limits` and further constraints.

        Arguments:
            cost: cost of each variable, then of each extra variable.
            more: further constraints; the rows of each block are numbered from 0.
            extra: lower and upper bound of each extra variable. Like those of the other variables they must be finite,
                so that any duals give a bound of the cost.
        """
        limits, width = self.limits, self.variables
        rows, columns, values = [limits.rows], [limits.columns], [limits.values]
        lower, upper = [limits.lower], [limits.upper]
        count = len(limits.lower)
        for part in more:
            rows.append(part.rows + count)
            columns.append(part.columns)
            values.append(part.values)
            lower.append(part.lower)
            upper.append(part.upper)
            count += len(part.lower)
        least, most = np.zeros(len(cost)), np.empty(len(cost))
        most[:width] = self.count[self.first]
        if extra:
            least[width:], most[width:] = zip(*extra, strict=True)
        if not more:
            return LinearProgram(cost, least, most, *(part[0] for part in (lower, upper, rows, columns, values)))
        return LinearProgram(
            cost, least, most, *(np.concatenate(part) for part in (lower, upper, rows, columns, values))
        )


def _alike(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group equal columns of a table.

    Columns are compared by a 64-bit hash, which is faster than sorting. On a collision, they are sorted after all.

    Returns:
        Group of each column; index of one column of each group; number of columns in each group.
    """
    columns = table.shape[1]
    bits = (table + 0.0).view(np.uint64)  # + 0.0: -0.0 is 0.0
    bits = (bits ^ (bits >> _SHIFT)) * _ODD
    bits ^= bits >> _SHIFT
    bits *= _powers(len(bits))
    mixed = np.add.reduce(bits, axis=0)
    order = mixed.argsort(kind="stable")
    mixed = mixed[order]
    begins = np.empty(columns, dtype=bool)
    begins[:1] = False
    np.not_equal(mixed[1:], mixed[:-1], out=begins[1:])
    group = np.empty(columns, dtype=np.int64)
    group[order] = begins.cumsum()
    begins[:1] = True
    member = order[begins]
    if np.count_nonzero(table.take(member[group], axis=1) != table):
        _, member, group, count = np.unique(table, axis=1, return_index=True, return_inverse=True, return_counts=True)
        return group, member, count
    return group, member, np.bincount(group, minlength=len(member))


@lru_cache(maxsize=64)
def _powers(rows: int) -> np.ndarray:
    """Hash factor of each row; equal numbers in different rows hash differently."""
    found = np.cumprod(np.full(rows, _ODD[0]))[:, None]
    found.setflags(write=False)
    return found


def _refused(snapshot: Snapshot, jobs: np.ndarray) -> dict[int, str]:
    """Reason why each of these jobs cannot run, by job index."""
    found: dict[int, str] = {}
    most = snapshot.workers.max(initial=0.0)
    for j in jobs.tolist():
        job = snapshot.jobs[j].job
        if not (snapshot.throughputs[j] > 0).any():
            found[j] = f"{job.job_type} runs on no type of worker here"
        else:
            where = " that it runs on" if job.scale_factor <= most else ""
            found[j] = f"it needs {job.scale_factor} workers, and no type{where} has that many"
    return found
