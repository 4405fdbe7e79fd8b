"""Predict a plan by simulation, in full or in short.

The full form has a trace and a summary, for people. The short form has a few figures, for a search of thousands of
candidates.

Rules of this file: a program depends only on stages, microbatches and options, so plans that differ in layers share
one lowered program. Seconds and bytes are computed for each plan.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from hocket.cost.analytic.tensor_group import of_group
from hocket.cost.compute import Columns
from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.extrapolate import foreseen, longest, repeats, shorter
from hocket.planning.predict.group_bytes import group_bytes
from hocket.planning.predict.symmetry import PipelineReplica, column_of
from hocket.planning.swapping.budgets import completed
from hocket.profiling.profile import ModelProfile
from hocket.program.memory_bound.footprint import footprints
from hocket.program.order import waves
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.passes.swapping.insert import with_swaps
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import Program, StageShape
from hocket.program.trace.trace import Trace
from hocket.simulation.analysis.overlap_gain import overlap_of
from hocket.simulation.analysis.without_overlap import sums_apart
from hocket.simulation.critical_path import PathSeconds, critical_seconds
from hocket.simulation.engine.tables import NodeLayout
from hocket.simulation.simulator import SimulationResult, enough_repeats, lay_out, play
from hocket.simulation.steady_state import steady_state
from hocket.simulation.summary import Summary, summarize
from hocket.simulation.swapping.host_memory import HostCourse, host_course
from hocket.strategies.base.search_space import MAX_FORWARDS, Candidate, SearchSpace
from hocket.strategies.base.strategy import compile_strategy, complete, habits, microbatches_of
from hocket.util.gc_pause import paused


def profile_of_group(plan: Plan, profile: ModelProfile) -> ModelProfile:
    """Profile of the plan's devices: single devices, or tensor-parallel groups.

    The profile of a group includes the group's collectives. Layers of compiled stages have their compiled seconds.

    Arguments:
        profile: profile of one device, as the plan names it.

    Raises:
        InputError: the profile's tensor-parallel size or sequence parallelism differs from the plan's.
    """
    if profile.tensor != plan.tensor:
        found = f"{plan.tensor}, but the profile is of one of {profile.tensor} tensor-parallel devices"
        raise InputError(
            "tensor", found, f"{profile.tensor}, the profile's", "Plan again, or use the profile of the plan."
        )
    if profile.sequence_parallel != plan.sequence_parallel:
        ours, theirs = (str(one.sequence_parallel).lower() for one in (plan, profile))
        raise InputError(
            "sequence_parallel", f"{ours}, but the profile was made with {theirs}", theirs,
            "Plan again, or use the profile of the plan.",
        )  # fmt: skip
    code = {name for stage in plan.stages if stage.compile for name in stage.layers}
    if code:
        profile = profile.compiling(k for k, layer in enumerate(profile.layers) if layer.name in code)
    return of_group(profile, plan.group)


def predict(plan: Plan, profile: ModelProfile, cuts: tuple[StageCut, ...] | None = None) -> tuple[Trace, Summary]:
    """Simulate a plan: trace of every instruction, and a summary.

    Memory peaks of waves hold for any timing (`_peaks`).

    Arguments:
        cuts: stages to simulate, by default the plan's. They may list pipeline replicas that an excerpt leaves out
            (`StageCut.beside`).

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    asked = _of_plan(plan, profile)
    outcome = _play(asked if cuts is None else asked._replace(cuts=cuts), record=True)
    apart = sums_apart(outcome.layout)
    summary = replace(
        summarize(outcome, plan.tensor, plan.slices),
        peak_memory_bytes=_peaks(outcome),
        group_bytes=group_bytes(plan, profile),
        overlap=overlap_of(outcome, play(apart, outcome.costs, record=False)) if apart is not None else None,
    )
    meta = {**outcome.trace.meta, **plan.trace_meta}
    if waves(outcome.program.rule):
        meta["peak_memory_bytes"] = {str(device): size for device, size in summary.peak_memory_bytes.items()}
    return replace(outcome.trace, meta=meta), summary


