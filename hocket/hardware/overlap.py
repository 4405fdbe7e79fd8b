"""Overlap of a backward with the all-reduces of its gradients.

Communication threads slow the backward down.

Rules of this file: beside communication, computation keeps a share of its speed that falls linearly with the number of
communication threads. Bytes per second rise with the number of threads and level off. A bucket's all-reduce begins
when its gradients are there and the previous all-reduce is over. Computation never waits.
Source: LIBRA (Liu et al. 2023), section III. Equation numbers in this file are of this paper. "Threads" are
communication threads, or NCCL CTAs. "Beside" means at the same time on the same device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any, ClassVar, NamedTuple

from hocket.errors import InputError

EXPONENT = 0.6
"""Exponent of the number of threads in equation 6 (gamma_4).

The paper sets it by hand as well.
"""


@dataclass(frozen=True)
class Rate:
    """Bytes per second of all-reduces as a function of the number of threads.

    rate = most_bytes_per_s - lost_bytes_per_s x exp(-decay x threads ^ 0.6), equation 6 of the LIBRA paper.

    Attributes:
        most_bytes_per_s: limit of the rate for very many threads (gamma_1).
        lost_bytes_per_s: difference between this limit and the rate with (in theory) no threads (gamma_2).
        decay: how fast this difference decreases with the number of threads (gamma_3).
    """

    most_bytes_per_s: float
    lost_bytes_per_s: float
    decay: float

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def at(self, threads: float) -> float:
        """Bytes per second with a number of threads.

        Raises:
            InputError: these threads move no bytes.
        """
        found = self.most_bytes_per_s - self.lost_bytes_per_s * exp(-self.decay * threads**EXPONENT)
        if found <= 0:
            raise InputError("threads", f"{threads:g} threads, which move no bytes", "more threads")
        return found

    def times(self, factor: float) -> "Rate":
        """The rate, multiplied by a factor."""
        return Rate(self.most_bytes_per_s * factor, self.lost_bytes_per_s * factor, self.decay)


class OverlapStage(NamedTuple):
    """Seconds from the start of one all-reduce to the next one's start, in parts.

    Attributes:
        both_s: computation and communication at the same time.
        computing_s: computation alone.
        communicating_s: communication alone.
    """

    both_s: float
    computing_s: float
    communicating_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole stage."""
        return sum(self)


