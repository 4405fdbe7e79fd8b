"""Check that all workers read the same samples.

The check runs before a run and at the end of each segment. Every worker makes the same calls in the same order.
Checksums (profiling/data/checksums.py) of the first samples of a segment are compared. They cost about 50 microseconds
for each load of these samples, and one per KB of integers; later loads cost nothing.
"""

from hocket.profiling.data.checksums import Sums, sums_of
from hocket.profiling.data.repeatable import check_alike, check_reads, reads_of
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Batch
from hocket.runtime.kv_exchange import KVExchange

SAMPLES = 512
"""Number of samples at the beginning of each segment that are compared."""


class Reads:
    """Checksums of the samples that one worker reads in a segment."""

    def __init__(self, job: Job, board: KVExchange) -> None:
        """Read some samples twice and compare them with those of other workers.

        This is a collective call.

        Raises:
            InputError: two reads of a sample differ. Every worker raises the same error.
        """
        self._job, self._board = job, board
        check_reads(job, board.share(reads_of(job, backwards=board.rank % 2 == 1)))
        self._found: dict[int, Sums] = {}
        self._end = 0

    def begin(self, position: int) -> None:
        """Begin a segment.

        Arguments:
            position: position of its first sample in the stream of samples (see Stream).
        """
        self._found, self._end = {}, position + SAMPLES

    def take(self, position: int, batch: Batch) -> None:
        """Add the checksums of a loaded batch, as far as its samples are compared.

        Arguments:
            position: position of its first sample in the stream of samples.
        """
        if position < self._end:
            found = sums_of(batch, self._end - position)
            self._found.update((position + k, sums) for k, sums in enumerate(found))

    def compare(self) -> None:
        """Compare the samples that all workers have read; a collective call.

        Raises:
            InputError: two workers have read different values of a sample. Every worker raises the same error.
        """
        shared = self._board.share({str(position): sums for position, sums in self._found.items()})
        read: dict[int, dict[int, Sums]] = {}
        for rank, found in enumerate(shared):
            for position, sums in found.items():
                read.setdefault(int(position), {})[rank] = sums
        job = self._job
        for position in sorted(read):
            check_alike(job.indices_at(position, 1)[0], read[position])
