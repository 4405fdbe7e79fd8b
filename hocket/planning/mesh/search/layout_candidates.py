"""Parallel layouts of an analytic model, from rough bounds to simulations.

A layout is left out if its bound is behind the best simulated one. A layout that needs more memory than a device has is
cut to fit by recomputing more (recompute_cut.py), or left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import floor, inf, log

import numpy as np

from hocket.planning.mesh.heterogeneous.layouts import numbers_of_chunks, turned
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutSpace
from hocket.planning.mesh.recompute_cut import RecomputeCut
from hocket.planning.mesh.search.result import LayoutMiss, LayoutSearch, rank, simplicity
from hocket.planning.mesh.search.simulated import SimulatedLayout, proven, simulated
from hocket.planning.search.branch_and_bound import Bounded, BranchAndBound
from hocket.planning.search.result import TIE

_LOOSE = 1.05  # by how much simulations, in which messages wait for links, exceed closed forms
_NEAR, _LEAST_S = 0.002, 1e-12  # bounds within this share count as equal
_TRIES = 3  # to cut a layout to fit


@dataclass(frozen=True)
class WaitingLayout:
    """A layout that waits for a closer bound, a cut or its simulation.

    Attributes:
        recompute_cut: cuts the layout into stages that fit; None: it is left out if it does not fit.
        cut: True if it is to be cut before it is simulated.
        rough: True if its bound does not consider its stages yet.
        chunks: numbers of chunks for which it is still to be cut into balanced stages.
        close: True if its bound considers unequal chunks.
        turned: True if the devices of its stages and replicas have been exchanged.
        excess_bytes: memory beyond each device's own in the last simulation.
        tries: number of cuts so far.
    """

    space: LayoutSpace
    mesh: ParallelLayout
    recompute_cut: RecomputeCut | None
    cut: bool = False
    rough: bool = False
    chunks: tuple[int, ...] = ()
    close: bool = False
    turned: bool = False
    excess_bytes: float | np.ndarray = 0.0
    tries: int = 0


Nodes = Iterator[Bounded[WaitingLayout]]


class LayoutCandidates:
    """Parallel layouts of an analytic model: a `CandidateSource`."""

    def __init__(self, ceiling_s: float, slack: float) -> None:
        """Begin a search.

        Layouts with a bound above `ceiling_s` seconds, or with gains below the share `slack`, are not simulated.
        """
        self._ceiling_s, self._slack = ceiling_s, slack
        self._considered = self._too_large = 0
        self._found: list[SimulatedLayout] = []
        self._misses: list[LayoutMiss] = []
        self._far: list[WaitingLayout] = []
        self._nodes: dict[ParallelLayout, WaitingLayout] = {}
        self._best_s = inf
        self._search: BranchAndBound[WaitingLayout] = BranchAndBound(self)

    def offer(
        self, space: LayoutSpace, mesh: ParallelLayout, chunks: tuple[int, ...], recompute_cut: RecomputeCut | None
    ) -> None:
        """Add a layout without stages, for each of these numbers of chunks."""
        self._considered += len(chunks)
        node = WaitingLayout(space, mesh, recompute_cut, rough=True, chunks=chunks)
        if space.least_bytes(mesh) > space.room_bytes.max():
            self._too_large += len(chunks)
            self._far.append(node)
        else:
            self._search.add((space.least_s(mesh), node))

    def offer_uncut(
        self, space: LayoutSpace, mesh: ParallelLayout, recompute_cut: RecomputeCut | None, least_s: float
    ) -> None:
        """Add a layout without stages that is to be cut, with a lower bound in seconds."""
        chunks = tuple(numbers_of_chunks(recompute_cut, mesh)) if recompute_cut and mesh.chunks > 1 else ()
        self._considered += max(1, len(chunks))
        self._search.add((least_s, WaitingLayout(space, mesh, recompute_cut, cut=True, chunks=chunks)))

    def run(self) -> LayoutSearch:
        """Simulate until the best layout is known and proved to fit."""
        self._search.run()
        while (variants := self._unproved()) is not None:
            self._search.add(*variants)
            self._search.run()
        return self._results()

    def order(self, bound_s: float, node: WaitingLayout) -> tuple[float, ...]:
        """Sort key of a waiting layout: by bound, then by simplicity.

        Of nearly equal bounds, the simpler layout is first: the others need not be simulated then. Unequal chunks, which
        take long to simulate, and stale weights go behind layouts that may be as good.
        """
        late = 1 + TIE if node.close or node.mesh.stale else 1.0
        near = floor(log(max(bound_s * late, _LEAST_S)) / log(1 + _NEAR))
        return near, *simplicity(node.mesh)

    def reaches(self, order: tuple[float, ...]) -> bool:
        """True if a layout with this sort key may be as good as the best, within a tie."""
        return (1 + _NEAR) ** order[0] <= min(self._best_s * (1 + TIE), self._ceiling_s) * (1 + TIE)

    def promising(self, bound_s: float, node: WaitingLayout) -> bool:
        """True if a layout may beat the best by more than the tolerance, or win a tie."""
        if bound_s > self._ceiling_s:
            return False
        if not self._found:
            return True
        first = min(self._found, key=self._rank_of)
        if first.iteration_s > self._ceiling_s or bound_s * (1 + max(TIE, self._slack)) < first.iteration_s:
            return True
        return bound_s <= self._best_s * (1 + TIE) and simplicity(node.mesh) < simplicity(first.mesh)

    def branch(self, bound_s: float, node: WaitingLayout) -> Nodes:
        """Give a layout a closer bound, cut it, or simulate it."""
        if node.rough:
            return self._look(node)
        if node.cut:
            return self._cut(node)
        if node.mesh.chunks > 1 and not node.close:
            return iter([(max(bound_s, node.space.closer_s(node.mesh)), replace(node, close=True))])
        return self._simulate(node)

    def _look(self, node: WaitingLayout) -> Nodes:
        """Bound a layout by its stages."""
        if node.chunks:
            meshes = node.space.cut(node.mesh, node.chunks)
            for mesh, busy_s in zip(meshes, node.space.busiest_s(node.mesh, node.chunks), strict=True):
                yield busy_s, replace(node, mesh=mesh, chunks=())
            return
        bound = node.space.bound(node.mesh)
        if not bound.fits and not node.tries:
            self._too_large += 1
            self._misses.append(LayoutMiss(node.mesh, bound.bytes, bound.room_bytes, bound.seconds))
        if bound.fits or (node.recompute_cut and not node.tries):
            yield bound.seconds, replace(node, rough=False, cut=not bound.fits)
        if node.tries == 1 and node.mesh.places:
            yield from self._turn(node)

    def _cut(self, node: WaitingLayout) -> Nodes:
        recompute_cut = node.recompute_cut
        if recompute_cut is None:
            return
        if node.chunks:  # they share a closer bound
            least_s = recompute_cut.chunks_s(node.mesh)
            for number in node.chunks if least_s < inf else ():
                yield least_s, replace(node, mesh=replace(node.mesh, chunks=number), chunks=())
            return
        found = recompute_cut.cut_s(node.mesh, node.excess_bytes)
        if found is None:
            return
        mesh, seconds = found
        again = replace(node, space=recompute_cut, mesh=mesh, cut=False, rough=True, close=False, tries=node.tries + 1)
        yield seconds, again

    def _simulate(self, node: WaitingLayout) -> Nodes:
        one = simulated(node.space, node.mesh)
        if one.lacking_bytes <= 0:
            self._found.append(one)
            self._nodes[one.mesh] = node
            self._best_s = min(self._best_s, one.iteration_s)
            yield from self._turn(node, one.iteration_s)
        else:
            yield from self._refuse(node, one, one.peak_memory_bytes)

    def _turn(self, node: WaitingLayout, took_s: float | None = None) -> Nodes:
        """Exchange the devices of stages and replicas, if that may gain more than a tie.

        The result is slow to simulate, since replicas share links. It is tried only if its closed form is faster, or if
        the layout's simulated time `took_s` is far above its closed form, which ignores messages that wait for each
        other. On heterogeneous clusters, closed forms are compared before either simulation (`took_s` is None).
        """
        own = node.mesh
        if node.turned or own.units or own.depth == 1 or max(map(len, own.stands)) == 1:
            return
        twin = turned(own, node.space)
        if twin is None:
            return
        bound, own_s = node.space.bound(twin), node.space.bound(own).seconds
        quicker = bound.seconds < own_s * (1 - _NEAR)
        least_s = bound.seconds * (1 + TIE)
        if took_s is None:
            gains = quicker
        else:
            gains = least_s < own_s or max(least_s, own_s * _LOOSE) < took_s
            gains = gains and not (quicker and own.places)  # it waits already
        if bound.fits and gains:
            yield bound.seconds, replace(node, mesh=twin, close=False, rough=False, turned=True)

    def _refuse(self, node: WaitingLayout, one: SimulatedLayout, peaks: Mapping[int, float]) -> Nodes:
        """Cut a layout that does not fit, or cut it again."""
        if not node.mesh.again:
            self._too_large += 1
            self._misses.append(LayoutMiss(node.mesh, *one.fullest(peaks)[1:], one.iteration_s))
        if node.recompute_cut and node.tries < _TRIES:
            rooms = node.space.room_bytes
            beyond = [max(peaks[g] - rooms[g] for g in place if g in peaks) for place in node.mesh.stands]
            excess = node.excess_bytes + np.maximum(0.0, beyond) * bool(node.mesh.again)
            yield 0.0, replace(node, cut=True, excess_bytes=excess)

    def _unproved(self) -> list[Bounded[WaitingLayout]] | None:
        """Withdraw the best layout if it may exceed a device's memory under other timing.

        Return its variants that may fit; None if the best layout is proved, or none is found.
        """
        if not self._found:
            return None
        best = min(self._found, key=self._rank_of)
        peaks = proven(best)
        if best.fullest(peaks)[0] <= 0:
            return None
        self._found.remove(best)
        self._best_s = min((other.iteration_s for other in self._found), default=inf)
        return list(self._refuse(self._nodes.pop(best.mesh), best, peaks))

    def _rank_of(self, one: SimulatedLayout) -> tuple[float, ...]:
        """Sort key of the results; layouts beyond the ceiling are last."""
        return one.iteration_s > self._ceiling_s, *rank(one, self._best_s)

    def _results(self) -> LayoutSearch:
        best_s, misses = self._best_s, self._misses
        least = self._search.least()
        behind = (least[1].mesh, float(least[0])) if least else None
        if not self._found and behind is None:  # then show how far these are from fitting
            bounds = [
                (mesh, far.space.bound(mesh)) for far in self._far for mesh in far.space.cut(far.mesh, far.chunks)
            ]
            misses += [LayoutMiss(mesh, bound.bytes, bound.room_bytes, bound.seconds) for mesh, bound in bounds]
        little = [miss for miss in misses if miss.seconds < best_s and miss.is_near]
        return LayoutSearch(
            tuple(sorted(self._found, key=self._rank_of)),
            self._considered,
            self._too_large,
            min(misses, key=lambda miss: miss.missing_bytes, default=None),
            min(little, key=lambda miss: miss.seconds, default=None),
            behind,
        )
