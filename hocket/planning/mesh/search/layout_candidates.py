"""Parallel layouts of an analytic model, from rough bounds to simulations.

A layout is left out if its lower bound is above the best simulated time. A layout that needs more memory than a device
has is cut again, with more recomputation (recompute_cut.py), or left out.
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

_LOOSE = 1.05  # factor by which simulations, in which messages wait for links, may exceed closed forms
_NEAR, _LEAST_S = 0.002, 1e-12  # bounds within the share _NEAR count as equal; smaller bounds count as _LEAST_S
_TRIES = 3  # maximum number of cuts of one layout


@dataclass(frozen=True)
class WaitingLayout:
    """A layout that waits for a closer bound, a cut into stages or its simulation.

    Attributes:
        space: layout space of the layout.
        recompute_cut: cuts the layout into stages that fit; None if it is left out when it does not fit.
        cut: True if `recompute_cut` is to cut the layout next.
        rough: True if the bound does not depend on the layout's stages yet.
        chunks: numbers of chunks, for each of which the layout is still to be cut.
        close: True if the bound takes into account that chunks are unequal.
        turned: True if places of stages and replicas have been exchanged.
        excess_bytes: simulated bytes beyond the memory, by stage, summed over all simulations of a cut so far.
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
    """Search over the layouts that are offered to it.

    This is the `CandidateSource` for analytic models.
    """

    def __init__(self, ceiling_s: float, slack: float) -> None:
        """Begin a search without layouts; `offer` and `offer_uncut` add them.

        Arguments:
            ceiling_s: layouts with a lower bound above it are not simulated.
            slack: least gain over the best simulated layout, as a share, for which a layout is simulated.
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
        """Add a layout that is not cut into stages, for each of these numbers of chunks.

        Arguments:
            recompute_cut: cuts the layout again if it does not fit; None if it is left out then.
        """
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
        """Add a layout that `recompute_cut` is to cut into stages.

        Arguments:
            least_s: lower bound in seconds.
        """
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

        Of layouts with nearly equal bounds, the simpler one is first: the others need not be simulated then.
        Interleaved layouts, which take long to simulate, and layouts with stale weights come after others that may be
        as good.
        """
        late = 1 + TIE if node.close or node.mesh.stale else 1.0
        near = floor(log(max(bound_s * late, _LEAST_S)) / log(1 + _NEAR))
        return near, *simplicity(node.mesh)

    def reaches(self, order: tuple[float, ...]) -> bool:
        """True if a layout with this sort key may be as fast as the best, within a tie."""
        return (1 + _NEAR) ** order[0] <= min(self._best_s * (1 + TIE), self._ceiling_s) * (1 + TIE)

    def promising(self, bound_s: float, node: WaitingLayout) -> bool:
        """True if a layout may be faster than the best, or as fast and simpler."""
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
        """Give a layout balanced stages and a bound that depends on them."""
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
        if node.chunks:  # all numbers of chunks share a closer bound
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
        """Exchange the places of stages and replicas, if that may gain more than a tie.

        The exchanged layout is slow to simulate, since replicas share links. It is tried only if its closed form is
        faster, or if the simulated time of the layout itself is far above its closed form, which ignores that messages
        wait for each other.

        Arguments:
            took_s: simulated seconds of the layout itself; None on heterogeneous clusters, where closed forms are
                compared before any simulation.
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
            gains = gains and not (quicker and own.places)  # the exchanged layout waits already
        if bound.fits and gains:
            yield bound.seconds, replace(node, mesh=twin, close=False, rough=False, turned=True)

    def _refuse(self, node: WaitingLayout, one: SimulatedLayout, peaks: Mapping[int, float]) -> Nodes:
        """Cut a layout that does not fit, unless it was cut too often.

        Arguments:
            peaks: simulated or proved peak bytes, by group.
        """
        if not node.mesh.again:
            self._too_large += 1
            self._misses.append(LayoutMiss(node.mesh, *one.fullest(peaks)[1:], one.iteration_s))
        if node.recompute_cut and node.tries < _TRIES:
            rooms = node.space.room_bytes
            beyond = [max(peaks[g] - rooms[g] for g in place if g in peaks) for place in node.mesh.stands]
            excess = node.excess_bytes + np.maximum(0.0, beyond) * bool(node.mesh.again)
            yield 0.0, replace(node, cut=True, excess_bytes=excess)

    def _unproved(self) -> list[Bounded[WaitingLayout]] | None:
        """Withdraw the best layout if its peak memory may be too large with other timing.

        Returns:
            Variants of the layout that may fit; None if the best layout is proved to fit, or none is found.
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
