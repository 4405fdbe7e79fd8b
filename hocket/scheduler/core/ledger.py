"""Book: what the current allocation gives to whom, and what they have had of it.

Time is kept by entry while an allocation holds. When the next one comes, what is owed goes back to the jobs, column by column,
and from them to their new entries, in proportion to the fractions: so that nobody who waits loses a claim because allocations
changed, or because the job beside it did.
Source: section 5.5; the claims carried over are ours.
"""

import numpy as np

from hocket.scheduler.core.job_table import JobTable
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.rounds.priorities import Entries

__all__ = ["Ledger"]

_MOST_ROUNDS = 100.0  # that can be owed: an allocation that cannot be kept is no claim without end


class Ledger:
    """Entries, and the time that each has received since the allocation was made, and is owed."""

    def __init__(self, round_s: float, types: np.ndarray, counted: bool = False) -> None:
        """
        Arguments:
            types: of each column.
            counted: time that nobody had a right to is held against who took it.
        """
        self.round_s, self._counted = round_s, counted
        self._types = types
        none = np.zeros(0, dtype=np.int64)
        self.entries = Entries(none, none, none, none, none, np.zeros(0), 0)
        self.received_s = np.zeros(0)
        self.owed_s = np.zeros(0)

    def open(
        self, allocation: Allocation, slots: np.ndarray, roster: JobTable, workers: np.ndarray, fill: bool
    ) -> None:
        """Begin anew with an allocation whose jobs are those in `slots`.

        Arguments:
            workers: that are up, by type.
            fill: add entries with fraction 0, for what is left in a round.
        """
        self.close(roster)
        first, column = slots[allocation.first], allocation.column
        second = np.where(allocation.second == ALONE, ALONE, slots[allocation.second])
        has = (allocation.fraction > 0) & (roster.need[first] <= workers[self._types[column]])
        first, second, column, fraction = first[has], second[has], column[has], allocation.fraction[has]
        if fill:
            given = np.zeros((len(roster.jobs), len(self._types)), dtype=bool)
            alone = second == ALONE
            given[first[alone], column[alone]] = True
            more, columns = self._able(slots, roster, workers, given)
            first, column = np.concatenate([first, more]), np.concatenate([column, columns])
            second = np.concatenate([second, np.full(len(more), ALONE)])
            fraction = np.concatenate([fraction, np.zeros(len(more))])
        came = roster.came
        order = np.lexsort([column, np.where(second == ALONE, -1, came[second]), came[first]])
        self._set(first[order], second[order], column[order], fraction[order], roster)
        self.received_s = np.full(len(first), self.round_s / 2)
        self.owed_s = self._claims(roster)

    def keep(self, slots: np.ndarray, roster: JobTable, workers: np.ndarray, fill: bool) -> None:
        """Go on with the allocation that there was: jobs that went are left out, jobs that came have no right to anything."""
        old = self.entries
        here = np.zeros(len(roster.jobs) + 1, dtype=bool)
        here[slots] = True
        here[ALONE] = True
        kept = here[old.first] & here[old.second]
        here[old.first] = False
        more, columns = self._able(slots[here[slots]], roster, workers, None) if fill else (slots[:0], slots[:0])
        self.received_s = np.concatenate([self.received_s[kept], np.full(len(more), self.round_s / 2)])
        owed = roster.owed_s[more, columns] if self._counted else np.zeros(len(more))
        self.owed_s = np.concatenate([self.owed_s[kept], owed])
        self._set(
            np.concatenate([old.first[kept], more]),
            np.concatenate([old.second[kept], np.full(len(more), ALONE)]),
            np.concatenate([old.column[kept], columns]),
            np.concatenate([old.fraction[kept], np.zeros(len(more))]),
            roster,
        )

    def _able(
        self, slots: np.ndarray, roster: JobTable, workers: np.ndarray, given: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slots and columns where jobs run alone, those aside that are given already."""
        able = (roster.throughputs[slots] > 0) & (roster.need[slots, None] <= workers[self._types])
        if given is not None:
            able &= ~given[slots]
        rows, columns = np.nonzero(able)
        return slots[rows], columns

    def _set(
        self, first: np.ndarray, second: np.ndarray, column: np.ndarray, fraction: np.ndarray, roster: JobTable
    ) -> None:
        types, need = self._types[column], roster.need[first]
        self.entries = Entries(first, second, column, types, need, fraction, len(roster.jobs))

    def _claims(self, roster: JobTable) -> np.ndarray:
        """What entries are owed, of what their jobs are: each job's claim is split as its fractions on the column are."""
        entries = self.entries
        shape = roster.owed_s.shape
        total = np.zeros(shape)
        np.add.at(total, (entries.first, entries.column), entries.fraction)
        both = entries.second != ALONE
        np.add.at(total, (entries.second[both], entries.column[both]), entries.fraction[both])
        rate = np.divide(roster.owed_s, total, out=np.zeros(shape), where=total > 0)
        claim = rate[entries.first, entries.column]
        claim = np.where(both, (claim + rate[entries.second, entries.column]) / 2, claim) * entries.fraction
        if self._counted:  # where a job has no fraction, its gifts
            own = roster.owed_s[entries.first, entries.column]
            claim = np.where(total[entries.first, entries.column] > 0, claim, own)
        return claim

    def close(self, roster: JobTable) -> None:
        """Give what is owed back to the jobs, before another allocation."""
        entries, owed = self.entries, self.owed_s
        has = (entries.fraction > 0) | self._counted
        both = has & (entries.second != ALONE)
        jobs = np.concatenate([entries.first[has], entries.second[both]])
        columns = np.concatenate([entries.column[has], entries.column[both]])
        roster.owed_s[jobs, columns] = 0.0
        np.add.at(roster.owed_s, (jobs, columns), np.concatenate([owed[has], owed[both]]))

    def pass_time(self, elapsed_s: float) -> None:
        """Time went by: everybody should have had a fraction of it."""
        self.owed_s = np.minimum(self.owed_s + self.entries.fraction * elapsed_s, _MOST_ROUNDS * self.round_s)

    def due_s(self) -> np.ndarray:
        """What each entry is owed when the next round ends, were nobody to run in it."""
        return self.owed_s + self.entries.fraction * self.round_s

    def of_jobs(self, entries: np.ndarray, each: np.ndarray) -> np.ndarray:
        """Of each entry's jobs, the larger figure.

        Arguments:
            each: figures >= 0, by slot.
        """
        found = each[self.entries.first[entries]]
        if self.entries.paired:
            second = self.entries.second[entries]
            found = np.maximum(found, np.where(second == ALONE, 0.0, each[second]))
        return found

    def run(self, entries: np.ndarray, claimed: np.ndarray, time_s: np.ndarray | float) -> None:
        """Entries ran, each told once; claimed: those that had a right to, for the others it was a gift."""
        self.received_s[entries] += time_s
        self.owed_s[entries] -= time_s if self._counted else np.where(claimed, time_s, 0.0)
