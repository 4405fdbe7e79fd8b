"""Stream: samples and random seeds of each microbatch of a run.

Samples form one endless stream, in which every epoch has its own shuffled order. A microbatch is a piece of the stream,
and its position determines its seeds. So plans with the same microbatch size train on the same samples with the same
dropout masks, for any devices, schedules and segments. A recomputed forward gives the same result.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hocket.errors import InputError
from hocket.profiling.data.seeding import mixed
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Batch
from hocket.program.microbatches import Microbatches


@dataclass(frozen=True)
class Stream:
    """Samples and random seeds of the microbatches of one segment of a run.

    A segment is one run of the program: prologue, periods, epilogue. Its microbatches are numbered from 0.

    Attributes:
        job: the job with its data.
        batches: division of each batch into microbatches.
        start: number of samples that were trained on before the segment, since the start of training.
    """

    job: Job
    batches: Microbatches
    start: int = 0

    def __post_init__(self) -> None:
        if self.start < 0:
            raise InputError("Stream.start", str(self.start), ">= 0 samples")

    def samples(self, microbatch: int, merged: int = 1) -> int:
        """Return the number of samples of `merged` microbatches that begin with this one."""
        return self.batches.samples(microbatch, merged)

    def position(self, microbatch: int) -> int:
        """Return the position of a microbatch's first sample in the stream of samples."""
        return self.start + self.batches.start(microbatch)

    def step(self, microbatch: int) -> int:
        """Return the number of the training step that contains a microbatch, from 0."""
        return self.position(microbatch) // self.batches.batch_size

    def indices(self, microbatch: int, merged: int = 1) -> list[int]:
        """Return the indices in `job.data` of a microbatch's samples.

        Arguments:
            merged: number of microbatches that begin with this one.
        """
        return self.job.indices(self.position(microbatch), self.samples(microbatch, merged))

    def batch(self, microbatch: int, merged: int = 1) -> Batch:
        """Load the tensors of a microbatch by key; each has the shape (samples, ...).

        Arguments:
            merged: number of microbatches to load, beginning with this one.
        """
        return self.job.batch_at(self.position(microbatch), self.samples(microbatch, merged))

    def seed_of(self, microbatch: int) -> Callable[[int], int]:
        """Return a function from layer index to the layer's random seed for a microbatch."""
        key = mixed(mixed(self.job.seed) ^ self.position(microbatch))
        return lambda layer: mixed(key ^ mixed(layer)) >> 1
