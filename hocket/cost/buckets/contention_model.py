"""Contention of a plan's gradient collectives with computation.

Rules of this file: contention exists only if the cluster file describes it for the level that a bucket's group spans
(`Level.overlap`). `cost/contention.py` has no special rule for computation beside all-reduces. The slowdown is
described by two kinds of resources of capacity 1. The instruction that is slowed has a load of 1 on the resource. The
instruction that slows it by a factor x has a load of x - 1.

- A device's speed: each all-reduce loads it, and it determines the speed of computation.
- A bucket's speed on a device: computation loads it, and it determines the speed of the bucket's all-reduce. The
  all-reduce runs at the pace of its slowest rank.

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
"""Number that stands for the weights of a stage, in place of a gradient bucket."""
Members = Callable[[tuple[int, ...]], tuple[int, ...]]


class _Contention(NamedTuple):
    """Mutual slowdowns of computation and one bucket's all-reduce.

    Both are relative increases in time: 0 for none, 1 if the time doubles.

    Attributes:
        computation: slowdown of computation by the bucket's all-reduce.
        all_reduce: slowdown of the all-reduce by computation.
    """

    computation: float
    all_reduce: float


class ContentionModel:
    """Contention of the collectives of one plan (see the docstring of this module)."""

    def __init__(
        self, cluster: Cluster, cuts: Sequence[StageCut], ties: Sequence[Tie], memory: PlanMemory, members: Members
    ) -> None:
        """Take the parts of a cost model.

        Arguments:
            ties: weights that several stages share.
            members: function that adds to a group of devices the ranks in other columns.
        """
        self._cluster, self._cuts, self._ties = cluster, cuts, ties
        self._memory, self._members = memory, members

    def threads(self, instruction: Instruction) -> int:
        """Number of communication threads of a collective.

        0 for the default of gloo or NCCL. Only the all-reduce of a gradient bucket can have another number.
        """
        if instruction.kind is not Kind.ALL_REDUCE or not instruction.reads:
            return 0
        value = instruction.reads[0]
        return self._cuts[value.stage].threads_of(value.part) if value.what is ValueKind.ACCUMULATOR else 0

    def uses(self, instruction: Instruction) -> tuple[Use, ...] | None:
        """Resources through which a collective of gradients or weights contends.

        Returns:
            None for the collective of a norm, or without a model of contention.
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
        """Resources through which computation on a device contends.

        These are the device's speed and the speeds of its buckets.
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
        """Contention of each gradient bucket, and of gathered weights (_WEIGHTS).

        The keys are (stage, bucket). Only levels with a model of contention are included.
        """
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
        """Key of a gradient bucket's contention resource.

        A bucket of tied weights has the same key in all stages that share these weights.
        """
        own = max(1, len(self._cuts[stage].buckets))
        if bucket < own:
            return stage, bucket
        return -1, self._ties.index([tie for tie in self._ties if stage in tie.stages][bucket - own])


def _of(model: OverlapModel, size_bytes: float, threads: int) -> _Contention:
    slower = model.beside_s(size_bytes, threads) / model.alone_s(size_bytes, threads) if size_bytes else 1.0
    return _Contention(max(0.0, 1 / model.share(threads) - 1), max(0.0, slower - 1))
