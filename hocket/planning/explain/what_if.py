"""What-if analysis: a plan on a changed cluster or with another batch size.

The best plan for the changed cluster and batch size is found as well.

Rules of this file: nothing is estimated. The same plan is simulated again, or a new search runs. Only a result with
`ScenarioResult.at_most` is an upper bound, which no plan exceeds. Files stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, prod

from hocket.errors import HocketError, InputError, RefusedError
from hocket.hardware.change import Change
from hocket.hardware.cluster import Cluster
from hocket.planning.load import LoadedPlan
from hocket.planning.mesh.bound_tables import Bound
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.model_profiles import SizedSpace
from hocket.planning.mesh.plan_model import SizedSearch, search_sizes
from hocket.planning.mesh.recompute_cut import RecomputeCut, layout_space_of
from hocket.planning.mesh.search.search import with_recompute_cuts
from hocket.planning.mesh.search.simulated import SimulatedLayout, simulated
from hocket.planning.predict.update_semantics import synchronous_strategies
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE, Search
from hocket.planning.search.search import search_widths
from hocket.profiling.analytic.sizes import names, published
from hocket.profiling.analytic.transformer import Transformer
from hocket.util.units import show_shortage

MEMORY = 1.1  # factor on device memory in the default scenario


@dataclass(frozen=True)
class Scenario:
    """One change of cluster or batch.

    Attributes:
        text: the change in words, such as "10 % more memory".
        change: change of the cluster.
        batch: factor on the batch size.
    """

    text: str
    change: Change = field(default_factory=Change)
    batch: float = 1.0

    def samples(self, batch_size: int) -> int:
        """Batch size in the scenario.

        Arguments:
            batch_size: present batch size.
        """
        return max(1, round(batch_size * self.batch))


@dataclass(frozen=True)
class ScenarioResult:
    """Predicted effect of one change of cluster or batch (`Scenario`).

    A gain is the increase of the samples per second, as a share of the present ones.

    Attributes:
        same: gain of the same plan; None if the plan is not possible or does not fit, for the reason in `why`.
        anew: gain of the best plan in the scenario; None if there was no search, or nothing fits.
        at_most: True if `anew` is an upper bound.
        plan: label of the best plan in the scenario.
        why: reason why the same plan, or any plan, is not possible.
    """

    question: Scenario
    same: float | None = None
    anew: float | None = None
    at_most: bool = False
    plan: str = ""
    why: str = ""

    @property
    def gain(self) -> float:
        """Larger of the two gains, `same` and `anew`; an unknown gain counts as 0."""
        return max(self.same or 0.0, self.anew or 0.0)


def usual(cluster: Cluster, swaps: bool = False) -> tuple[Scenario, ...]:
    """Scenarios that are shown if the user asks for none.

    These are: double bandwidth of each level, 10 % more memory, a double batch, and devices twice as fast.

    Arguments:
        swaps: True for a plan that swaps; then a further scenario doubles the bandwidth between devices and hosts.
    """
    links = [
        Scenario(f"{level.name} of twice the bandwidth", Change(bandwidth={level.name: 2.0}))
        for level in cluster.levels
        if level.width > 1
    ]
    if swaps:
        links.append(Scenario("host link of twice the bandwidth", Change(host_link=2.0)))
    return (
        *links,
        Scenario("10 % more memory", Change(memory=MEMORY)),
        Scenario("a batch of twice the size", batch=2.0),
        Scenario("devices of twice the rates", Change(rate=2.0)),
    )


def fewer(cluster: Cluster, bubble: float) -> tuple[Scenario, ...]:
    """Scenarios with fewer devices: one server, one rack, one device.

    A scenario is included only if the plan leaves devices idle for so long that fewer devices could do its computation
    in the same time. Without slow links, they may then be faster.

    Arguments:
        bubble: idle time of a plan on all devices, relative to its busy time.
    """
    found = []
    for level, below in enumerate((None, *cluster.levels[:-1])):
        count = prod(one.width for one in cluster.levels[:level])
        if cluster.nodes or (below and below.width == 1) or not 1 < cluster.devices / count <= 1 + bubble:
            continue
        levels = cluster.levels[:level] or (replace(cluster.levels[0], width=1),)
        text = f"one {below.name} alone, {count} devices" if below else "one device alone"
        found.append(Scenario(text, Change(alone=replace(cluster, levels=levels))))
    return tuple(found)


def ask_sizes(found: SizedSearch, question: Scenario, search: bool = True) -> ScenarioResult:
    """Answer a what-if question about the best plan of an analytic model.

    Arguments:
        found: search that found the plan.
        search: True to search again. Otherwise, the gain of the best plan is given only for more memory, as an upper
            bound.
    """
    best, now = found.best, found.best.predicted.samples_per_s
    try:
        cluster, batch_size = question.change.of(found.cluster), question.samples(found.batch_size)
        same, why = _same_mesh(found, best, cluster, batch_size)
    except HocketError as error:
        return ScenarioResult(question, why=str(error))
    same_gain = None if same is None or why else batch_size / same / now - 1
    if not search:
        if question.change.memory <= 1 or same_gain is None:
            return ScenarioResult(question, same_gain, why=why)
        least_s = _least_with(found, question.change.memory)
        return ScenarioResult(question, same_gain, max(0.0, best.iteration_s / least_s - 1), True)
    ceiling_s = inf if same_gain is None or same is None else same * (1 + TIE)
    request = replace(found.request, batch_size=batch_size)
    try:
        anew = search_sizes(found.model, cluster, request, ceiling_s=ceiling_s, like=found)
        one = anew.best
    except InputError as error:
        return ScenarioResult(question, same_gain, why=str(error))
    except RefusedError as error:
        return ScenarioResult(
            question, same_gain, same_gain, False, best.label if same_gain is not None else "", why or error.found
        )
    return _anew(
        ScenarioResult(question, same_gain, why=why), batch_size / one.iteration_s / now - 1, one.label, best.label
    )


def _anew(answer: ScenarioResult, gain: float, plan: str, same_plan: str) -> ScenarioResult:
    """Add the best plan of a new search to the answer; if the present plan is better, that one is added.

    Arguments:
        gain: gain of the plan that the search found.
        plan, same_plan: labels of that plan and of the present plan.
    """
    if answer.same is not None and answer.same >= gain:
        return replace(answer, anew=answer.same, plan=same_plan)
    return replace(answer, anew=gain, plan=plan)


def _same_mesh(
    found: SizedSearch, best: SimulatedLayout, cluster: Cluster, batch_size: int
) -> tuple[float | None, str]:
    """Simulate the same layout on another cluster, with another batch size.

    Returns:
        Seconds of an iteration, None if the layout does not divide devices or batch; and the reason why it is not
            possible or does not fit, empty if it fits.
    """
    mesh, rest = best.mesh, batch_size % (best.mesh.samples * best.mesh.width)
    if cluster.devices != found.cluster.devices:
        return None, f"the plan does not fit {cluster.devices} devices"
    if rest:
        return None, f"the plan does not fit a batch of {batch_size} samples"
    there = SizedSpace(found.model, cluster, found.request)
    there.share(found)
    space = layout_space_of(there.profile, cluster, mesh, best.space.sizes, best.space.slices)
    one = simulated(space, replace(mesh, microbatches=batch_size // (mesh.samples * mesh.width)))
    return one.iteration_s, _lacks(one.predicted.peak_memory_bytes, space.group.cluster)


def _lacks(peaks: Mapping[int, float], cluster: Cluster) -> str:
    """Device that lacks the most memory, in words; empty if all fit."""
    device = max(peaks, key=lambda d: (peaks[d] - cluster.capacity_bytes(d), -d))
    capacity = cluster.capacity_bytes(device)
    needed, available = show_shortage(peaks[device], capacity)
    return "" if peaks[device] <= capacity else f"device {device} needs {needed} and has {available}"


def _least_with(found: SizedSearch, memory: float) -> float:
    """Lower bound of the iteration time of layouts that fit only with more memory.

    The result is in seconds, and at most the best plan's iteration time.

    Arguments:
        memory: factor on device memory, above 1.
    """
    best_s: float = found.best.iteration_s
    larger = Change(memory=memory).of(found.cluster)
    waiting: list[tuple[float, int, Bound, ParallelLayout, RecomputeCut | None]] = []
    for space, recompute_cut in with_recompute_cuts(found.spaces(larger, found.request)):
        for mesh in space.meshes(found.batch_size):
            if recompute_cut or space.least_bytes(mesh) <= space.room_bytes.max():
                bound = space.bound(mesh)
                if bound.seconds < best_s and (recompute_cut or bound.fits):
                    waiting.append((bound.seconds, len(waiting), bound, mesh, recompute_cut))
    # Recomputation only increases a bound.
    for bound_s, _, bound, mesh, recompute_cut in sorted(waiting, key=lambda one: one[:2]):
        if bound_s >= best_s:
            break
        if not bound.fits and recompute_cut:
            cut = recompute_cut.fitted(mesh)
            bound = recompute_cut.bound(cut) if cut else bound
        if bound.fits and memory * bound.bytes > bound.room_bytes:
            best_s = min(best_s, bound.seconds)
    return best_s


def ask_plan(opened: LoadedPlan, question: Scenario, search: bool = False) -> ScenarioResult:
    """Answer a what-if question about a plan.

    Arguments:
        search: True to search for the best plan in the scenario as well, with the plan's profile.
    """
    plan = opened.plan
    try:
        now = opened.predicted
        cluster, batch_size = question.change.of(plan.cluster), question.samples(plan.batch_size)
    except HocketError as error:
        return ScenarioResult(question, why=str(error))
    try:
        if cluster.devices != plan.cluster.devices:
            same = ScenarioResult(question, why=f"the plan does not fit {cluster.devices} devices")
        else:
            changed = replace(plan, cluster=cluster, batch_size=batch_size, predicted=None)
            there = replace(opened, plan=changed).predicted
            why = _lacks(there.peak_memory_bytes, changed.group.cluster)
            same = ScenarioResult(question, None if why else there.samples_per_s / now.samples_per_s - 1, why=why)
    except HocketError as error:  # a search may still find a plan
        same = ScenarioResult(question, why=str(error))
    if not search:
        return same
    try:
        request = PlanRequest(batch_size, synchronous=_admits(plan.strategy))
        one = search_widths({plan.profile: opened.profile}, cluster, request).best
    except HocketError as error:
        return replace(same, why=same.why or str(error))
    return _anew(same, one.samples_per_s / now.samples_per_s - 1, one.label, plan.strategy)


def ask_plan_of_sizes(opened: LoadedPlan, model: Transformer, question: Scenario) -> ScenarioResult:
    """Answer a what-if question about a plan of an analytic model, by a new search."""
    plan, same = opened.plan, ask_plan(opened, question)
    try:
        now = opened.predicted.samples_per_s
        cluster, batch_size = question.change.of(plan.cluster), question.samples(plan.batch_size)
        one = search_sizes(model, cluster, PlanRequest(batch_size, synchronous=_admits(plan.strategy))).best
    except HocketError as error:
        return replace(same, why=same.why or str(error))
    return _anew(same, batch_size / one.iteration_s / now - 1, one.label, plan.strategy)


def _admits(strategy: str) -> bool | None:
    """Setting of `PlanRequest.synchronous` for a search like that of a plan with this strategy.

    False, so that stale weights are searched, if the strategy has them; otherwise None, the default.
    """
    return None if strategy in synchronous_strategies() else False


def sizes_of(opened: LoadedPlan) -> Transformer:
    """Published model from which the plan of an analytic model was made.

    Raises:
        InputError: the plan's model is not a published one, or its profile was derived otherwise (with a
            calibration, for example).
    """
    plan, profile = opened.plan, opened.profile
    step = f"Ask about the model: hocket what-if MODEL CLUSTER -B {plan.batch_size}"
    refusal = InputError(
        "--replan", f"a plan of the analytic model {plan.model}", "a plan of a profile, or a published model", step
    )
    if plan.model not in names():
        raise refusal
    model, sizes = published(plan.model), profile.microbatch_sizes
    own = SizedSpace(model, plan.cluster, PlanRequest(plan.batch_size))
    same = own.profile(plan.tensor, "none", sizes, plan.sequence_parallel)
    seconds = ([layer.forward_s for layer in one.layers] for one in (profile, same))
    if profile.correction is not None or len({str(one) for one in seconds}) > 1:
        raise refusal
    return model


def ask_profile(
    found: Search,
    question: Scenario,
    search: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
) -> ScenarioResult:
    """Answer a what-if question about the best plan of a profiled job.

    Arguments:
        found: result of the search for the plan.
        question: the changes to assume.
        search: True to search again. A question about more memory always searches if a refused candidate lacked no
            more than the additional memory.
    """
    plan, same = found.best.plan, ask_plan(found.loaded(found.best), question)
    if not search and not (question.change.memory > 1 and _lacking_little(found, question.change.memory)):
        return same
    now = found.best.samples_per_s
    try:
        cluster, batch_size = question.change.of(plan.cluster), question.samples(plan.batch_size)
        request = replace(found.request, batch_size=batch_size)
        one = search_widths(found.profiles, cluster, request, progress).best
    except HocketError as error:
        return replace(same, why=same.why or str(error))
    return _anew(same, one.samples_per_s / now - 1, one.label, found.best.label)


def _lacking_little(found: Search, memory: float) -> bool:
    cluster = found.best.plan.cluster
    most = (memory - 1) * max(cluster.capacity_bytes(d) for d in range(cluster.devices))
    return any(0 < refused.missing_bytes <= most and not refused.swaps for refused in found.refused)
