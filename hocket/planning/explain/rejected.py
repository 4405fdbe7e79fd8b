"""Refused layouts of analytic models, each with its reason.

Rules of this file: refusals are listed on request only; the search itself just counts them. The nearest misses of
each kind stand for all others: the layouts that lack the least memory, or lose the least time.
"""

from collections.abc import Iterator

from hocket.errors import InputError
from hocket.hardware.groups import grouped
from hocket.planning.mesh.bound_tables import Bound
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.model_profiles import divisors, sizes_of
from hocket.planning.mesh.plan_model import SizedSearch
from hocket.planning.mesh.search.search import with_recompute_cuts
from hocket.planning.search.result import Refused
from hocket.util.units import show_count, show_seconds, show_shortage

_EACH = 6  # nearest misses of each kind


def refused_meshes(found: SizedSearch) -> tuple[Refused, ...]:
    """Refused layouts: too large, too slow by their bound, or not divisible."""
    simulated = {(one.mesh.config, one.mesh.samples) for one in found.meshes.found}
    best_s = found.best.iteration_s if found.meshes.found else float("inf")
    large, slow = list[tuple[float, Refused]](), list[tuple[float, Refused]]()
    for space, recompute_cut in with_recompute_cuts(found.spaces(found.cluster, found.request)):
        for mesh in space.meshes(found.batch_size):
            bound = space.bound(mesh)
            if not bound.fits and recompute_cut is not None and (cut := recompute_cut.fitted(mesh)) is not None:
                mesh, bound = cut, recompute_cut.bound(cut)
            if not bound.fits:
                large.append((bound.bytes - bound.room_bytes, _too_large(mesh, bound)))
            elif bound.seconds > best_s and (mesh.config, mesh.samples) not in simulated:
                slow.append((bound.seconds, _too_slow(mesh, bound, best_s)))
    near = [[one for _, one in sorted(kind, key=lambda x: x[0])[:_EACH]] for kind in (large, slow)]
    return (*near[0], *near[1], *_undivided(found))


def _too_large(mesh: ParallelLayout, bound: Bound) -> Refused:
    needed, available = show_shortage(bound.bytes, bound.room_bytes)
    why = f"needs at least {needed} on a device of {available}"
    return Refused(mesh.strategy, str(mesh), why, bound.bytes - bound.room_bytes)


def _too_slow(mesh: ParallelLayout, bound: Bound, best_s: float) -> Refused:
    why = f"takes at least {show_seconds(bound.seconds)}, {bound.seconds / best_s - 1:.1%} more than the best"
    return Refused(mesh.strategy, str(mesh), why)


def _undivided(found: SizedSearch) -> Iterator[Refused]:
    """Yield a refusal for each parallel size that does not divide the model, the cluster or the batch.

    More stages than layers, and with stale weights more stages than microbatches, are refused as well.
    """
    request, sizes = found.request, sizes_of(found.request)
    stale = "two_bw" in request.strategies or request.synchronous is False
    model, cluster, batch = found.model, found.cluster, found.batch_size
    for width in divisors(cluster.devices):
        try:
            model.check_tensor(width)
            grouped(cluster, width)
        except InputError as error:
            yield Refused("any", f"t{width}", f"{error.found} is not {error.expected}")
    layers = len(found.profile(1, "none", sizes).layers)
    for columns in divisors(cluster.devices):
        fitting = [b for b in sizes if batch % (columns * b) == 0]
        if not fitting:
            why = f"a batch of {batch} is no multiple of {columns} columns times a microbatch"
            yield Refused("any", f"d{columns}", why)
        depth = cluster.devices // columns
        if depth > layers:
            why = f"{show_count(layers, 'layer')} are fewer than {depth} stages"
            yield Refused("flush", f"p{depth} t1 d{columns}", why)
        odd = [b for b in fitting if 1 < depth <= layers and batch // (columns * b) % depth]
        if odd:
            why = f"{batch // (columns * odd[0])} microbatches are no multiple of {depth} stages (Narayanan's dissertation, section 4.2.2)"
            yield Refused("interleaved", f"p{depth} t1 d{columns} b{odd[0]}", why)
        few = [b for b in fitting if stale and 1 < batch // (columns * b) < depth <= layers]
        if few:
            why = f"{batch // (columns * few[0])} microbatches are fewer than {depth} stages (Narayanan's dissertation, section 3.2.1)"
            yield Refused("two_bw", f"p{depth} t1 d{columns} b{few[0]}", why)
