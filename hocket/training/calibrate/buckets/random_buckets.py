"""Random gradient buckets and communication threads for the overlap measurement.

The same seed gives the same draws on every worker. This file does not import torch.

Source: LIBRA (Liu et al. 2023), section III.A.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.planning.plan import Plan

_MOST_BUCKETS = 8
_SMALLEST = 1e-3


@dataclass(frozen=True)
class BucketSampling:
    """Settings of the draws, that is of the random choices of buckets and threads.

    Attributes:
        draws: number of random draws.
        steps: measured steps of each draw, after some warm-up steps.
        threads: numbers of communication threads to draw from.
        seed: random seed.
    """

    draws: int = 16
    steps: int = 12
    threads: tuple[int, ...] = (1, 2, 3, 4)
    seed: int = 0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.draws < 1 or self.steps < 1:
            raise InputError("draws, steps", f"{self.draws}, {self.steps}", "both >= 1")
        if not self.threads or list(self.threads) != sorted(set(self.threads)) or self.threads[0] < 1:
            raise InputError("threads", str(list(self.threads)), "ascending numbers >= 1, each once")


@dataclass(frozen=True)
class Drawn:
    """One draw: layers of each bucket in backward order, and threads of each bucket."""

    buckets: tuple[tuple[str, ...], ...]
    threads: tuple[int, ...]

    def plan(self, plan: Plan) -> Plan:
        """Return the plan with these buckets and threads."""
        return replace(plan, stages=(replace(plan.stages[0], buckets=self.buckets, threads=self.threads),))


def drawn(layers: Sequence[str], sizes_bytes: Sequence[float], drawing: BucketSampling) -> Iterator[Drawn]:
    """Yield a draw with one bucket for each number of threads, then random draws.

    The draws with one bucket have no overlap. The sizes of random buckets are spread evenly over orders of
    magnitude. So there are small all-reduces that end during computation, and large all-reduces during which
    computation ends.

    Arguments:
        layers: names of layers, in the order of a backward.
        sizes_bytes: bytes of each layer's gradients.
    """
    for threads in drawing.threads:
        yield Drawn((tuple(layers),), (threads,))
    rng = random.Random(drawing.seed)
    weighted = [k for k, size_bytes in enumerate(sizes_bytes) if size_bytes > 0]
    total = sum(sizes_bytes)
    for _ in range(drawing.draws):
        ends: list[int] = []
        filled, begun = 0.0, 0
        wanted = _wanted(rng, total)
        for k in weighted[:-1]:
            filled += sizes_bytes[k]
            if filled >= wanted and len(ends) < _MOST_BUCKETS - 1:
                ends.append(k + 1)
                filled, wanted = 0.0, _wanted(rng, total)
        buckets = []
        for end in (*ends, len(layers)):
            buckets.append(tuple(layers[begun:end]))
            begun = end
        yield Drawn(tuple(buckets), tuple(rng.choice(drawing.threads) for _ in buckets))


def _wanted(rng: random.Random, total: float) -> float:
    """Draw the bytes of the next bucket, log-uniformly.

    Arguments:
        total: bytes of all gradients.
    """
    return total * exp(rng.uniform(log(_SMALLEST), 0.0))
