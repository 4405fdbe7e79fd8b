"""Shares: the variables that every policy's program has, and the constraints that every allocation keeps.

Jobs that are alike in all that a policy looks at get alike: they are one group, and its variables are sums over its jobs. For
any allocation the mean over alike jobs is one with the same objective, so this is exact. A variable is the time that a group
(or two groups, side by side) spends on a column, summed over its jobs.
Source: equations 5.1 to 5.3; space sharing in section 5.3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.cluster.allocation import ALONE
from hocket.cluster.policies._lp import Program
from hocket.cluster.snapshot import Snapshot

_INFINITY = float("inf")
_ODD, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


@dataclass(frozen=True, eq=False)
class Rows:
    """Constraints of a program: entries (row, column, value), and what each row is at least and at most."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Shares:
    """The groups of a snapshot's jobs and their variables.

    Attributes:
        snapshot: what it is made of.
        refused: jobs that can run nowhere, with the reason, by index; they are in no group.
        group: of each job, -1 for those. count: jobs in each group. member: one job of each group.
        first, second, column: of each variable: groups (second ALONE for one) and column.
        steps_first, steps_second: steps a second, of a job of either group.
    """

    def __init__(self, snapshot: Snapshot, keys: Sequence[np.ndarray] = ()) -> None:
        """
        Arguments:
            keys: what the policy looks at besides throughputs, scale factors and who shares with whom; each of shape (jobs,).
        """
        self.snapshot = snapshot
        fits = snapshot.scale[:, None] <= snapshot.workers[snapshot.type_of]
        self._steps_alone = np.where(fits, snapshot.throughputs, 0.0)  # 0 where a job needs more workers than there are
        runs = (self._steps_alone > 0).any(axis=1)
        self.refused = _refused(snapshot, np.flatnonzero(~runs)) if not runs.all() else {}
        looked_at = [*self._steps_alone.T, snapshot.scale, *keys]
        if snapshot.pairs is not None:
            looked_at.append(snapshot.pairs.classes)
        group, member, count = _alike(np.array(looked_at, dtype=float)[:, runs])
        self.group = np.full(len(snapshot.jobs), -1, dtype=np.int64)
        self.group[runs] = group
        self.member, self.count = np.flatnonzero(runs)[member], count.astype(float)
        self.first, self.second, self.column, self.steps_first, self.steps_second = self._variables()

    def _variables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        steps = self._steps_alone[self.member]
        own, column = np.nonzero(steps)
        alone = own, np.full(len(own), ALONE), column, steps[own, column], np.zeros(len(own))
        pairs = self.snapshot.pairs
        if pairs is None:
            return alone
        classes = pairs.classes[self.member]
        kept = pairs.kept[classes[:, None], classes[None, :]]  # of the row's job beside the column's
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
        """How many there are."""
        return len(self.first)

    @property
    def groups(self) -> int:
        """How many there are."""
        return len(self.count)

    @cached_property
    def scale(self) -> np.ndarray:
        """Scale factors, by group."""
        return self.snapshot.scale[self.member]

    @cached_property
    def _pairs(self) -> np.ndarray:
        return np.flatnonzero(self.second != ALONE)

    @cached_property
    def throughput(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Entries (group, variable, steps a second): what a job of each group does is the sum over its variables."""
        both = self._pairs
        groups = np.concatenate([self.first, self.second[both]])
        steps = np.concatenate([self.steps_first, self.steps_second[both]])
        return groups, np.concatenate([np.arange(self.variables), both]), steps / self.count[groups]

    @cached_property
    def limits(self) -> Rows:
        """Nobody has more time than there is (5.2): a row a group; no type has more work than workers (5.3): a row a type."""
        both, every = self._pairs, np.arange(self.variables)
        types = len(self.snapshot.types)
        return Rows(
            np.concatenate([self.first, self.second[both], self.groups + self.snapshot.type_of[self.column]]),
            np.concatenate([every, both, every]),
            np.concatenate([np.ones(len(every) + len(both)), self.scale[self.first]]),
            np.full(self.groups + types, -_INFINITY),
            np.concatenate([self.count, self.snapshot.workers]),
        )

    def program(self, cost: np.ndarray, *more: Rows, extra: Sequence[tuple[float, float]] = ()) -> Program:
        """The program of least cost, under the limits and more rows.

        Arguments:
            cost: of the variables, then of extra ones.
            more: rows; they count from 0 each.
            extra: least and most of the extra variables. Both are to be finite, as those of the variables are: then any duals
                give a bound.
        """
        rows, columns, values, lower, upper = [], [], [], [], []
        count = 0
        for part in (self.limits, *more):
            rows.append(part.rows + count)
            columns.append(part.columns)
            values.append(part.values)
            lower.append(part.lower)
            upper.append(part.upper)
            count += len(part.lower)
        return Program(
            cost,
            np.concatenate([np.zeros(self.variables), [least for least, _ in extra]]),
            np.concatenate([self.count[self.first], [most for _, most in extra]]),
            np.concatenate(lower),
            np.concatenate(upper),
            np.concatenate(rows),
            np.concatenate(columns),
            np.concatenate(values),
        )


def _alike(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The group of each column of a table, one column of each group, how many are in each.

    Columns are told apart by 64 mixed bits, which is quicker than to sort them; should two unlike ones have the same, they
    are sorted after all.
    """
    bits = (table + 0.0).view(np.uint64)  # + 0.0: -0.0 is 0.0
    bits = (bits ^ (bits >> _SHIFT)) * _ODD
    bits ^= bits >> _SHIFT
    mixed = (bits * np.cumprod(np.full(len(bits), _ODD))[:, None]).sum(axis=0)
    order = np.argsort(mixed, kind="stable")
    mixed = mixed[order]
    ends = np.concatenate([np.flatnonzero(mixed[1:] != mixed[:-1]) + 1, [len(mixed)]])
    starts = np.concatenate([[0], ends[:-1]])
    if not len(mixed):
        starts, ends = ends[:0], ends[:0]
    member, count = order[starts], ends - starts
    group = np.empty(len(mixed), dtype=np.int64)
    group[order] = np.repeat(np.arange(len(starts)), count)
    if not (table[:, member[group]] == table).all():
        _, member, group, count = np.unique(table, axis=1, return_index=True, return_inverse=True, return_counts=True)
    return group, member, count


def _refused(snapshot: Snapshot, jobs: np.ndarray) -> dict[int, str]:
    """Why each of these jobs can run nowhere."""
    found: dict[int, str] = {}
    most = snapshot.workers.max(initial=0.0)
    for j in jobs.tolist():
        job = snapshot.jobs[j].job
        if not (snapshot.throughputs[j] > 0).any():
            found[j] = f"{job.job_type} runs on no type of worker here"
        else:
            where = " that it runs on" if job.scale_factor <= most else ""
            found[j] = f"it asks for {job.scale_factor} workers, and no type{where} has so many"
    return found