@dataclass(frozen=True)
class OverlapModel:
    """Fitted model of overlap on one type of device and network.

    Threads are communication threads. Symbols are those of the LIBRA paper.

    Attributes:
        kept: speed of computation during an all-reduce, as a share of its speed alone, before `taken` is subtracted
            for each communication thread (alpha_1).
        taken: share of the speed that each communication thread takes from computation (alpha_2).
        beside: rate of an all-reduce during computation (p).
        alone: rate of an all-reduce without computation (q).
        latency_s: latency of one hop of the ring (alpha of equation 4).
        workers: number of workers in the ring.
        threads: thread counts for which the model was fitted, ascending; () if unknown.
        own_threads: default thread count of the communication library.
        beside_latency_s: latency of one hop during computation. It is longer on busy cores, because threads that wait
            for a message wake up later. None: `latency_s`, as in the LIBRA paper.
        error: mean relative error of predicted backward passes; 0 if unknown.
    """

    kept: float
    taken: float
    beside: Rate
    alone: Rate
    latency_s: float
    workers: int
    threads: tuple[int, ...] = ()
    own_threads: int = 1
    beside_latency_s: float | None = None
    error: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError("workers", str(self.workers), ">= 1")
        if self.own_threads < 1 or any(threads < 1 for threads in self.threads):
            raise InputError("threads", f"{list(self.threads)}, own_threads {self.own_threads}", "numbers above zero")
        if list(self.threads) != sorted(set(self.threads)):
            raise InputError("threads", str(list(self.threads)), "ascending numbers, each once")
        if not (self.kept > 0 and self.taken >= 0 and self.latency_s >= 0 and (self.beside_latency_s or 0.0) >= 0):
            found = f"{self.kept:g}, {self.taken:g}, {self.latency_s:g}, {self.beside_latency_s}"
            raise InputError("kept, taken, latency_s, beside_latency_s", found, "kept > 0, the others >= 0")
        if not self.error >= 0:
            raise InputError("error", f"{self.error:g}", "a share, >= 0")

    def on(self, workers: int) -> "OverlapModel":
        """The model for another number of workers in the ring (equation 4)."""
        return replace(self, workers=workers)

    def without_contention(self) -> "OverlapModel":
        """Copy of the model in which computation and communication do not slow each other down."""
        return replace(self, kept=1.0, taken=0.0, beside=self.alone, beside_latency_s=None)

    def scaled(self, bandwidth: float, latency: float) -> "OverlapModel":
        """The model with the links' bandwidth and latency multiplied by these factors."""
        beside, alone = self.beside.times(bandwidth), self.alone.times(bandwidth)
        slower_s = self.beside_latency_s and self.beside_latency_s * latency
        return replace(self, beside=beside, alone=alone, latency_s=self.latency_s * latency, beside_latency_s=slower_s)

    @property
    def usable(self) -> tuple[int, ...]:
        """Thread counts of `threads` with which both computation and all-reduces have a speed above 0."""
        return tuple(threads for threads in self.threads if self._moves(threads))

    def _moves(self, threads: int) -> bool:
        try:
            return min(self.share(threads), self.beside.at(threads), self.alone.at(threads)) > 0
        except InputError:
            return False

    @property
    def startup_s(self) -> float:
        """Startup seconds of one all-reduce (equation 4: a)."""
        return 2 * (self.workers - 1) * self.latency_s

    @property
    def beside_startup_s(self) -> float:
        """Startup seconds of an all-reduce beside computation."""
        each_s = self.latency_s if self.beside_latency_s is None else self.beside_latency_s
        return 2 * (self.workers - 1) * each_s

    def share(self, threads: float) -> float:
        """Share of its speed that computation keeps beside communication.

        Arguments:
            threads: communication threads.

        Raises:
            InputError: the share is not above 0.
        """
        found = self.kept - self.taken * threads
        if found <= 0:
            raise InputError("threads", f"{threads:g} threads, which leave no core for computation", "fewer threads")
        return found

    def computation_s(self, alone_s: float, threads: float) -> float:
        """Seconds of computation beside communication (equation 5: g).

        Arguments:
            alone_s: seconds of the same computation without communication.
        """
        return alone_s / self.share(threads)

    def beside_s(self, size_bytes: float, threads: float) -> float:
        """Seconds of an all-reduce with computation beside it from start to end.

        Startup is included (equation 6: a + p).
        """
        return self.beside_startup_s + self.carried_bytes(size_bytes) / self.beside.at(threads)

    def alone_s(self, size_bytes: float, threads: float) -> float:
        """Seconds of an all-reduce without computation, startup included (a + q)."""
        return self.startup_s + self.carried_bytes(size_bytes) / self.alone.at(threads)

    def carried_bytes(self, size_bytes: float) -> float:
        """Bytes that each worker sends in an all-reduce (equation 4: c-hat)."""
        return 2 * (self.workers - 1) / self.workers * size_bytes

    def overlapped(self, size_bytes: float, compute_s: float, threads: float) -> OverlapStage:
        """Parts of an all-reduce and a computation that begin together, until both end.

        Source: equations 8 to 11.

        Arguments:
            compute_s: seconds of the computation without communication.
        """
        if size_bytes == 0:
            return OverlapStage(0.0, compute_s, 0.0)
        if compute_s == 0:
            return OverlapStage(0.0, 0.0, self.alone_s(size_bytes, threads))
        slowed_s, moving_s = self.computation_s(compute_s, threads), self.beside_s(size_bytes, threads)
        both_s = min(slowed_s, moving_s)
        left, left_moving = 1 - both_s / slowed_s, 1 - both_s / moving_s
        return OverlapStage(both_s, compute_s * left, self.alone_s(size_bytes, threads) * left_moving)

    def stages(
        self, sizes_bytes: Sequence[float], computes_s: Sequence[float], threads: Sequence[float]
    ) -> tuple[OverlapStage, ...]:
        """Stages of a backward with several buckets (equations 12 to 15).

        Buckets are in the order in which their gradients are computed.

        Arguments:
            sizes_bytes: for each bucket, bytes of its gradients.
            computes_s: for each bucket, seconds of the computation of its gradients.
            threads: for each bucket, its communication threads.

        Returns:
            One more stage than buckets. Stage 0 is the computation of the first bucket. Stage i begins with the i-th
                all-reduce and ends when the next one begins; the last one ends with its all-reduce.
        """
        if not len(sizes_bytes) == len(computes_s) == len(threads) > 0:
            found = f"{len(sizes_bytes)}, {len(computes_s)}, {len(threads)}"
            raise InputError(
                "buckets", found, "one size, computation and thread count for each bucket, at least one bucket"
            )
        behind_s = [0.0]  # computation after bucket i, from the last one on
        for compute_s in reversed(computes_s):
            behind_s.append(behind_s[-1] + compute_s)
        behind_s.reverse()
        stages, remaining_s = [OverlapStage(0.0, computes_s[0], 0.0)], behind_s[1]
        for i, (size_bytes, lanes) in enumerate(zip(sizes_bytes, threads, strict=True)):
            both_s, left_s, moving_s = self.overlapped(size_bytes, remaining_s, lanes)
            after_next_s = behind_s[min(i + 2, len(computes_s))]
            computing_s = max(0.0, left_s - after_next_s)
            stages.append(OverlapStage(both_s, computing_s, moving_s))
            remaining_s = left_s - computing_s
        return tuple(stages)

    def backward_s(self, sizes_bytes: Sequence[float], computes_s: Sequence[float], threads: Sequence[float]) -> float:
        """Seconds from the start of the backward to the end of the last all-reduce.

        Source: equation 7.
        """
        return sum(stage.seconds for stage in self.stages(sizes_bytes, computes_s, threads))
