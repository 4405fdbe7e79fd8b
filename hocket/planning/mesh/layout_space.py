"""Layout spaces: layouts of one tensor-parallel size and one recompute setting."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Protocol

import numpy as np

from hocket.cost.analytic.tensor_group import of_group
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import Grouped, grouped
from hocket.planning.mesh.bounds import MeshBounds
from hocket.planning.mesh.layout import SCHEDULES, USUAL, ParallelLayout
from hocket.planning.search.request import PlanRequest
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut
from hocket.program.passes.gradients import DEFAULT_BUCKET_BYTES, buckets_of
from hocket.program.program import SHARDS
from hocket.strategies.base.balance import Balancer, Ends, runs
from hocket.strategies.base.search_space import Candidate, SearchSpace

_MOST_PLACES = 512  # maximum number of layer positions to cut at; so large that nearly every model may be cut anywhere


class Source(Protocol):
    """Function that returns the profile of one tensor-parallel rank."""

    def __call__(
        self, tensor: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False
    ) -> ModelProfile: ...


@dataclass(frozen=True)
class LayoutFamily:
    """Layouts of one tensor-parallel size and one recompute setting.

    Attributes:
        tensor: tensor-parallel size.
        recompute: one of `RECOMPUTE`.
        sizes: microbatch sizes.
        slices: True if each rank sends only a slice of a message between stages (scatter/gather). With sequence
            parallelism, a rank's messages are slices already.
        shards: values of `ParallelLayout.shard` to consider, if there are several data-parallel ranks.
        strategies: names from `layout.STRATEGIES`.
    """

    tensor: int
    recompute: str
    sizes: tuple[int, ...]
    slices: bool = True
    sequence_parallel: bool = False
    shards: tuple[str, ...] = ("none",)
    strategies: tuple[str, ...] = USUAL


class LayoutSpace(MeshBounds):
    """Layouts of a family on a cluster.

    Figures that layouts share are computed once.
    """

    def __init__(self, family: LayoutFamily, group: Grouped, profile: ModelProfile) -> None:
        self.family = family
        self.tensor, self.recompute, self.sizes = family.tensor, family.recompute, family.sizes
        self.slices, self.sequence_parallel = family.slices, family.sequence_parallel
        self.shards, self.strategies = family.shards, family.strategies
        super().__init__(group, profile)

    @classmethod
    def of(cls, source: Source, cluster: Cluster, family: LayoutFamily) -> "LayoutSpace":
        """Make the layout space of a family.

        Raises:
            InputError: the tensor-parallel size does not divide the model or the cluster.
        """
        own = replace(family, slices=family.slices and not family.sequence_parallel)
        group = grouped(cluster, own.tensor, own.slices)
        profile = source(own.tensor, own.recompute, own.sizes, own.sequence_parallel)
        return cls(own, group, of_group(profile, group))

    @cached_property
    def _balancer(self) -> Balancer:
        return Balancer(self.profile, self.sizes[0], _MOST_PLACES)

    @cached_property
    def ends(self) -> list[Ends]:
        """Cuts of the model into stages of balanced compute time, by number of stages.

        Entry k is for k + 1 stages, up to as many as the model has layers or places to cut. It gives the index of the
        layer after each stage.
        """
        return self._balancer.cuts(len(self.profile.layers))

    def meshes(self, batch_size: int) -> Iterator[ParallelLayout]:
        """Yield all layouts of the family for a batch, cut into balanced stages.

        Each layout uses every device, and its data-parallel size times its microbatch size divides the batch. Stages
        may have unequal numbers of layers.
        """
        for mesh, chunks in self.uncut(batch_size):
            yield from self.cut(mesh, chunks)

    def uncut(self, batch_size: int) -> Iterator[tuple[ParallelLayout, tuple[int, ...]]]:
        """Yield layouts that are not cut into stages, with the numbers of chunks to try.

        Layouts that differ only in chunks share their first bounds.
        """
        devices, most = self.group.cluster.devices, len(self._balancer.places) - 1
        for width, samples in product(_divisors(devices), self.sizes):
            microbatches, rest = divmod(batch_size, width * samples)
            depth = devices // width
            if rest or not microbatches or depth > most:
                continue
            whole_rounds = depth > 1 and microbatches % depth == 0
            several = range(2, most // depth + 1) if whole_rounds and "interleaved" in self.strategies else ()
            for shard in self.shards_of(width, depth):
                own = ParallelLayout(
                    self.tensor,
                    depth,
                    width,
                    1,
                    samples,
                    microbatches,
                    self.recompute,
                    (),
                    sequence_parallel=self.sequence_parallel,
                    shard=shard,
                )
                if chunks := (1,) * (own.strategy in self.strategies) + tuple(several):
                    yield own, chunks
                for mesh in self.otherwise(own):
                    yield mesh, (1,)

    def otherwise(self, mesh: ParallelLayout) -> Iterator[ParallelLayout]:
        """Yield the layout with each schedule other than `flush` that supports it.

        Arguments:
            mesh: layout of the schedule `flush`, without chunks.
        """
        for schedule in SCHEDULES[1:] if mesh.depth > 1 else ():
            if schedule in self.strategies:
                own = replace(mesh, schedule=schedule)
                if not own.stale or _filled(own):
                    yield own

    def cut(self, mesh: ParallelLayout, chunks: Iterable[int]) -> Iterator[ParallelLayout]:
        """Cut a layout into balanced stages, once for each of these numbers of chunks."""
        for number in chunks:
            yield replace(mesh, chunks=number, ends=self.ends[mesh.depth * number - 1])

    def busiest_s(self, mesh: ParallelLayout, chunks: Sequence[int]) -> list[float]:
        """Lower bounds in seconds, quicker than `bound`: one for each number of chunks.

        They are the compute seconds of the busiest device. For a single number of chunks, the bound is `least_s`.
        """
        if len(chunks) == 1:
            return [self.least_s(mesh)]
        tables, ground = self._tables_of(mesh), self._ground(mesh)
        cuts = [np.array((0, *self.ends[mesh.depth * number - 1])) for number in chunks]
        stage = np.concatenate([k * mesh.depth + np.arange(len(cut) - 1) % mesh.depth for k, cut in enumerate(cuts)])
        begins, ends = (np.concatenate(own) for own in zip(*((cut[:-1], cut[1:]) for cut in cuts), strict=True))
        both_s = tables.forward_s + tables.backward_s
        busy_s = [np.bincount(stage, row[ends] - row[begins]) for row in both_s]
        found: list[float] = (ground.slowest(np.array(busy_s)).reshape(-1, mesh.depth).max(axis=1)).tolist()
        return [mesh.microbatches * seconds for seconds in found]

    def shards_of(self, width: int, depth: int) -> tuple[str, ...]:
        """Values of `shard` to consider.

        Arguments:
            width: number of data-parallel ranks.
            depth: number of stages.
        """
        if width == 1:
            return ("none",)
        # FSDP units need a single stage, and no weights shared between units.
        return tuple(shard for shard in self.shards if shard != "full" or (depth == 1 and not self._shared.any()))

    def choice(self, mesh: ParallelLayout, batch_size: int) -> tuple[SearchSpace, Candidate]:
        """Return a layout as a search space and a candidate of its strategy."""
        gradients = [layer.gradients_bytes for layer in self.profile.layers]
        cuts, stands = [], mesh.stands
        for s, layers in enumerate(runs(mesh.ends) if not mesh.units else [(k,) for k in range(mesh.ends[-1])]):
            place = stands[s % mesh.depth]
            buckets: tuple[tuple[int, ...], ...] = ()
            if len(place) > 1:
                found = buckets_of([gradients[i] for i in layers], DEFAULT_BUCKET_BYTES)
                buckets = tuple(tuple(layers[i] for i in bucket) for bucket in found)
            cuts.append(StageCut(layers, place, False, buckets, shard=mesh.shard))
        space = SearchSpace(self.profile_of(mesh), self.group.cluster, batch_size, (mesh.samples,))
        return space, Candidate(tuple(cuts), mesh.samples, batch_size // mesh.samples)

    def profile_of(self, mesh: ParallelLayout) -> ModelProfile:
        """Profile of a tensor-parallel group under a layout, with the group's collectives."""
        return self.profile


def spaces(source: Source, cluster: Cluster, request: PlanRequest) -> Iterator[LayoutSpace]:
    """Yield the layout spaces that fit model and cluster.

    There is one for each tensor-parallel size, recompute setting and value of sequence parallelism.

    Arguments:
        request: strategies, microbatch sizes, tensor-parallel sizes and recompute settings to consider. If it has no
            `shards` or no `sequence_parallel`, all values of these are considered.
    """
    shards, strategies = tuple(request.shards) or SHARDS, tuple(request.strategies)
    for tensor, recompute, along in product(
        request.tensors, request.recomputes, request.sequence_parallel or (False, True)
    ):
        try:
            sizes = tuple(request.microbatch_sizes)
            family = LayoutFamily(tensor, recompute, sizes, True, along, shards, strategies)
            yield LayoutSpace.of(source, cluster, family)
        except InputError:
            continue


def _filled(mesh: ParallelLayout) -> bool:
    """True if the microbatches fill the pipeline (m >= p).

    Source: Narayanan's dissertation, section 3.2.1.
    """
    widths = [len(place) for place in mesh.places] or [mesh.width] * mesh.depth
    return -(-sum(widths) // widths[0]) * widths[0] <= mesh.microbatches * mesh.width


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]
