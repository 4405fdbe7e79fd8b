"""Contention of a plan's gradient collectives with computation.

Rules of this file: contention exists only if the cluster file describes it for the level that a bucket's group spans
(`Level.overlap`). In `contention.py`, computation and all-reduces do not have special speeds beside each other. They
are loads instead: a use that stretches a time by a factor x is a load of x - 1 beside one's own load of 1, on a
resource of capacity 1.

- A device's speed: each all-reduce loads it, and computation is governed by it.
- A bucket's speed on a device: computation loads it, and the bucket's all-reduce is governed by it. The all-reduce runs
  at the pace of its slowest rank.

Reduce-scatters of gradients and all-gathers of new weights contend like an all-reduce of as many bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from hocket.cost.contention import Sharing, Use
from hocket.cost.memory.values import PlanMemory
from hocket.hardware.cluster import Cluster
from hocket.hardware.overlap import OverlapModel
from hocket.program.instruction import Instruction, Kind, ValueKind
from hocket.program.passes.borders import StageCut, Tie

_WEIGHTS = -1
"""Used instead of a bucket number for a gather of weights."""
Members = Callable[[tuple[int, ...]], tuple[int, ...]]


class _Contention(NamedTuple):
    """Relative slowdowns of a bucket.

    Attributes:
        computation: slowdown of computation by the bucket's all-reduce.
        all_reduce: slowdown of the all-reduce by computation.
    """

    computation: float
    all_reduce: float


class ContentionModel:
    """Contention of the collectives of one plan; see the head of this file."""

    def __init__(
        self, cluster: Cluster, cuts: Sequence[StageCut], ties: Sequence[Tie], memory: PlanMemory, members: Members
    ) -> None:
        """Take the parts of a cost model.

        Arguments:
            members: function that extends a group by its ranks in other columns.
        """
        self._cluster, self._cuts, self._ties = cluster, cuts, ties
        self._memory, self._members = memory, members

    def threads(self, instruction: Instruction) -> int:
        """Threads of a collective; 0 for the library's default."""
        if instruction.kind is not Kind.ALL_REDUCE or not instruction.reads:
            return 0
        value = instruction.reads[0]
        return self._cuts[value.stage].threads_of(value.part) if value.what is ValueKind.ACCUMULATOR else 0

    def uses(self, instruction: Instruction) -> tuple[Use, ...] | None:
        """Shared speeds that a collective of gradients or weights uses.

        Returns:
            None for a norm, or without a model of contention.
        """
        value = instruction.reads[0]
        gathers = instruction.kind is Kind.ALL_GATHER
        if not self._cluster.contends or not (gathers or value.what is ValueKind.ACCUMULATOR):
            return None
        bucket = _WEIGHTS if gathers else value.part
        found = self._contention.get((value.stage, bucket))
        if found is None:
            return None
        key, load = self._key(value.stage, bucket), found.computation
        members = self._members(instruction.group)
        speeds = [Use(("speed", device, 0, 0), load, Sharing.NOT) for device in members]
        return (*speeds, *(Use(("bucket", device, *key), 1.0, Sharing.SPEED) for device in members))

    def slowed(self, device: int) -> tuple[Use, ...]:
        """Shared speeds that computation on a device uses.

        These are the device's own and those of its buckets.
        """
        return self._slowed.get(device, ())

    @cached_property
    def _slowed(self) -> dict[int, tuple[Use, ...]]:
        found: dict[int, dict[tuple[int, int], float]] = {}
        for (stage, bucket), contention in self._contention.items():
            for device in self._members(self._cuts[stage].devices):
                found.setdefault(device, {})[self._key(stage, bucket)] = contention.all_reduce
        return {
            device: (
                Use(("speed", device, 0, 0), 1.0, Sharing.SPEED),
                *(Use(("bucket", device, *key), load, Sharing.NOT) for key, load in loads.items() if load > 0),
            )
            for device, loads in found.items()
        }

    @cached_property
    def _contention(self) -> dict[tuple[int, int], _Contention]:
        """Contention of each bucket, and of weights, on levels with a model of contention."""
        return {(stage, bucket): found for stage, bucket, found in self._each()} if self._cluster.contends else {}

    def _each(self) -> Iterator[tuple[int, int, _Contention]]:
        for s, cut in enumerate(self._cuts):
            tied = [tie for tie in self._ties if s in tie.stages]
            own = max(1, len(cut.buckets))
            sizes = self._memory.stages[s].bucket_bytes
            for bucket, size_bytes in enumerate(sizes):
                stages = tied[bucket - own].stages if bucket >= own else (s,)
                group = self._members(tuple(sorted({d for other in stages for d in self._cuts[other].devices})))
                if len(group) < 2:
                    continue
                overlap = self._cluster.levels[self._cluster.level_of(group)].overlap
                if overlap is not None:
                    threads = cut.threads_of(bucket) or overlap.own_threads
                    yield s, bucket, _of(overlap.on(len(group)), float(size_bytes), threads)
                    if cut.sharded and bucket == 0:
                        weights_bytes = self._memory.stages[s].weights_bytes
                        yield s, _WEIGHTS, _of(overlap.on(len(group)), weights_bytes, overlap.own_threads)

    def _key(self, stage: int, bucket: int) -> tuple[int, int]:
        """Key of a bucket. All stages of a tied bucket share it."""
        own = max(1, len(self._cuts[stage].buckets))
        if bucket < own:
            return stage, bucket
        return -1, self._ties.index([tie for tie in self._ties if stage in tie.stages][bucket - own])


def _of(model: OverlapModel, size_bytes: float, threads: int) -> _Contention:
    slower = model.beside_s(size_bytes, threads) / model.alone_s(size_bytes, threads) if size_bytes else 1.0
    return _Contention(max(0.0, 1 / model.share(threads) - 1), max(0.0, slower - 1))
