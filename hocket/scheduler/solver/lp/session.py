"""Solver session: warm starts that a policy keeps between calls.

The session has one warm start for each of the policy's linear programs, under the program's name (`place`). It is the
final basis, or the final worker prices if the program was solved by dual decomposition (hocket/scheduler/solver/dual).
Worker prices are the duals of the worker types: no prices in dollars.

A basis is stored under names instead of indices: a group by its jobs, a variable by its groups and column, a row by its
group or worker type, plus a number if a group has several rows. The next program, with other jobs, can therefore start
from this basis. The solver completes a basis that does not fit exactly. A warm start saves time, and does not change
the quality of the solution.
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.dual.separable_program import Stand
from hocket.scheduler.solver.lp.linear_program import Basis, LinearProgram, Solution, solve
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.lp.warm_start import codes_of, sought_in

_LOWER, _BASIC = 0, 1
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
        place: columns and worker types that the indices refer to (`place_of`).
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

    def solve(
        self, shares: AllocationVariables, program: LinearProgram, place: str, labels: Labels | None = None
    ) -> Solution:
        """Solve a program from the last basis of this session, and store the new basis.

        Small programs are solved without a warm start, and not stored.

        Arguments:
            place: name of the linear program, in error messages and for the stored basis.
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
        """Worker prices stored for a linear program, from which its next solve can start.

        Arguments:
            snapshot: snapshot of the next solve.
            place: name of the program.

        Returns:
            None if no prices are stored for this program, or if the snapshot has other worker types or columns.
        """
        known = self._prices.get(place)
        return known[1] if known is not None and known[0] == place_of(snapshot) else None

    def keep_prices(self, snapshot: Snapshot, place: str, found: Stand) -> None:
        """Store the final worker prices of the linear program with the name `place`."""
        self._prices[place] = place_of(snapshot), found

    def start(
        self, shares: AllocationVariables, rows: int, columns: int, place: str, labels: Labels | None = None
    ) -> WarmStart | None:
        """Warm start for a linear program, from the stored basis; None without one, or if worker types changed.

        Arguments:
            rows, columns: number of rows and columns of the program.
            place, labels: as for `solve`.
        """
        ended = self._ended.get(place)
        if ended is None or ended.place != place_of(shares.snapshot):
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
        """Store the final basis and duals of a linear program, unless its basis is unknown.

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
            place_of(shares.snapshot), group, shares.groups, codes, np.argsort(codes), *basis, solution.duals, own
        )


def place_of(snapshot: Snapshot) -> tuple[object, ...]:
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


def solved(
    session: Session | None,
    shares: AllocationVariables,
    program: LinearProgram,
    place: str,
    labels: Labels | None = None,
) -> Solution:
    """Solve a program, with the session's warm start if there is a session."""
    return solve(program, place) if session is None else session.solve(shares, program, place, labels)