def _peaks(outcome: SimulationResult) -> dict[int, float]:
    """Peak memory of each device: predicted, or for waves proved for any timing.

    Two waves on a device are two threads, and nothing orders them. How much memory one wave holds while the other is
    at its peak depends on their relative speed. A predicted peak could therefore be exceeded, and would differ from
    the number by which a plan is refused.
    """
    if not waves(outcome.program.rule):
        return outcome.peak_memory_bytes
    found = footprints(outcome.program, PlanSizes(outcome.costs, outcome.program))
    return {device: footprint.bytes for device, footprint in found.items()}


def host_course_of(plan: Plan, profile: ModelProfile) -> HostCourse | None:
    """Host memory over time in a plan's simulated run; None without swaps.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    return None if plan.swap is None else host_course(_play(_of_plan(plan, profile), record=True))


def played(plan: Plan, profile: ModelProfile, repeats: int | None = None) -> SimulationResult:
    """Simulate a plan: all results but the changes of memory over time.

    Arguments:
        repeats: repetitions of the period; by default enough for a steady state.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    return _play(_of_plan(plan, profile), record=False, repeats=repeats)


def played_column(plan: Plan, profile: ModelProfile, repeats: int | None = None) -> SimulationResult:
    """Simulate one of a plan's identical pipeline replicas (columns); otherwise like `played`.

    All replicas are simulated if none stands for the others (symmetry.py).
    """
    return _play(_alone(_of_plan(plan, profile))[0], record=False, repeats=repeats)


def program_of(plan: Plan, profile: ModelProfile) -> Program:
    """Compile a plan without simulating it; its program is cached for the prediction.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    return _laid_out(_of_plan(plan, profile))[0].program


def predict_iteration(plan: Plan, profile: ModelProfile) -> Predicted:
    """Predict seconds, samples per second, peaks and bubble, without a trace.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    return _short(_of_plan(plan, profile))


