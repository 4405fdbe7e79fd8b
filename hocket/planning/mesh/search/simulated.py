"""Simulated layouts, and the proof of their peak memory.

Rules of this file: long batches are extrapolated from shorter ones (extrapolate.py). The proof uses two data-parallel
ranks of a short batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutSpace
from hocket.planning.predict.predict import predict_choice, proven_peaks
from hocket.planning.search.result import SimulatedCandidate

_COLUMNS = 2  # data-parallel ranks that show all effects of several
_MOST_FORWARDS = 4096  # largest number of forwards in a proof


@dataclass(frozen=True)
class SimulatedLayout(SimulatedCandidate):
    """A simulated parallel layout of an analytic model.

    Attributes:
        space: layout space of the layout.
        mesh: the layout.
    """

    space: LayoutSpace
    mesh: ParallelLayout

    @cached_property
    def _fullest(self) -> tuple[float, float, float]:
        return self.fullest(self.predicted.peak_memory_bytes)

    def fullest(self, peaks: Mapping[int, float]) -> tuple[float, float, float]:
        """Missing, needed and available bytes of the group that lacks the most memory.

        Missing bytes are below 0 if all groups fit.

        Arguments:
            peaks: peak bytes by group.
        """
        rooms = self.space.room_bytes
        return max((size - float(rooms[group]), size, float(rooms[group])) for group, size in peaks.items())

    @property
    def label(self) -> str:
        """Name of the layout in tables, such as "p8 t8s d2 v3"."""
        return str(self.mesh)

    @property
    def bytes(self) -> float:
        """Peak bytes of the device that has the least memory left."""
        return self._fullest[1]

    @property
    def room_bytes(self) -> float:
        """Memory of the device that has the least memory left."""
        return self._fullest[2]

    @property
    def lacking_bytes(self) -> float:
        """Bytes that the fullest device lacks; below 0 if all devices fit."""
        return self._fullest[0]


def simulated(space: LayoutSpace, mesh: ParallelLayout) -> SimulatedLayout:
    """Simulate a layout; a long batch is extrapolated (extrapolate.py)."""
    search_space, choice = space.choice(mesh, mesh.microbatches * mesh.samples * mesh.width)
    return SimulatedLayout(predict_choice(search_space, mesh.strategy, choice, most_forwards=0), space, mesh)


def proven(one: SimulatedLayout) -> Mapping[int, float]:
    """Largest bytes that each group can hold under any timing.

    Groups that are not near their limit keep the simulated peak. The proof uses two data-parallel ranks of a short
    batch. If even that is too long for a search, the largest undelivered messages are added to the simulated peak.
    """
    mesh, peaks = one.mesh, one.predicted.peak_memory_bytes
    waiting = one.space.waiting_bytes(mesh)
    more = {group: float(size) for place, size in zip(mesh.stands, waiting, strict=True) for group in place}
    most = {group: size + more[group] for group, size in peaks.items()}
    if one.fullest(most)[0] <= 0 and not mesh.units:  # two FSDP units may be gathered at a time
        return peaks
    short = _short(mesh)
    if short.microbatches * short.width * mesh.depth * mesh.chunks > _MOST_FORWARDS:
        return most
    search_space, choice = one.space.choice(short, short.batch_size)
    if mesh.sharded:  # state is sharded over all data-parallel ranks, not over these two
        stands = mesh.stands
        stages = (
            replace(stage, beside=tuple(g for g in stands[s % mesh.depth] if g not in stage.devices))
            for s, stage in enumerate(choice.stages)
        )
        choice = replace(choice, stages=tuple(stages))
    return proven_peaks(search_space, mesh.strategy, choice)


def _short(mesh: ParallelLayout) -> ParallelLayout:
    """The layout with two data-parallel ranks and a short batch.

    If stages differ in their number of replicas, all replicas stay, and the batch has twice the microbatches that they
    have in flight. GPipe, with all microbatches in flight, keeps the whole batch.
    """
    widths, whole = {len(place) for place in mesh.places}, mesh.schedule == "gpipe"
    if len(widths) > 1:
        if whole:
            return mesh
        together = lcm(*widths)
        filled = -(-2 * sum(len(place) for place in mesh.places) // together) * together
        return replace(mesh, microbatches=min(mesh.microbatches, filled))
    columns = min(_COLUMNS, mesh.width)
    few = mesh.microbatches if whole else mesh.depth + 2 if mesh.chunks == 1 else 2 * mesh.depth
    places = tuple(place[:columns] for place in (mesh.stands if mesh.sharded else mesh.places))
    return replace(mesh, width=columns, microbatches=min(mesh.microbatches, few), places=places)
