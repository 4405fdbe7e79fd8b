"""Solver session: fallback and warm starts that a policy keeps between calls.

The last allocation is the fallback if the solver fails. The final basis of each of the policy's linear programs is
stored under names instead of indices: a group by its jobs, a variable by its groups and column, a row by its group or
worker type, plus a number if a group has several rows. The next program, with other jobs, can therefore start from
this basis. The solver completes a basis that does not fit exactly. A warm start saves time, and does not change the
quality of the solution.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.dual.separable_program import Stand
from hocket.scheduler.solver.lp.linear_program import Basis, LinearProgram, Solution, SolverTrouble, solve
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.lp.warm_start import codes_of, sought_in

_LOWER, _BASIC = 0, 1
PROVED = 1e-6  # largest relative gap that counts as optimal
WORTH = 2_000  # matrix entries; smaller programs are faster without a warm start


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of a program's rows after those of `AllocationVariables.limits`.

    Attributes:
        group: group of each row.
        number: number that distinguishes the rows of a group.
    """

    group: np.ndarray
    number: np.ndarray


@dataclass(frozen=True, eq=False)
class _Ended:
    """Final state of a solved program, for warm starts.

    Attributes:
        place: columns and worker types that the indices refer to.
        group: group of each job, by job id.
        groups: number of groups.
        codes, order: code of each variable (warm_start.py), and the argsort of the codes.
        columns, rows: basis status of each column and row.
        duals: dual of each row.
        labels: labels of the rows after those of the groups and types.
    """

    place: tuple[object, ...]
    group: dict[str, int]
    groups: int
    codes: np.ndarray
    order: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    duals: np.ndarray
    labels: Labels


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Warm start of a program: basis, and previous dual of each row (0 if unknown)."""

    basis: Basis
    duals: np.ndarray


class Session:
    """Solver state of one policy between snapshots; the caller of the policy keeps it."""

    def __init__(self) -> None:
        self._ended: dict[str, _Ended] = {}
        self._prices: dict[str, tuple[tuple[object, ...], Stand]] = {}
        self._last: tuple[Snapshot, Allocation] | None = None

    def answered(self, snapshot: Snapshot, attempt: Callable[[], Allocation]) -> Allocation:
        """Call `attempt`; if the solver fails, fall back to the last allocation.

        In the fallback, departed jobs and their pairs are removed, new jobs get nothing, and a note gives the error.

        Raises:
            SolverTrouble: the solver failed, and there is no last allocation on the same columns and worker types.
        """
        try:
            found = attempt()
        except SolverTrouble as trouble:
            if self._last is None or _place(self._last[0]) != _place(snapshot):
                raise
            return _again(snapshot, *self._last, str(trouble))
        self._last = snapshot, found
        return found

    def answers(self, snapshot: Snapshot) -> bool:
        """True if the last allocation is of this snapshot and no fallback."""
        return self._last is not None and self._last[0] is snapshot

    def stands(self, snapshot: Snapshot, found: Allocation) -> Allocation:
        """Store a modified allocation as the fallback, and return it."""
        self._last = snapshot, found
        return found

    def solve(
        self, shares: AllocationVariables, program: LinearProgram, place: str, labels: Labels | None = None
    ) -> Solution:
        """Solve a program from the last basis of this session, and store the new basis.

        Small programs are solved without a warm start, and not stored.

        Arguments:
            place: name of the program, in error messages and for the stored basis.
            labels: labels of the rows after those of `shares.limits`; None if there is one row per group or none.
        """
        if len(program.values) < WORTH:
            return solve(program, place)
        start = self.start(shares, len(program.row_lower), len(program.cost), place, labels)
        found = solve(program, place, None if start is None else start.basis)
        self.keep(shares, found, place, labels)
        return found

    def knows(self, place: str) -> bool:
        """True if a basis or worker prices are stored for the program with this name."""
        return place in self._ended or place in self._prices

    def forget(self, place: str) -> None:
        """Delete the stored basis and worker prices of the program with this name."""
        self._ended.pop(place, None)
        self._prices.pop(place, None)

    def prices(self, snapshot: Snapshot, place: str) -> Stand | None:
        """Stored worker prices of a program; None if unknown, or if worker types changed."""
        known = self._prices.get(place)
        return known[1] if known is not None and known[0] == _place(snapshot) else None

    def keep_prices(self, snapshot: Snapshot, place: str, found: Stand) -> None:
        """Store the final worker prices of a program."""
        self._prices[place] = _place(snapshot), found

    def start(
        self, shares: AllocationVariables, rows: int, columns: int, place: str, labels: Labels | None = None
    ) -> WarmStart | None:
        """Warm start for a program; None if unknown, or if worker types changed.

        Arguments:
            rows, columns: number of rows and columns of the program.
            place, labels: as for `solve`.
        """
        ended = self._ended.get(place)
        if ended is None or ended.place != _place(shares.snapshot):
            return None
        was = np.array([ended.group.get(active.job.id, -1) for active in shares.snapshot.jobs])
        runs = shares.group >= 0
        group = np.full(shares.groups, -1)
        np.maximum.at(group, shares.group[runs], was[runs])
        found_columns = np.full(columns, _LOWER, dtype=np.int8)
        at, known = sought_in(ended.codes, ended.order, codes_of(shares, group, ended.groups))
        found_columns[: shares.variables][known] = ended.columns[at[known]]
        extra = columns - shares.variables
        if extra and len(ended.columns) - len(ended.codes) == extra:
            found_columns[-extra:] = ended.columns[-extra:]
        own = labels or _one_each(shares, rows)
        source = _sources(ended, group, len(shares.snapshot.types), rows, own)
        known = source >= 0
        states, duals = np.full(rows, _BASIC, dtype=np.int8), np.zeros(rows)
        states[known], duals[known] = ended.rows[source[known]], ended.duals[source[known]]
        return WarmStart((found_columns, states), duals)

    def keep(self, shares: AllocationVariables, solution: Solution, place: str, labels: Labels | None = None) -> None:
        """Store the final basis and duals of a program, unless its basis is unknown.

        Arguments:
            place, labels: as for `solve`.
        """
        basis = solution.basis
        if basis is None or not shares.groups:
            return
        codes = codes_of(shares, np.arange(shares.groups), shares.groups)
        ids = [active.job.id for active in shares.snapshot.jobs]
        group = dict(zip(ids, shares.group.tolist(), strict=True))
        own = labels or _one_each(shares, len(solution.duals))
        self._ended[place] = _Ended(
            _place(shares.snapshot), group, shares.groups, codes, np.argsort(codes), *basis, solution.duals, own
        )


def _place(snapshot: Snapshot) -> tuple[object, ...]:
    """Columns and type names of a snapshot; they define the meaning of indices."""
    return snapshot.columns, tuple(own.name for own in snapshot.types)


def _one_each(shares: AllocationVariables, rows: int) -> Labels:
    """Labels of the rows after groups and types: one per group, else no labels."""
    others = rows - shares.groups - len(shares.snapshot.types)
    every = np.arange(shares.groups if others == shares.groups else 0)
    return Labels(every, np.zeros(len(every)))


def _sources(ended: _Ended, group: np.ndarray, types: int, rows: int, labels: Labels) -> np.ndarray:
    """Index of each row in the previous program; -1 for none.

    Arguments:
        ended: previous program.
        group: index of each group in the previous program; -1 for none.
        types, rows: number of worker types, and of rows.
        labels: labels of the rows after those of the groups and types.
    """
    old, new = ended.groups, len(group)
    found = np.full(rows, -1)
    found[:new] = group
    found[new : new + types] = np.arange(old, old + types)
    before = _row_codes(ended.labels.group, ended.labels.number)
    order = np.argsort(before)
    sought = _row_codes(np.append(group, -1)[labels.group], labels.number)
    if len(before) and len(sought):
        at = order[np.minimum(np.searchsorted(before[order], sought), len(before) - 1)]
        fits = (before[at] == sought) & (sought.real >= 0)
        found[new + types : new + types + len(sought)][fits] = old + types + at[fits]
    return found


def _row_codes(group: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Each label as the complex number group + number * i, which sorts by both parts."""
    return group + 1j * number


