"""Stream: which samples and which random numbers each microbatch of a run gets.

Rules of this file: samples form one endless stream (every epoch in its own shuffled order), a microbatch is a piece of
it, and its seeds follow from where it begins. Plans with the same microbatch size therefore train on the same samples
with the same dropout masks, whatever their devices, schedules and segments, and a recomputed forward repeats itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hocket.errors import InputError
from hocket.profiling.data.order import indices_at
from hocket.profiling.data.seeding import mixed
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Batch
from hocket.program.microbatches import Microbatches


@dataclass(frozen=True)
class Stream:
    """The data of one segment, whose microbatches are numbered from 0.

    Attributes:
        start: samples trained on before this segment.
    """

    job: Job
    batches: Microbatches
    start: int = 0

    def __post_init__(self) -> None:
        if self.start < 0:
            raise InputError("Stream.start", str(self.start), ">= 0 samples")

    def samples(self, microbatch: int, merged: int = 1) -> int:
        """Samples of one microbatch, or of so many from it on."""
        return self.batches.samples(microbatch, merged)

    def position(self, microbatch: int) -> int:
        """Position of the microbatch in the sample stream."""
        return self.start + self.batches.start(microbatch)

    def step(self, microbatch: int) -> int:
        """Training step (batch) of the microbatch, from 0."""
        return self.position(microbatch) // self.batches.batch_size

    def indices(self, microbatch: int, merged: int = 1) -> list[int]:
        """Indices into `job.data` of a microbatch, or of `merged` microbatches from it on."""
        job = self.job
        return indices_at(self.position(microbatch), self.samples(microbatch, merged), len(job.data), job.seed)

    def batch(self, microbatch: int, merged: int = 1) -> Batch:
        """Tensors of one or `merged` microbatches, by key in the batch.

        Shape (samples, ...).
        """
        return self.job.batch_at(self.position(microbatch), self.samples(microbatch, merged))

    def seed_of(self, microbatch: int) -> Callable[[int], int]:
        """The seed of each layer's random numbers for one microbatch, by layer index."""
        key = mixed(mixed(self.job.seed) ^ self.position(microbatch))
        return lambda layer: mixed(key ^ mixed(layer)) >> 1
