"""Session: what one policy keeps from one answer to the next.

Its last allocation stands when the solver fails. Where the solver ended is kept for each of the policy's programs, by what
groups and columns mean: a group is who is in it, a variable its groups and its column, a row its group or type, and a number
where a group has several. So the next program, of other jobs, can begin from there; a basis that does not quite fit is
completed by the solver, and the answer is as good as from none.
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
PROVED = 1e-6  # a gap that is no more is none
WORTH = 2_000  # entries: a smaller program is solved sooner from nothing


@dataclass(frozen=True, eq=False)
class Labels:
    """What rows after those of all shares are about: a group, and a number that tells its rows apart."""

    group: np.ndarray
    number: np.ndarray


@dataclass(frozen=True, eq=False)
class _Ended:
    """A program that was solved: its jobs' groups by id, codes of its variables and their order, states of columns and rows."""

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
    """Where to begin with a program: states of its columns and rows, and what duals its rows had, 0 where it is not known."""

    basis: Basis
    duals: np.ndarray


class Session:
    """Of one policy, from one snapshot to the next; whoever asks the policy keeps it."""

    def __init__(self) -> None:
        self._ended: dict[str, _Ended] = {}
        self._prices: dict[str, tuple[tuple[object, ...], Stand]] = {}
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

    def answers(self, snapshot: Snapshot) -> bool:
        """Whether there was an answer to this, and the last one did not have to stand for it."""
        return self._last is not None and self._last[0] is snapshot

    def stands(self, snapshot: Snapshot, found: Allocation) -> Allocation:
        """What was made of the answer stands in its place when the solver fails."""
        self._last = snapshot, found
        return found

    def solve(
        self, shares: AllocationVariables, program: LinearProgram, place: str, labels: Labels | None = None
    ) -> Solution:
        """The answer to a program of shares, from where the last one of this session ended.

        Arguments:
            place: for messages; each has an end of its own.
            labels: of rows after those of all shares; None where each group has one, or there are none.
        """
        if len(program.values) < WORTH:
            return solve(program, place)
        start = self.start(shares, len(program.row_lower), len(program.cost), place, labels)
        found = solve(program, place, None if start is None else start.basis)
        self.keep(shares, found, place, labels)
        return found

    def knows(self, place: str) -> bool:
        """Whether a program was solved under this name."""
        return place in self._ended or place in self._prices

    def forget(self, place: str) -> None:
        """What was solved under this name."""
        self._ended.pop(place, None)
        self._prices.pop(place, None)

    def prices(self, snapshot: Snapshot, place: str) -> Stand | None:
        """Prices of workers to begin with, where a program of unlike jobs was solved under this name."""
        known = self._prices.get(place)
        return known[1] if known is not None and known[0] == _place(snapshot) else None

    def keep_prices(self, snapshot: Snapshot, place: str, found: Stand) -> None:
        """Remember the prices that such a program ended with."""
        self._prices[place] = _place(snapshot), found

    def start(
        self, shares: AllocationVariables, rows: int, columns: int, place: str, labels: Labels | None = None
    ) -> WarmStart | None:
        """Where to begin with a program of so many rows and columns; None where nothing is known.

        Arguments:
            labels: as for `solve`.
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
        """Remember where a program of shares ended.

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
    """What indices of types and columns mean."""
    return snapshot.columns, tuple(own.name for own in snapshot.types)


def _one_each(shares: AllocationVariables, rows: int) -> Labels:
    """Of rows after those of all shares, if they are as many as groups: then they are taken to be theirs."""
    others = rows - shares.groups - len(shares.snapshot.types)
    every = np.arange(shares.groups if others == shares.groups else 0)
    return Labels(every, np.zeros(len(every)))


def _sources(ended: _Ended, group: np.ndarray, types: int, rows: int, labels: Labels) -> np.ndarray:
    """Which row each was: of groups, of types, and those that are labelled; -1 for none."""
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
    """One for each label; complex numbers stand in the order of both parts."""
    return group + 1j * number


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
    held = Reason("the solver failed: this is what it had before", "the next answer")
    new = Reason("the solver failed, and it came since the last answer", "the next answer")
    reasons = tuple(held if active.job.id in known else new for active in snapshot.jobs)
    refused = {now[ids[j]]: why for j, why in last.refused.items() if ids[j] in now}
    entries = low, high, column, fraction * there[kind]
    note = f"the last allocation, as the solver failed: {trouble}"
    return Allocation(*entries, last.objective, last.gap, reasons, refused, note)


def solved(
    session: Session | None,
    shares: AllocationVariables,
    program: LinearProgram,
    place: str,
    labels: Labels | None = None,
) -> Solution:
    """The answer to a program of shares, from where the session's last one ended if there is a session."""
    return solve(program, place) if session is None else session.solve(shares, program, place, labels)


def answered(session: Session | None, snapshot: Snapshot, attempt: Callable[[], Allocation]) -> Allocation:
    """What the attempt gives, or what the session makes of it if there is one; it says so if it is not proved to be the best."""
    found = attempt() if session is None else session.answered(snapshot, attempt)
    if found.gap <= PROVED:
        return found
    far = f"it is proved to within {found.gap:.0e} of the best only"
    return replace(found, note=f"{found.note}; {far}" if found.note else far)
