"""Compare the best plan with a pipeline and the best plan without a pipeline.

The question is whether a pipeline is worth it, and how much slower the other plan is.

Rules of this file: both kinds of plan are searched until the best of each is known; a pipeline is not chosen by habit.
Kernel launches, small matrix products and links inside a server are part of every plan's seconds (cost/,
planning/mesh/layout.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hocket.planning.mesh.layout import STALE, ParallelLayout
from hocket.planning.mesh.plan_model import SizedSearch
from hocket.planning.mesh.search.search import search_meshes
from hocket.planning.predict.update_semantics import UpdateSemantics, synchronous_strategies
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE, Evaluated, Search
from hocket.planning.search.search import search_widths
from hocket.strategies.base.strategy import members, ring_of, yields_idle
from hocket.util.units import show_gap, show_shortage

PLAIN, SHARDED, TENSOR, PIPELINE, BURST, WAVES, TICK_TOCK, ALONE, SWAPPED = (
    "plain data parallelism",
    "sharded data parallelism",
    "tensor parallelism",
    "a pipeline",
    "burst parallelism",
    "model parallelism in waves",
    "data parallelism in two waves",
    "one device alone",
    "swapping",
)

_NOTHING = "nothing else was considered"

_OTHERS = {
    PIPELINE: ("no plan without a pipeline", "the best plan without a pipeline"),
    ALONE: ("no plan on several devices", "the best plan on several devices"),
    SWAPPED: ("no plan without swapping", "the best plan without swapping"),
}


@dataclass(frozen=True)
class BaselineComparison:
    """Comparison of the best plan with the best plan of the other kind.

    Attributes:
        winner: kind of the best plan: PLAIN, SHARDED, TENSOR, PIPELINE, BURST, WAVES, TICK_TOCK, ALONE or SWAPPED.
        other: label of the best plan of the other kind; empty if there is none. If the winner is a pipeline, this is
            the best plan without a pipeline; if one device alone, the best plan on several devices; if a plan that
            swaps, the best plan that does not swap; otherwise the best pipeline.
        loses: additional seconds of `other`, as a share of the winner's.
        why: reason why there is no plan of the other kind.
        stale: label of the best plan with stale weights, if it is faster and the request did not mention stale
            weights.
        stale_gains: seconds that `stale` saves, as a share of the winner's.
        stale_updates: how the updates of `stale` differ from one process, in a sentence.
        swapped, swapped_loses: the best plan that swaps, if the winner does not, and its additional seconds as a
            share.
        waves: for each kind of waves that was searched, a line with the reason why it is not the best
            (waves/explain.py).
    """

    winner: str
    other: str = ""
    loses: float = 0.0
    why: str = ""
    stale: str = ""
    stale_gains: float = 0.0
    stale_updates: str = ""
    waves: tuple[str, ...] = ()
    swapped: str = ""
    swapped_loses: float = 0.0

    @property
    def stale_text(self) -> str:
        """Gain of stale weights, in a sentence."""
        return f"--stale would find {self.stale}, which takes {self.stale_gains:.1%} less; {self.stale_updates}"

    @property
    def text(self) -> str:
        """The comparison in a sentence; for plans that swap, against plans that do not."""
        beside = f"; swapping, {self.swapped}, takes {self.swapped_loses:.1%} more" if self.swapped else ""
        return self._sentence + beside

    @property
    def _sentence(self) -> str:
        none, name = _OTHERS.get(self.winner, ("no pipeline", "the best pipeline"))
        if self.why == _NOTHING:
            return f"{self.winner}: {self.why}"
        wins = f"{self.winner} {'is quickest' if self.winner == ALONE else 'wins'}"
        if not self.other:
            return f"{wins}: {none}{f', {self.why}' if self.why else ''}"
        if self.loses > TIE:
            return f"{wins}: {name}, {self.other}, takes {self.loses:.1%} more"
        return f"{self.winner} is as good as any: {name}, {self.other}, {show_gap(self.loses)}, which counts as equal"


def of_sizes(found: SizedSearch) -> BaselineComparison:
    """Comparison for an analytic model.

    It includes the gain of stale weights, unless the request names strategies or sets `synchronous`.
    """
    verdict = _of_sizes(found)
    if _says(found.request):
        return verdict
    best = found.best
    spaces = found.spaces(found.cluster, replace(found.request, strategies=STALE))
    old = search_meshes(spaces, found.batch_size, best.iteration_s * (1 - TIE)).found
    quickest = min(old, key=lambda one: one.iteration_s, default=best)
    updates = found.updates(quickest)
    return _with(verdict, quickest.label, 1 - quickest.iteration_s / best.iteration_s, updates, STALE[0])


def _of_sizes(found: SizedSearch) -> BaselineComparison:
    best = found.best
    wanted = best.mesh.depth == 1
    spaces = found.spaces(found.cluster, found.request)
    others = search_meshes(spaces, found.batch_size, only=lambda mesh: (mesh.depth > 1) == wanted)
    winner = _kind(best.mesh)
    if others.found:
        # Each search skips some candidates that count as equal: `other` must not be slower than a known runner-up.
        known = (*others.found, *(one for one in found.candidates if (one.mesh.depth > 1) == wanted))
        second = min(known, key=lambda one: one.iteration_s)
        return BaselineComparison(winner, second.label, second.iteration_s / best.iteration_s - 1)
    if others.nearest is None:
        if winner == ALONE:
            return BaselineComparison(winner, why="because the cluster has one device")
        if found.request.strategies:
            return BaselineComparison(winner, why=_NOTHING)
        return BaselineComparison(winner, why="which this batch does not allow")
    miss = others.nearest
    needed, available = show_shortage(miss.bytes, miss.capacity_bytes)
    return BaselineComparison(winner, why=f"because {miss.mesh} needs {needed} on a device of {available}")


def _kind(mesh: ParallelLayout) -> str:
    if mesh.depth > 1:
        return PIPELINE
    if mesh.tensor > 1:
        return TENSOR
    if mesh.width == 1 and not mesh.places:
        return ALONE
    return SHARDED if mesh.sharded else PLAIN


def of_profile(found: Search) -> BaselineComparison:
    """Comparison for a profiled job.

    The best plan of the other kind is one of the candidates of the search, if there is one.
    """
    best = found.best
    winner = _kind_of(best)
    swapped = [one for one in found.candidates if _kind_of(one) == SWAPPED]
    if winner != SWAPPED and swapped:
        second = min(swapped, key=lambda one: one.iteration_s)
        beside = second.iteration_s / best.iteration_s - 1
        alone = replace(found, candidates=tuple(one for one in found.candidates if one not in swapped))
        return replace(of_profile(alone), swapped=second.label, swapped_loses=beside)
    apart = winner if winner in (ALONE, SWAPPED) else PIPELINE
    others = [one for one in found.candidates if (_kind_of(one) == apart) != (winner == apart)]
    if others:
        second = min(others, key=lambda one: one.iteration_s)
        return BaselineComparison(winner, second.label, second.iteration_s / best.iteration_s - 1)
    if winner == ALONE and best.plan.cluster.devices == 1:
        return BaselineComparison(winner, why="because the cluster has one device")
    piped, whole = ("flush", "gpipe", "interleaved", "pipedream", "two_bw"), ("data_parallel", "fully_sharded")
    names = {PIPELINE: whole, ALONE: (*whole, *piped), SWAPPED: (*whole, *piped)}.get(winner, piped)
    reasons = [one for one in found.refused if one.strategy in names and not (winner == SWAPPED and one.swaps)]
    near = min(reasons, key=lambda one: (not one.missing_bytes, one.missing_bytes), default=None)
    return BaselineComparison(
        winner, why=f"because {near.strategy} {near.config} is refused: {near.reason}" if near else _NOTHING
    )


def with_stale(
    verdict: BaselineComparison,
    found: Search,
    progress: Callable[[int, int, str], None] | None = None,
) -> BaselineComparison:
    """Add the gain of stale weights to a comparison, by a further search.

    The comparison stays as it is if the request names strategies or sets `synchronous`.

    Arguments:
        found: result of the search.
    """
    if _says(found.request):
        return verdict
    names = [name for name in members() if name not in synchronous_strategies()]
    best = found.best
    stale = replace(found.request, batch_size=best.plan.batch_size, strategies=names)
    others = search_widths(found.profiles, best.plan.cluster, stale, progress).candidates
    old = [
        one for one in others if one.updates.age or one.updates.shared
    ]  # the other strategies differ only in the samples of an update
    quickest = min(old, key=lambda one: one.iteration_s, default=best)
    gains = 1 - quickest.iteration_s / best.iteration_s
    return _with(verdict, quickest.label, gains, quickest.updates, quickest.strategy)


def _says(request: PlanRequest) -> bool:
    """True if a request decides about stale weights."""
    return bool(request.strategies) or request.synchronous is not None


def _with(
    verdict: BaselineComparison, name: str, gains: float, updates: UpdateSemantics, strategy: str
) -> BaselineComparison:
    """Add the gain of stale weights, if it is more than a tie.

    Arguments:
        name: label of the plan with stale weights.
        gains: seconds that it saves, as a share.
    """
    if gains <= TIE:
        return verdict
    return replace(verdict, stale=name, stale_gains=gains, stale_updates=updates.sentence(strategy))


def _kind_of(one: Evaluated) -> str:
    if one.plan.swap is not None:
        return SWAPPED
    if any(stage.wave for stage in one.plan.stages):
        return TICK_TOCK
    devices = [stage.devices for stage in one.plan.stages]
    if len(set(devices)) > 1:
        if len(devices[0]) > 1 and ring_of(devices) is not None:
            return WAVES
        return BURST if yields_idle(one.strategy) else PIPELINE
    if one.plan.shard != "none" and any(len(stage.devices) > 1 for stage in one.plan.stages):
        return SHARDED
    if one.plan.tensor > 1:
        return TENSOR
    return PLAIN if any(len(stage.devices) > 1 for stage in one.plan.stages) else ALONE