def critical_path_of(plan: Plan, profile: ModelProfile) -> PathSeconds:
    """Seconds of an iteration by cause, along the critical path.

    One of several identical pipeline replicas is simulated for all. A long batch is extrapolated.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    asked = _of_plan(plan, profile)
    samples, each = asked.batch
    found = _shorter_of(asked)
    if found is None:
        return _path(asked)
    sizes, often = found[1], repeats(asked.strategy, asked.cuts)
    first, second = (_path(asked._replace(batch=(n, each)), often) for n in sizes)
    return first.further(second, (samples - sizes[0]) / (sizes[1] - sizes[0]))


def predict_choice(
    space: SearchSpace, strategy: str, choice: Candidate, most_forwards: int = MAX_FORWARDS
) -> Predicted:
    """Predict a candidate of a strategy, like `predict_iteration` for a plan.

    Arguments:
        space: profile, cluster and batch size.
        choice: stages, microbatch size and options of the candidate.
        most_forwards: forwards of a batch above which it is extrapolated from shorter ones if possible
            (extrapolate.py).

    Raises:
        RefusedError: the strategy does not support the candidate.
    """
    batch = (space.batch_size, choice.microbatch_size)
    asked = _Asked(space.profile, space.cluster, strategy, choice.options, choice.stages, batch)
    return _short(asked, most_forwards)


def trace_of_choice(space: SearchSpace, strategy: str, choice: Candidate) -> Trace:
    """Trace of a candidate of a strategy, without memory over time.

    Raises:
        RefusedError: the strategy does not support the candidate.
    """
    batch = (space.batch_size, choice.microbatch_size)
    asked = _Asked(space.profile, space.cluster, strategy, choice.options, choice.stages, batch)
    return _play(asked, record=False).trace


def proven_peaks(space: SearchSpace, strategy: str, choice: Candidate) -> dict[int, float]:
    """Peak memory of each device for any timing, as `check` requires (footprint.py).

    Raises:
        RefusedError: the strategy does not support the candidate.
    """
    batch = (space.batch_size, choice.microbatch_size)
    sizes = _sizes(strategy, choice.stages, batch)
    costs = CostModel(space.profile, space.cluster, choice.stages, sizes, columns=_columns(space.profile))
    shapes = stage_shapes(space.profile, choice.stages)
    program = compile_strategy(strategy, shapes, len(costs.samples), dict(choice.options))
    return {device: found.bytes for device, found in footprints(program, PlanSizes(costs, program)).items()}


class _Asked(NamedTuple):
    """Request of a simulation.

    Attributes:
        batch: samples of a batch, and of a microbatch.
    """

    profile: ModelProfile
    cluster: Cluster
    strategy: str
    options: Mapping[str, Any]
    cuts: tuple[StageCut, ...]
    batch: tuple[int, int]
    swap: Swapping | None = None


def _of_plan(plan: Plan, profile: ModelProfile) -> _Asked:
    whole, batch = profile_of_group(plan, profile), (plan.batch_size, plan.microbatch_size)
    swap = completed(plan, whole).swap
    return _Asked(whole, plan.group.cluster, plan.strategy, plan.options, plan.cuts(profile), batch, swap)


def _short(asked: _Asked, most_forwards: int = MAX_FORWARDS) -> Predicted:
    many = len(asked.cuts) * asked.batch[0] > most_forwards * asked.batch[1]
    found = _shorter_of(asked) if many else None
    return found[0] if found else _simulated(asked)


def _shorter_of(asked: _Asked) -> tuple[Predicted, tuple[int, int]] | None:
    """Prediction of a long batch from two shorter ones, with their sizes.

    None for a short batch, or if shorter batches do not represent it.
    """
    samples, each = asked.batch
    if asked.swap is not None or not (sizes := shorter(asked.strategy, asked.cuts, asked.batch)):
        return None
    often = repeats(asked.strategy, asked.cuts)
    return foreseen(
        samples, sizes, longest(asked.cuts, each),
        lambda size: _simulated(asked._replace(batch=(size, each)), often), _round_s(asked, sizes),
    )  # fmt: skip


def _round_s(asked: _Asked, sizes: tuple[int, int]) -> float:
    """Compute seconds of the busiest device for the difference of two batches.

    Arguments:
        sizes: samples of the two batches.
    """
    each, turns = asked.batch[1], (sizes[1] - sizes[0]) // asked.batch[1]
    costs = CostModel(asked.profile, asked.cluster, asked.cuts, (each,), columns=_columns(asked.profile))
    busy_s: dict[int, float] = {}
    for s, cut in enumerate(asked.cuts):
        for device in cut.devices[:1] if len(asked.cluster.nodes) < 2 else cut.devices:
            busy_s[device] = busy_s.get(device, 0.0) + costs.turn_s(s, device, each) * turns / len(cut.devices)
    return max(busy_s.values())


class ShorterRuns(NamedTuple):
    """Runs from which an iteration is extrapolated.

    They are the runs of two shorter batches, or the run of the whole batch alone.

    Attributes:
        runs: the runs, of one pipeline replica if all are identical.
        column: this pipeline replica; None if the runs contain all of them.
        rounds: number of times to add the difference between the last and the first run to the first run.
    """

    runs: tuple[SimulationResult, ...]
    column: PipelineReplica | None
    rounds: float


def shorter_runs(plan: Plan, profile: ModelProfile) -> ShorterRuns:
    """Runs that `predict_iteration` uses for a plan with a long batch.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    asked = _of_plan(plan, profile)
    samples, each = asked.batch
    found = _shorter_of(asked)
    if found is None:
        alone, column = _alone(asked)
        return ShorterRuns((_play(alone, record=False),), column, 0.0)
    sizes, often = found[1], repeats(asked.strategy, asked.cuts)
    alone_of = [_alone(asked._replace(batch=(size, each))) for size in sizes]
    runs = tuple(_play(alone, record=False, repeats=often) for alone, _ in alone_of)
    return ShorterRuns(runs, alone_of[0][1], (samples - sizes[0]) / (sizes[1] - sizes[0]))