def _again(snapshot: Snapshot, before: Snapshot, last: Allocation, trouble: str) -> Allocation:
    now = {active.job.id: j for j, active in enumerate(snapshot.jobs)}
    ids = [active.job.id for active in before.jobs]
    index = np.array([now.get(name, -1) for name in ids] + [ALONE])  # the last entry is for ALONE
    first, second = index[last.first], index[last.second]
    stays = (first >= 0) & ((last.second == ALONE) | (second >= 0))
    first, second, column, fraction = first[stays], second[stays], last.column[stays], last.fraction[stays]
    pairs = second != ALONE
    low, high = np.where(pairs, np.minimum(first, second), first), np.where(pairs, np.maximum(first, second), second)
    kind = snapshot.type_of[column]
    used = np.bincount(kind, snapshot.scale[first] * fraction, len(snapshot.types))
    there = np.minimum(1.0, snapshot.workers / np.maximum(used, snapshot.workers + (used == 0)))
    known = set(ids)
    held = Reason("the solver failed: it keeps its previous share", "the next solution")
    new = Reason("the solver failed, and it arrived after the last solution", "the next solution")
    reasons = tuple(held if active.job.id in known else new for active in snapshot.jobs)
    refused = {now[ids[j]]: why for j, why in last.refused.items() if ids[j] in now}
    entries = low, high, column, fraction * there[kind]
    note = f"the last allocation, because the solver failed: {trouble}"
    return Allocation(*entries, last.objective, last.gap, reasons, refused, note)


def solved(
    session: Session | None,
    shares: AllocationVariables,
    program: LinearProgram,
    place: str,
    labels: Labels | None = None,
) -> Solution:
    """Solve a program, with the session's warm start if there is a session."""
    return solve(program, place) if session is None else session.solve(shares, program, place, labels)


def answered(session: Session | None, snapshot: Snapshot, attempt: Callable[[], Allocation]) -> Allocation:
    """Call `attempt`, with the session's fallback if there is a session.

    An allocation that is not proven optimal gets a note.
    """
    found = attempt() if session is None else session.answered(snapshot, attempt)
    if found.gap <= PROVED:
        return found
    far = f"proven only to within {found.gap:.0e} of the optimum"
    return replace(found, note=f"{found.note}; {far}" if found.note else far)
