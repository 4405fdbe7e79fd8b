"""Board: workers tell each other small plain facts as JSON, through the store that they met at.

Rules of this file: JSON only (torch's own object collectives unpickle what a peer sends), every worker makes the same calls in
the same order, and what everybody has read is removed.
"""

import json
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from hocket.errors import WorkerLost
from hocket.util.documents import parse_json


class KVExchange:
    """The facts of one group of workers."""

    def __init__(self, store: Store | None, rank: int, workers: int, timeout_s: float = 3600.0) -> None:
        """Make a board; `store` may be None for a single worker.

        Arguments:
            timeout_s: how long to wait for a fact. Dead workers are noticed elsewhere and sooner; a slow disk is not dead.
        """
        self.rank, self.workers = rank, workers
        self._store, self._round = store, 0
        if store is not None:
            store.set_timeout(timedelta(seconds=timeout_s))

    def share(self, fact: Any) -> list[Any]:
        """Every worker's fact, by rank: JSON data, the same list on every worker. Also a barrier.

        Raises:
            WorkerLost: the store does not answer.
        """
        if self._store is None:
            return [fact]
        try:
            self._store.set(self._key(self.rank), json.dumps(fact))
            found = [self._store.get(self._key(rank)) for rank in range(self.workers)]
            # Whoever has written this round's fact has read all of the round before.
            if self._round:
                self._store.delete_key(self._key(self.rank, -1))
        except RuntimeError as error:  # the store's machine is gone, or the disk that it lies on is full
            raise WorkerLost(f"worker {self.rank}: the workers' meeting place does not answer: {error}") from error
        self._round += 1
        return [parse_json(text, f"worker {rank}") for rank, text in enumerate(found)]

    def _key(self, rank: int, back: int = 0) -> str:
        return f"board/{self._round + back}/{rank}"
