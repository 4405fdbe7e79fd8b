"""Ledger: the current allocation and the time received under it.

Time is counted per entry while an allocation is valid. When a new allocation arrives, owed time returns to the jobs,
column by column, and is split over their new entries in proportion to the fractions. A waiting job therefore keeps
its claim when the allocation or its pair partner changes.
Source: Narayanan's dissertation, section 5.5; carrying claims over is ours.
"""

import numpy as np

from hocket.scheduler.core.job_table import JobTable
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.rounds.priorities import Entries

__all__ = ["Ledger"]

_MOST_ROUNDS = 100.0  # limit of owed time: an infeasible allocation must not accumulate unbounded claims


class Ledger:
    """Entries of the current allocation, with received and owed seconds.

    Attributes:
        entries: entries of the allocation, and entries with fraction 0.
        received_s: running time of each entry under the allocation, plus half a round.
        owed_s: time granted to each entry, by this and earlier allocations, that rounds did not deliver.
    """

    def __init__(self, round_s: float, types: np.ndarray, counted: bool = False) -> None:
        """
        Arguments:
            round_s: length of a round, in seconds.
            types: worker type index of each column.
            counted: True to deduct time on unclaimed workers from what the job is owed.
        """
        self.round_s, self._counted = round_s, counted
        self._types = types
        none = np.zeros(0, dtype=np.int64)
        self.entries = Entries(none, none, none, none, none, np.zeros(0), 0)
        self.received_s = np.zeros(0)
        self.owed_s = np.zeros(0)

    def open(
        self, allocation: Allocation, slots: np.ndarray, roster: JobTable, workers: np.ndarray, fillers: np.ndarray
    ) -> None:
        """Replace the current allocation by another one; owed time is carried over.

        Arguments:
            slots: slot in the job table of each job of the allocation's snapshot.
            roster: table of the jobs.
            workers: number of workers that are up, by type.
            fillers: slots of the jobs that get entries with fraction 0, to fill free workers of a round.
        """
        self.close(roster)
        first, column = slots[allocation.first], allocation.column
        second = np.where(allocation.second == ALONE, ALONE, slots[allocation.second])
        has = (allocation.fraction > 0) & (roster.need[first] <= workers[self._types[column]])
        first, second, column, fraction = first[has], second[has], column[has], allocation.fraction[has]
        if len(fillers):
            given = np.zeros((len(roster.jobs), len(self._types)), dtype=bool)
            alone = second == ALONE
            given[first[alone], column[alone]] = True
            more, columns = self._able(fillers, roster, workers, given)
            first, column = np.concatenate([first, more]), np.concatenate([column, columns])
            second = np.concatenate([second, np.full(len(more), ALONE)])
            fraction = np.concatenate([fraction, np.zeros(len(more))])
        came = roster.came
        order = np.lexsort([column, np.where(second == ALONE, -1, came[second]), came[first]])
        self._set(first[order], second[order], column[order], fraction[order], roster)
        self.received_s = np.full(len(first), self.round_s / 2)
        self.owed_s = self._claims(roster)

    def keep(self, slots: np.ndarray, roster: JobTable, workers: np.ndarray, fillers: np.ndarray) -> None:
        """Keep the current allocation: drop departed jobs, give new jobs no claim.

        Arguments:
            slots: slots in the job table of all current jobs.
            roster: table of the jobs.
            workers: number of workers that are up, by type.
            fillers: slots of the jobs that get entries with fraction 0, unless they have entries.
        """
        old = self.entries
        here = np.zeros(len(roster.jobs) + 1, dtype=bool)
        here[slots] = True
        here[ALONE] = True
        kept = here[old.first] & here[old.second]
        here[old.first] = False
        more, columns = self._able(fillers[here[fillers]], roster, workers, None)
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
        """Slots and columns where jobs can run alone.

        Arguments:
            given: mask of the combinations to leave out; shape (all slots, columns). None to leave out none.
        """
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
        """Owed seconds of each entry.

        The time owed to a job on a column is divided among its entries there, in proportion to their fractions.
        """
        entries = self.entries
        shape = roster.owed_s.shape
        total = np.zeros(shape)
        np.add.at(total, (entries.first, entries.column), entries.fraction)
        both = entries.second != ALONE
        np.add.at(total, (entries.second[both], entries.column[both]), entries.fraction[both])
        rate = np.divide(roster.owed_s, total, out=np.zeros(shape), where=total > 0)
        claim = rate[entries.first, entries.column]
        claim = np.where(both, (claim + rate[entries.second, entries.column]) / 2, claim) * entries.fraction
        if self._counted:  # without a fraction on the column: the job's unclaimed time
            own = roster.owed_s[entries.first, entries.column]
            claim = np.where(total[entries.first, entries.column] > 0, claim, own)
        return claim

    def close(self, roster: JobTable) -> None:
        """Write owed time back to the jobs in the table, before a new allocation."""
        entries, owed = self.entries, self.owed_s
        has = (entries.fraction > 0) | self._counted
        both = has & (entries.second != ALONE)
        jobs = np.concatenate([entries.first[has], entries.second[both]])
        columns = np.concatenate([entries.column[has], entries.column[both]])
        roster.owed_s[jobs, columns] = 0.0
        np.add.at(roster.owed_s, (jobs, columns), np.concatenate([owed[has], owed[both]]))

    def pass_time(self, elapsed_s: float) -> None:
        """Add each entry's fraction of the elapsed seconds to its owed time.

        Owed time is limited to 100 rounds.
        """
        self.owed_s = np.minimum(self.owed_s + self.entries.fraction * elapsed_s, _MOST_ROUNDS * self.round_s)

    def due_s(self) -> np.ndarray:
        """Seconds owed to each entry at the end of the next round if nothing runs."""
        return self.owed_s + self.entries.fraction * self.round_s

    def of_jobs(self, entries: np.ndarray, each: np.ndarray) -> np.ndarray:
        """Value of each entry's job; for two jobs, the larger of their values.

        Arguments:
            entries: indices of the entries.
            each: values >= 0, by slot.
        """
        found = each[self.entries.first[entries]]
        if self.entries.paired:
            second = self.entries.second[entries]
            found = np.maximum(found, np.where(second == ALONE, 0.0, each[second]))
        return found

    def run(self, entries: np.ndarray, claimed: np.ndarray, time_s: np.ndarray | float) -> None:
        """Record the running time of entries; each entry may appear once.

        Arguments:
            entries: indices of the entries.
            claimed: True where the entry was owed the time, False where it filled free workers.
        """
        self.received_s[entries] += time_s
        self.owed_s[entries] -= time_s if self._counted else np.where(claimed, time_s, 0.0)
