"""Round selection: choose the ledger entries that run in a round.

The order of the settings comes first. If some entry lags too far behind and the selection is worth less than the
allocation, owed time decides instead. If that is not enough either, a search follows. A failed search shows that no
sequence of rounds can keep the allocation; then all entries get an equal part of their fractions, and the next search
waits twice as long, so the cost stays small.
Source: Narayanan's dissertation, section 5.5 and priorities.py.
"""

import random

import numpy as np

from hocket.scheduler.core.job_table import JobTable
from hocket.scheduler.core.lease_table import LeaseClaims, SelectedJobs
from hocket.scheduler.core.ledger import Ledger
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.rounds.knapsack import pack
from hocket.scheduler.rounds.priorities import (
    balanced,
    by_debt,
    by_delay,
    by_ratio,
    choose,
    choose_by_type,
    enough,
    worth,
)

__all__ = ["RoundSelection"]

_SHUFFLER = 5  # seed offset of the public simulator, for the same order of types
_MOST_ROUNDS = 64  # maximum wait between two searches


class RoundSelection:
    """Round selection, with the state of the search.

    Attributes:
        search_at: number of the first round in which a search is allowed.
        search_every: number of rounds from a failed search to the next one; doubled by each failure.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.search_at, self.search_every = 0, 1
        self._chance = random.Random(settings.seed + _SHUFFLER)

    def make(self, book: Ledger, roster: JobTable, workers: list[int], rounds: int) -> SelectedJobs:
        """Select the jobs of the next round, most urgent first.

        Arguments:
            workers: number of workers that are up, by type.
            rounds: number of earlier rounds.
        """
        entries, due_s, alone = book.entries, book.due_s(), roster.alone
        chosen = self._entries(book, due_s, workers, rounds)
        jobs = [alone[slot] for slot in entries.first[chosen].tolist()]
        if entries.paired:
            seconds = entries.second[chosen].tolist()
            jobs = [own if b == ALONE else own + alone[b] for own, b in zip(jobs, seconds, strict=True)]
        claims = LeaseClaims(chosen, due_s[chosen] > 0)
        keys, columns, needs = entries.key[chosen], entries.column[chosen], entries.need[chosen]
        return SelectedJobs(keys.tolist(), jobs, columns.tolist(), needs.tolist(), claims)

    def _entries(self, book: Ledger, due_s: np.ndarray, workers: list[int], rounds: int) -> np.ndarray:
        """Indices of the selected ledger entries."""
        settings, entries = self.settings, book.entries
        if settings.order == "deficit":
            chosen = choose(entries, by_debt(entries, book.received_s, due_s), workers)
        else:
            types = self._queues(len(workers))
            if types is None:
                chosen = choose(entries, by_ratio(entries, book.received_s, book.owed_s), workers)
            else:
                chosen = choose_by_type(entries, book.received_s, book.owed_s, workers, types)
        after = settings.balance_after
        if after is None or due_s.max(initial=0.0) <= after * settings.round_s or balanced(entries, chosen, due_s):
            return chosen
        debt = by_debt(entries, book.received_s, due_s)
        chosen = choose(entries, debt, workers)
        if balanced(entries, chosen, due_s):
            return chosen
        if rounds < self.search_at:
            return choose(entries, by_delay(entries, book.received_s, due_s), workers)
        each = worth(entries, due_s)
        found = pack(entries, each, workers, enough(entries, each))
        if found is None:
            self.search_every = min(2 * self.search_every, _MOST_ROUNDS)
            self.search_at = rounds + self.search_every
            return choose(entries, by_delay(entries, book.received_s, due_s), workers)
        self.search_every = 1
        last = np.ones(len(entries), dtype=bool)
        last[found] = False
        return choose(
            entries, debt[np.argsort(last[debt], kind="stable")], workers
        )  # other entries fill the remaining workers

    def _queues(self, types: int) -> list[int] | None:
        """Types in the order of their queues; None for one global queue."""
        if self.settings.queue == "global":
            return None
        if not self.settings.shuffle:
            return list(range(types))
        order = list(range(types))
        self._chance.shuffle(order)
        return order
