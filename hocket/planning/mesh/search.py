"""The search over meshes: bounds put them in order, the simulator decides among those that may be the best.

Rules of this file: deterministic; what looks equal within the tolerance goes to fewer stages; a mesh is left out when its bound is
behind the best simulated one. One whose bytes are above what a device has is cut to measure (recompute_cut.py), or left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import floor, inf, log

import numpy as np

from hocket.planning.mesh.heterogeneous.layouts import alone, mixed, mixes, numbers_of_chunks, turned
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutSpace
from hocket.planning.mesh.recompute_cut import RecomputeCut
from hocket.planning.mesh.simulated import SimulatedLayout, proven, simulated
from hocket.planning.search.result import TIE
from hocket.program.program import SHARDS

_SLACK = 0.02  # of unlike devices very many ways are nearly as good: what could be better by less is not simulated
_LOOSE = 1.05  # times what closed forms say, simulations wait for links
_NEAR, _LEAST_S = 0.002, 1e-12  # bounds within this share are taken for equal
_TRIES = 3  # to cut a mesh to measure
_LITTLE = 1.25  # of a device's memory: what more than this is needed for is no near miss


@dataclass(frozen=True)
class LayoutMiss:
    """A layout that does not fit: bytes that its fullest device needs at least, and its least seconds."""

    mesh: ParallelLayout
    bytes: float
    capacity_bytes: float
    seconds: float

    @property
    def missing_bytes(self) -> float:
        """Bytes by which the device is too small."""
        return self.bytes - self.capacity_bytes


@dataclass(frozen=True)
class LayoutSearch:
    """Result of a search, best first.

    Attributes:
        considered: meshes that divide devices, batch and layers; too_large: of these, beyond a device's memory.
        nearest: of those too large, the one that lacks the least memory.
        quicker: of those that lack little memory, the one with the least bound on its seconds, if that is below the best's.
        behind: the least bound on the seconds of what fits by its bound and was left out, with its mesh: nothing that was not
            simulated takes less.
        simple: where devices are unlike, the best of what takes them for alike (equal stages), or uses those of one type.
    """

    found: tuple[SimulatedLayout, ...]
    considered: int
    too_large: int
    nearest: LayoutMiss | None = None
    quicker: LayoutMiss | None = None
    behind: tuple[ParallelLayout, float] | None = None
    simple: SimulatedLayout | None = None


def search_meshes(
    planes: Iterable[LayoutSpace],
    batch_size: int,
    ceiling_s: float = inf,
    only: Callable[[ParallelLayout], bool] | None = None,
) -> LayoutSearch:
    """Simulate layouts in the order of their bounds, as long as they may be the best or tie with it.

    Arguments:
        ceiling_s: what takes longer by its bound is not simulated: it is of no use. only: the meshes that are looked at, which have
            no layers and no chunks yet.
    """
    several = list(with_tailors(planes))
    unlike = any(mixed(plane.group.cluster) for plane, _ in several[:1])
    hunt, simple = _Hunt(ceiling_s, _SLACK if unlike else 0.0), _Hunt(ceiling_s, _SLACK)
    for plane, tailor in several:
        for mesh, chunks in plane.uncut(batch_size):
            if only is None or only(mesh):
                hunt.offer(plane, mesh, chunks, None if unlike else tailor)
                if unlike:
                    simple.offer(plane, mesh, chunks, None)
        for mesh, least_s in mixes(tailor, batch_size) if unlike and tailor else ():
            if only is None or only(mesh):
                hunt.offer_uncut(plane, mesh, tailor, least_s)
                if alone(mesh, plane):
                    simple.offer_uncut(plane, mesh, tailor, least_s)
    found = hunt.run()
    return replace(found, simple=next(iter(simple.run().found), None)) if unlike else found


def with_tailors(planes: Iterable[LayoutSpace]) -> Iterator[tuple[LayoutSpace, RecomputeCut | None]]:
    """Layout spaces with a RecomputeCut for the least recomputing space of each kind of groups; None for the others."""
    widths: dict[tuple[int, bool], list[LayoutSpace]] = {}
    for plane in planes:
        widths.setdefault((plane.tensor, plane.sequence_parallel), []).append(plane)
    for own in widths.values():
        ways = sorted(own, key=lambda plane: float(plane.profile.column("backward_s", plane.sizes[0]).sum()))
        for plane in own:
            yield plane, RecomputeCut(ways) if plane is ways[0] else None


@dataclass(frozen=True)
class _Job:
    """A waiting layout: to simulate, or first to cut by `tailor` (`cut`).

    Attributes:
        rough: whether its bound knows nothing of its stages; chunks: that it may have then, if it shall be cut into balanced stages.
        close: whether its bound knows of chunks that are not alike.
        turned: whether stages stand side by side where replicas did. excess_bytes: by device, what was simulated beyond its memory; tries: how often.
    """

    plane: LayoutSpace
    mesh: ParallelLayout
    tailor: RecomputeCut | None
    cut: bool = False
    rough: bool = False
    chunks: tuple[int, ...] = ()
    close: bool = False
    turned: bool = False
    excess_bytes: float | np.ndarray = 0.0
    tries: int = 0


# A rounded bound, simplicity, a number, the bound.
_Waiting = tuple[int, tuple[int, ...], int, float, _Job]


class _Hunt:
    """One search in progress: waiting layouts in the order of bounds, and results."""

    def __init__(self, ceiling_s: float, slack: float) -> None:
        self._ceiling_s, self._slack = ceiling_s, slack
        self._waiting: list[_Waiting] = []
        self._number = self._considered = self._too_large = 0
        self._found: list[SimulatedLayout] = []
        self._misses: list[LayoutMiss] = []
        self._far: list[_Job] = []
        self._jobs: dict[ParallelLayout, _Job] = {}
        self._best_s = inf

    def offer(
        self, plane: LayoutSpace, mesh: ParallelLayout, chunks: tuple[int, ...], tailor: RecomputeCut | None
    ) -> None:
        """Take in a mesh without layers, for each of these numbers of chunks."""
        self._considered += len(chunks)
        job = _Job(plane, mesh, tailor, rough=True, chunks=chunks)
        if plane.least_bytes(mesh) > plane.room_bytes.max():
            self._too_large += len(chunks)
            self._far.append(job)
        else:
            self._wait(plane.least_s(mesh), job)

    def _look(self, job: _Job) -> None:
        """Put a layout with a rough bound back with a closer one."""
        if job.chunks:
            meshes = job.plane.cut(job.mesh, job.chunks)
            for mesh, busy_s in zip(meshes, job.plane.busiest_s(job.mesh, job.chunks), strict=True):
                self._wait(busy_s, replace(job, mesh=mesh, chunks=()))
            return
        bound = job.plane.bound(job.mesh)
        if not bound.fits and not job.tries:
            self._too_large += 1
            self._misses.append(LayoutMiss(job.mesh, bound.bytes, bound.room_bytes, bound.seconds))
        if bound.fits or (job.tailor and not job.tries):
            self._wait(bound.seconds, replace(job, rough=False, cut=not bound.fits))
        if job.tries == 1 and job.mesh.places:
            self._turn(job)

    def offer_uncut(
        self, plane: LayoutSpace, mesh: ParallelLayout, tailor: RecomputeCut | None, least_s: float
    ) -> None:
        """Take in a mesh without layers, with seconds that it is not below."""
        chunks = tuple(numbers_of_chunks(tailor, mesh)) if tailor and mesh.chunks > 1 else ()
        self._considered += max(1, len(chunks))
        self._wait(least_s, _Job(plane, mesh, tailor, cut=True, chunks=chunks))

    def _wait(self, bound_s: float, job: _Job) -> None:
        # Of bounds that are nearly the same the simpler mesh goes first: then the others need not be simulated.
        # What takes long to simulate goes behind what may be as good, and so do old weights: then it need not be, either.
        late = 1 + TIE if job.close or job.mesh.stale else 1.0
        near = floor(log(max(bound_s * late, _LEAST_S)) / log(1 + _NEAR))
        heappush(self._waiting, (near, _simplicity(job.mesh), self._number, bound_s, job))
        self._number += 1

    def run(self) -> LayoutSearch:
        """Simulate until the best is known, and proved."""
        self._go_on()
        while not self._prove():
            self._go_on()
        return self._meshes()

    def _go_on(self) -> None:
        """Put layouts to be cut back into the queue: only now are their bounds known."""
        late: list[_Waiting] = []
        while self._waiting and (1 + _NEAR) ** self._waiting[0][0] <= min(self._best_s * (1 + TIE), self._ceiling_s) * (
            1 + TIE
        ):
            one = heappop(self._waiting)
            *_, bound_s, job = one
            if bound_s > self._ceiling_s or not self._matters(bound_s, job):
                late.append(one)
            elif job.rough:
                self._look(job)
            elif job.cut:
                self._cut(job)
            elif job.mesh.chunks > 1 and not job.close:
                self._wait(max(bound_s, job.plane.closer_s(job.mesh)), replace(job, close=True))
            else:
                self._simulate(job)
        self._waiting += late
        heapify(self._waiting)

    def _matters(self, bound_s: float, job: _Job) -> bool:
        """True if a layout may beat the best by more than the tolerance, or tie with it and rank before it."""
        if not self._found:
            return True
        first = min(self._found, key=self._order)
        if first.iteration_s > self._ceiling_s or bound_s * (1 + max(TIE, self._slack)) < first.iteration_s:
            return True
        return bound_s <= self._best_s * (1 + TIE) and _simplicity(job.mesh) < _simplicity(first.mesh)

    def _cut(self, job: _Job) -> None:
        tailor = job.tailor
        if tailor is None:
            return
        if job.chunks:  # which share a closer bound
            least_s = tailor.chunks_s(job.mesh)
            for number in job.chunks if least_s < inf else ():
                self._wait(least_s, replace(job, mesh=replace(job.mesh, chunks=number), chunks=()))
            return
        found = tailor.cut_s(job.mesh, job.excess_bytes)
        if found is None:
            return
        mesh, seconds = found
        again = replace(job, plane=tailor, mesh=mesh, cut=False, rough=True, close=False, tries=job.tries + 1)
        self._wait(seconds, again)

    def _simulate(self, job: _Job) -> None:
        one = simulated(job.plane, job.mesh)
        if one.lacking_bytes <= 0:
            self._found.append(one)
            self._jobs[one.mesh] = job
            self._best_s = min(self._best_s, one.iteration_s)
            self._turn(job, one.iteration_s)
        else:
            self._refuse(job, one, one.predicted.peak_memory_bytes)

    def _turn(self, job: _Job, took_s: float | None = None) -> None:
        """Stages side by side where replicas were wait as well, if they may gain more than a tie.

        To simulate them takes long, as columns share links then: only where closed forms say so, or say far too little of what was
        simulated (`took_s`), because they know nothing of messages that wait for each other. On unlike devices closed forms of both
        are compared before either is simulated (then nothing is in `took_s`).
        """
        own = job.mesh
        if job.turned or own.units or own.depth == 1 or max(map(len, own.stands)) == 1:
            return
        twin = turned(own, job.plane)
        if twin is None:
            return
        bound, own_s = job.plane.bound(twin), job.plane.bound(own).seconds
        quicker = bound.seconds < own_s * (1 - _NEAR)
        least_s = bound.seconds * (1 + TIE)
        if took_s is None:
            gains = quicker
        else:
            gains = least_s < own_s or max(least_s, own_s * _LOOSE) < took_s
            gains = gains and not (quicker and own.places)  # which waits since then
        if bound.fits and gains:
            self._wait(bound.seconds, replace(job, mesh=twin, close=False, rough=False, turned=True))

    def _refuse(self, job: _Job, one: SimulatedLayout, peaks: Mapping[int, float]) -> None:
        """Cut a layout that does not fit, or cut it again."""
        if not job.mesh.again:
            self._too_large += 1
            self._misses.append(LayoutMiss(job.mesh, *one.fullest(peaks)[1:], one.iteration_s))
        if job.tailor and job.tries < _TRIES:
            rooms = job.plane.room_bytes
            beyond = [max(peaks[g] - rooms[g] for g in place if g in peaks) for place in job.mesh.stands]
            excess = job.excess_bytes + np.maximum(0.0, beyond) * bool(job.mesh.again)
            self._wait(0.0, replace(job, cut=True, excess_bytes=excess))

    def _prove(self) -> bool:
        """True if the best layout fits for any timing, as `check` will ask. If it does not, it is removed."""
        if not self._found:
            return True
        one = min(self._found, key=self._order)
        peaks = proven(one)
        if one.fullest(peaks)[0] <= 0:
            return True
        self._found.remove(one)
        self._best_s = min((other.iteration_s for other in self._found), default=inf)
        self._refuse(self._jobs.pop(one.mesh), one, peaks)
        return False

    def _order(self, one: SimulatedLayout) -> tuple[float, ...]:
        """Sort key of the queue; useless layouts go last."""
        return one.iteration_s > self._ceiling_s, *_rank(one, self._best_s)

    def _meshes(self) -> LayoutSearch:
        best_s, misses = self._best_s, self._misses
        least = min(self._waiting, key=lambda one: one[3], default=None)
        behind = (least[-1].mesh, float(least[3])) if least else None
        if not self._found and behind is None:  # how far these are from fitting matters now
            bounds = [
                (mesh, far.plane.bound(mesh)) for far in self._far for mesh in far.plane.cut(far.mesh, far.chunks)
            ]
            misses += [LayoutMiss(mesh, bound.bytes, bound.room_bytes, bound.seconds) for mesh, bound in bounds]
        little = [miss for miss in misses if miss.seconds < best_s and miss.bytes <= _LITTLE * miss.capacity_bytes]
        return LayoutSearch(
            tuple(sorted(self._found, key=self._order)),
            self._considered,
            self._too_large,
            min(misses, key=lambda miss: miss.missing_bytes, default=None),
            min(little, key=lambda miss: miss.seconds, default=None),
            behind,
        )


def _rank(one: SimulatedLayout, best_s: float) -> tuple[float, ...]:
    """Rank of a layout: by seconds.

    Among ties: newest weights, fewer stages, smaller groups, one recompute setting, unsharded state.
    """
    if one.iteration_s > best_s * (1 + TIE):
        return (one.iteration_s,)
    return best_s, *_simplicity(one.mesh), one.iteration_s


def _simplicity(mesh: ParallelLayout) -> tuple[int, ...]:
    return mesh.stale, mesh.depth * mesh.chunks, mesh.tensor, bool(mesh.again), SHARDS.index(mesh.shard)
