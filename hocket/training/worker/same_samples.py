"""Check that all workers read the same samples.

Done before a run and at the end of each of its segments.

Rules of this file: every worker makes the same calls in the same order. What is compared are sums of samples (profiling/data/checksums.py),
of the first samples of a segment: about 50 microseconds a load there, and nothing later.
"""

from hocket.profiling.data.checksums import Sums, sums_of
from hocket.profiling.data.order import indices_at
from hocket.profiling.data.repeatable import check_alike, check_reads, reads_of
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Batch
from hocket.runtime.kv_exchange import KVExchange

SAMPLES = 512
"""The samples of each segment that are compared, from its first on."""


class Reads:
    """Checksums of the samples that one worker has read in a segment."""

    def __init__(self, job: Job, board: KVExchange) -> None:
        """Read some samples twice and compare them with the other workers'.

        A collective call.

        Raises:
            InputError: two reads of a sample differ, on every worker the same error.
        """
        self._job, self._board = job, board
        check_reads(job, board.share(reads_of(job, backwards=board.rank % 2 == 1)))
        self._found: dict[int, Sums] = {}
        self._end = 0

    def begin(self, position: int) -> None:
        """A segment begins at this position in the stream of samples."""
        self._found, self._end = {}, position + SAMPLES

    def take(self, position: int, batch: Batch) -> None:
        """A batch was read, whose first sample stands at this position."""
        if position < self._end:
            found = sums_of(batch, self._end - position)
            self._found.update((position + k, sums) for k, sums in enumerate(found))

    def compare(self) -> None:
        """Compare what all workers have read of the segment: a collective call.

        Raises:
            InputError: two workers read other values of a sample, on every worker the same error.
        """
        shared = self._board.share({str(position): sums for position, sums in self._found.items()})
        read: dict[int, dict[int, Sums]] = {}
        for rank, found in enumerate(shared):
            for position, sums in found.items():
                read.setdefault(int(position), {})[rank] = sums
        job = self._job
        for position in sorted(read):
            check_alike(indices_at(position, 1, job.samples, job.seed)[0], read[position])
