"""Session: what one policy keeps from one answer to the next.

Its last allocation stands when the solver fails. The state in which the solver ended is kept by what groups and columns mean:
a group is who is in it, a variable its groups and its column, a row its group or type. So the next program, of other jobs, can
begin from there; a basis that does not quite fit is completed by the solver, and the answer is as good as from none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation, Reason
from hocket.cluster.policies._lp import Basis, Program, Solution, SolverTrouble, solve
from hocket.cluster.policies._shares import Shares
from hocket.cluster.snapshot import Snapshot

_LOWER, _BASIC = 0, 1
_WORTH = 2_000  # entries: a smaller program is solved sooner from nothing


@dataclass(frozen=True, eq=False)
class _Ended:
    """A program that was solved: its jobs' groups by id, codes of its variables in order, states of columns and rows."""

    place: tuple[object, ...]
    group: dict[str, int]
    groups: int
    codes: np.ndarray
    order: np.ndarray
    columns: np.ndarray
    rows: np.ndarray


class Session:
    """Of one policy, from one snapshot to the next; whoever asks the policy keeps it."""

    def __init__(self) -> None:
        self._ended: _Ended | None = None
        self._last: tuple[Snapshot, Allocation] | None = None

    def answered(self, snapshot: Snapshot, attempt: Callable[[], Allocation]) -> Allocation:
        """What the attempt gives; or the last allocation, if the solver fails and there is one.

        Jobs that left are dropped from it with those beside them, new ones get nothing; its note says so.
        """
        try:
            found = attempt()
        except SolverTrouble as trouble:
            if self._last is None or _place(self._last[0]) != _place(snapshot):
                raise
            return _again(snapshot, *self._last, str(trouble))
        self._last = snapshot, found
        return found

    def solve(self, shares: Shares, program: Program, place: str) -> Solution:
        """The answer to a program of shares, from where the last one of this session ended.

        Arguments:
            place: for messages.
        """
        if len(program.values) < _WORTH:
            return solve(program, place)
        found = solve(program, place, self._start(shares, len(program.row_lower), len(program.cost)))
        self._keep(shares, found)
        return found

    def _start(self, shares: Shares, rows: int, columns: int) -> Basis | None:
        """Where to begin with a program of so many rows and columns; None where nothing is known.

        Rows after those of all shares that are as many as groups are taken to be theirs.
        """
        ended = self._ended
        if ended is None or ended.place != _place(shares.snapshot):
            return None
        was = np.array([ended.group.get(active.job.id, -1) for active in shares.snapshot.jobs])
        runs = shares.group >= 0
        group = np.full(shares.groups, -1)
        np.maximum.at(group, shares.group[runs], was[runs])
        found_columns = np.full(columns, _LOWER, dtype=np.int8)
        codes = _codes(group, shares, ended.groups)
        at = np.minimum(np.searchsorted(ended.codes, codes), len(ended.codes) - 1)
        known = (ended.codes[at] == codes) & (codes >= 0)
        found_columns[: shares.variables][known] = ended.columns[ended.order[at[known]]]
        extra = columns - shares.variables
        if extra and len(ended.columns) - len(ended.codes) == extra:
            found_columns[-extra:] = ended.columns[-extra:]
        return found_columns, _rows(ended, group, len(shares.snapshot.types), rows)

    def _keep(self, shares: Shares, solution: Solution) -> None:
        basis = solution.basis
        if basis is None or not shares.groups:
            return
        codes = _codes(np.arange(shares.groups), shares, shares.groups)
        order = np.argsort(codes)
        ids = [active.job.id for active in shares.snapshot.jobs]
        group = dict(zip(ids, shares.group.tolist(), strict=True))
        self._ended = _Ended(_place(shares.snapshot), group, shares.groups, codes[order], order, *basis)


def _place(snapshot: Snapshot) -> tuple[object, ...]:
    """What indices of types and columns mean."""
    return snapshot.columns, tuple(own.name for own in snapshot.types)


def _codes(group: np.ndarray, shares: Shares, groups: int) -> np.ndarray:
    """One number for each variable, of its groups under other names and its column; -1 where a group has none."""
    first, alone = group[shares.first], shares.second == ALONE
    second = np.where(alone, -1, group[shares.second])
    low, high = np.where(alone, first, np.minimum(first, second)), np.where(alone, -1, np.maximum(first, second))
    known = (first >= 0) & (alone | (second >= 0))
    return np.where(known, (low * (groups + 1) + high + 1) * len(shares.snapshot.columns) + shares.column, -1)


def _rows(ended: _Ended, group: np.ndarray, types: int, rows: int) -> np.ndarray:
    """States of rows: of groups, of types, and others."""
    old, new = ended.groups, len(group)
    known = group >= 0
    found = np.full(rows, _BASIC, dtype=np.int8)
    found[:new][known] = ended.rows[group[known]]
    found[new : new + types] = ended.rows[old : old + types]
    others, other = ended.rows[old + types :], found[new + types :]
    if len(others) == old and len(other) == new:
        other[known] = others[group[known]]
    elif len(others) == len(other):
        other[:] = others
    return found


def _again(snapshot: Snapshot, before: Snapshot, last: Allocation, trouble: str) -> Allocation:
    now = {active.job.id: j for j, active in enumerate(snapshot.jobs)}
    ids = [active.job.id for active in before.jobs]
    index = np.array([now.get(name, -1) for name in ids] + [ALONE])  # its last entry is where ALONE points to
    first, second = index[last.first], index[last.second]
    stays = (first >= 0) & ((last.second == ALONE) | (second >= 0))
    first, second, column, fraction = first[stays], second[stays], last.column[stays], last.fraction[stays]
    pairs = second != ALONE
    low, high = np.where(pairs, np.minimum(first, second), first), np.where(pairs, np.maximum(first, second), second)
    kind = snapshot.type_of[column]
    used = np.bincount(kind, snapshot.scale[first] * fraction, len(snapshot.types))
    there = np.minimum(1.0, snapshot.workers / np.maximum(used, snapshot.workers + (used == 0)))
    known = set(ids)
    held = Reason("the solver failed: this is what it had before")
    new = Reason("the solver failed, and it came since the last answer", "the next answer")
    reasons = tuple(held if active.job.id in known else new for active in snapshot.jobs)
    refused = {now[ids[j]]: why for j, why in last.refused.items() if ids[j] in now}
    entries = low, high, column, fraction * there[kind]
    note = f"the last allocation, as the solver failed: {trouble}"
    return Allocation(*entries, last.objective, last.gap, reasons, refused, note)


def solved(session: Session | None, shares: Shares, program: Program, place: str) -> Solution:
    """The answer to a program of shares, from where the session's last one ended if there is a session."""
    return solve(program, place) if session is None else session.solve(shares, program, place)


def answered(session: Session | None, snapshot: Snapshot, attempt: Callable[[], Allocation]) -> Allocation:
    """What the attempt gives, or what the session makes of it if there is one."""
    return attempt() if session is None else session.answered(snapshot, attempt)
