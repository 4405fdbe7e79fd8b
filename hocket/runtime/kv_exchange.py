"""Exchange of small JSON values between workers, through the rendezvous store.

Only JSON is exchanged, because torch's object collectives unpickle data that a peer sends. Every worker makes the same
calls in the same order. Values that all workers have read are removed.
"""

import json
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from hocket.errors import WorkerLost
from hocket.util.documents import parse_json


class KVExchange:
    """Exchange of JSON values within one group of workers.

    Attributes:
        rank: this worker's rank in the group.
        workers: number of workers in the group.
    """

    def __init__(self, store: Store | None, rank: int, workers: int, timeout_s: float = 3600.0) -> None:
        """Take part in the exchange as one worker; all workers create it, and call `share` equally often.

        Arguments:
            store: the rendezvous store; None for a single worker.
            timeout_s: seconds to wait for a value. It is long because a worker with a slow disk is not dead; dead
                workers are detected elsewhere and sooner.
        """
        self.rank, self.workers = rank, workers
        self._store, self._round = store, 0
        if store is not None:
            store.set_timeout(timedelta(seconds=timeout_s))

    def share(self, fact: Any) -> list[Any]:
        """All-gather a JSON value of every worker; also a barrier.

        Returns:
            The values by rank; the same list on every worker.

        Raises:
            WorkerLost: the store does not answer.
        """
        if self._store is None:
            return [fact]
        try:
            self._store.set(self._key(self.rank), json.dumps(fact))
            found = [self._store.get(self._key(rank)) for rank in range(self.workers)]
            # A worker that has written this round's value has read all values of the round before.
            if self._round:
                self._store.delete_key(self._key(self.rank, -1))
        except RuntimeError as error:  # the store's machine is lost, or its disk is full
            raise WorkerLost(f"worker {self.rank}: the workers' meeting place does not answer: {error}") from error
        self._round += 1
        return [parse_json(text, f"worker {rank}") for rank, text in enumerate(found)]

    def _key(self, rank: int, back: int = 0) -> str:
        return f"board/{self._round + back}/{rank}"
