"""Search over parallel layouts: bounds order them, and the simulator decides.

The search is deterministic. Of layouts that are equally fast within a tie (TIE), the simplest wins (`simplicity`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import inf

from hocket.planning.mesh.heterogeneous.layouts import alone, mixed, mixes
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutSpace
from hocket.planning.mesh.recompute_cut import RecomputeCut
from hocket.planning.mesh.search.layout_candidates import LayoutCandidates
from hocket.planning.mesh.search.result import LayoutSearch

_SLACK = 0.02  # heterogeneous clusters have many nearly equal layouts: those that gain less are not simulated


def search_meshes(
    spaces: Iterable[LayoutSpace],
    batch_size: int,
    ceiling_s: float = inf,
    only: Callable[[ParallelLayout], bool] | None = None,
) -> LayoutSearch:
    """Simulate layouts in the order of their bounds while they may win.

    Arguments:
        ceiling_s: layouts with a greater lower bound, in seconds, are not simulated.
        only: function that returns True for layouts to consider; it gets layouts that are not cut into stages or
            chunks yet.
    """
    several = list(with_recompute_cuts(spaces))
    unlike = any(mixed(space.group.cluster) for space, _ in several[:1])
    every = LayoutCandidates(ceiling_s, _SLACK if unlike else 0.0)
    simple = LayoutCandidates(ceiling_s, _SLACK)
    for space, recompute_cut in several:
        for mesh, chunks in space.uncut(batch_size):
            if only is None or only(mesh):
                every.offer(space, mesh, chunks, None if unlike else recompute_cut)
                if unlike:
                    simple.offer(space, mesh, chunks, None)
        for mesh, least_s in mixes(recompute_cut, batch_size) if unlike and recompute_cut else ():
            if only is None or only(mesh):
                every.offer_uncut(space, mesh, recompute_cut, least_s)
                if alone(mesh, space):
                    simple.offer_uncut(space, mesh, recompute_cut, least_s)
    found = every.run()
    return replace(found, simple=next(iter(simple.run().found), None)) if unlike else found


def with_recompute_cuts(spaces: Iterable[LayoutSpace]) -> Iterator[tuple[LayoutSpace, RecomputeCut | None]]:
    """Pair each layout space with a recompute cut, or None.

    Spaces that differ only in their recompute setting share one cut, over all their settings. It is paired with the
    space of the fastest setting.
    """
    widths: dict[tuple[int, bool], list[LayoutSpace]] = {}
    for space in spaces:
        widths.setdefault((space.tensor, space.sequence_parallel), []).append(space)
    for own in widths.values():
        ways = sorted(own, key=lambda space: float(space.profile.column("backward_s", space.sizes[0]).sum()))
        for space in own:
            yield space, RecomputeCut(ways) if space is ways[0] else None