def _path(asked: _Asked, repeats: int | None = None) -> PathSeconds:
    return critical_seconds(_play(_alone(asked)[0], record=False, repeats=repeats))


def _alone(asked: _Asked) -> tuple[_Asked, PipelineReplica | None]:
    """Request for one of several identical pipeline replicas, and this replica.

    The request stays the same, with None, if no replica stands for all.
    """
    samples, each = asked.batch
    if asked.swap is not None:
        return asked, None
    column = column_of(asked.profile, asked.cluster, asked.cuts, samples, each)
    return (
        (asked, None) if column is None else (asked._replace(cuts=column.cuts, batch=(column.batch_size, each)), column)
    )


def _simulated(asked: _Asked, repeats: int | None = None) -> Predicted:
    samples, _ = asked.batch
    alone, column = _alone(asked)
    outcome = _play(alone, record=False, repeats=repeats)
    steady, peaks = steady_state(outcome), _peaks(outcome)
    rate = samples / steady.iteration_s if steady.iteration_s > 0 else 0.0
    found = column.everywhere(peaks) if column is not None else peaks
    return Predicted(steady.iteration_s, rate, found, steady.bubble_fraction)


def _play(asked: _Asked, record: bool, repeats: int | None = None) -> SimulationResult:
    layout, costs = _laid_out(asked, repeats)
    return play(layout, costs, record=record)


def _laid_out(asked: _Asked, repeats: int | None = None) -> tuple[NodeLayout, CostModel]:
    profile, cluster, strategy, options, cuts, batch, swap = asked
    sizes, swaps = _sizes(strategy, cuts, batch), swap is not None
    costs = CostModel(profile, cluster, cuts, sizes, columns=_columns(profile), swaps=swaps)
    chosen = tuple(sorted(complete(strategy, options).items()))
    shapes = stage_shapes(profile, cuts)
    schedule = _Schedule(strategy, shapes, len(costs.samples), chosen, swap)
    return _layout(schedule, costs.rounds, repeats), costs


def _sizes(strategy: str, cuts: tuple[StageCut, ...], batch: tuple[int, int]) -> tuple[int, ...]:
    """Samples of each microbatch."""
    return microbatches_of(strategy, *batch, (len(cut.devices) for cut in cuts)).sizes


class _Schedule(NamedTuple):
    """Parts of a plan that its program depends on.

    Attributes:
        strategy: name of the strategy.
        shapes: shape of each stage, from input to output.
        microbatches: number of microbatches in a batch.
        options: options of the strategy, complete and sorted by name.
        swap: settings of swapping; None for a plan without swaps.
    """

    strategy: str
    shapes: tuple[StageShape, ...]
    microbatches: int
    options: tuple[tuple[str, Any], ...]
    swap: Swapping | None

    def program(self) -> Program:
        """Compile the program, with its swaps."""
        options = dict(self.options)
        program = compile_strategy(self.strategy, self.shapes, self.microbatches, options)
        return program if self.swap is None else with_swaps(program, self.swap, habits(self.strategy, options))


@lru_cache(maxsize=256)
def _layout(schedule: _Schedule, rounds: int, repeats: int | None = None) -> NodeLayout:
    """Lower a schedule's program for simulation.

    Arguments:
        rounds: number of microbatches after which their sizes repeat.
        repeats: repetitions of the period; by default as many as the steady state needs.
    """
    with paused():
        program = schedule.program()
        return lay_out(program, enough_repeats(program, rounds) if repeats is None else repeats)


def _columns(profile: ModelProfile) -> Columns:
    """Interpolated figures of the profile; those of the last profile are cached."""
    global _last
    # Compared by identity: comparing or hashing a profile costs more than a prediction.
    if _last is None or _last.profile is not profile:
        _last = Columns(profile)
    return _last


_last: Columns | None = None
