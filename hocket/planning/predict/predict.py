"""Predict a plan by simulation, in full or in short.

The full form has a trace and a summary, for people. The short form has a few figures, for a search of thousands of
candidates.

Rules of this file: plans that differ in layers only share one lowered program, as they share one compiled program
(planned_run.py).
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hocket.cost.sizes import PlanSizes
from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.extrapolate import foreseen, longest, repeats, shorter
from hocket.planning.predict.group_bytes import group_bytes
from hocket.planning.predict.planned_run import PlannedRun, Schedule
from hocket.planning.predict.symmetry import PipelineReplica, column_of
from hocket.profiling.profile import ModelProfile
from hocket.program.memory_bound.footprint import footprints
from hocket.program.order import waves
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
from hocket.util.gc_pause import paused


def predict(plan: Plan, profile: ModelProfile, run: PlannedRun | None = None) -> tuple[Trace, Summary]:
    """Simulate a plan: trace of every instruction, and a summary.

    Memory peaks of waves hold for any timing (`_peaks`).

    Arguments:
        run: the plan on its devices, if it is known. Its stages may list pipeline replicas that an excerpt leaves out
            (`StageCut.beside`).

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    outcome = _play(run or PlannedRun.of(plan, profile), record=True)
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
    return None if plan.swap is None else host_course(_play(PlannedRun.of(plan, profile), record=True))


def played(plan: Plan, profile: ModelProfile, repeats: int | None = None) -> SimulationResult:
    """Simulate a plan: all results but the changes of memory over time.

    Arguments:
        repeats: repetitions of the period; by default enough for a steady state.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    return _play(PlannedRun.of(plan, profile), record=False, repeats=repeats)


def played_column(plan: Plan, profile: ModelProfile, repeats: int | None = None) -> SimulationResult:
    """Simulate one of a plan's identical pipeline replicas (columns); otherwise like `played`.

    All replicas are simulated if none stands for the others (symmetry.py).
    """
    return _play(_alone(PlannedRun.of(plan, profile))[0], record=False, repeats=repeats)


def predict_iteration(plan: Plan, profile: ModelProfile) -> Predicted:
    """Predict seconds, samples per second, peaks and bubble, without a trace.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    return predict_run(PlannedRun.of(plan, profile))


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
    return predict_run(PlannedRun.of_choice(space, strategy, choice), most_forwards)


def trace_of_choice(space: SearchSpace, strategy: str, choice: Candidate) -> Trace:
    """Trace of a candidate of a strategy, without memory over time.

    Raises:
        RefusedError: the strategy does not support the candidate.
    """
    return _play(PlannedRun.of_choice(space, strategy, choice), record=False).trace


def proven_peaks(space: SearchSpace, strategy: str, choice: Candidate) -> dict[int, float]:
    """Peak memory of each device for any timing, as `check` requires (footprint.py).

    Raises:
        RefusedError: the strategy does not support the candidate.
    """
    run = PlannedRun.of_choice(space, strategy, choice)
    found = footprints(run.program, PlanSizes(run.costs, run.program))
    return {device: footprint.bytes for device, footprint in found.items()}


def predict_run(run: PlannedRun, most_forwards: int = MAX_FORWARDS) -> Predicted:
    """Predict seconds, samples per second, peaks and bubble, without a trace.

    Arguments:
        most_forwards: see `predict_choice`.

    Raises:
        InputError: the stages do not fit the profile.
        RefusedError: the strategy does not support the stages.
    """
    many = len(run.cuts) * run.batch[0] > most_forwards * run.batch[1]
    found = _shorter_of(run) if many else None
    return found[0] if found else _simulated(run)


def _shorter_of(run: PlannedRun) -> tuple[Predicted, tuple[int, int]] | None:
    """Prediction of a long batch from two shorter ones, with their sizes.

    None for a short batch, or if shorter batches do not represent it.
    """
    samples, each = run.batch
    if run.swap is not None or not (sizes := shorter(run.strategy, run.cuts, run.batch)):
        return None
    often = _repeats(run)
    return foreseen(
        samples, sizes, longest(run.cuts, each),
        lambda size: _simulated(replace(run, batch=(size, each)), often), _round_s(run, sizes),
    )  # fmt: skip


def _repeats(run: PlannedRun) -> int | None:
    """Number of repetitions of the period that show the steady state of a shorter batch; None for the default.

    Loads run ahead into the next batch, so a batch does not begin alone.
    """
    return None if run.prefetch else repeats(run.strategy, run.cuts)


def _round_s(run: PlannedRun, sizes: tuple[int, int]) -> float:
    """Compute seconds of the busiest device for the difference of two batches.

    Arguments:
        sizes: samples of the two batches.
    """
    each, turns = run.batch[1], (sizes[1] - sizes[0]) // run.batch[1]
    costs = replace(run.costs, samples=(each,))
    busy_s: dict[int, float] = {}
    for s, cut in enumerate(run.cuts):
        for device in cut.devices[:1] if len(run.cluster.nodes) < 2 else cut.devices:
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

    @property
    def critical_path(self) -> PathSeconds:
        """Seconds of the iteration by cause, along the critical path."""
        first, *second = map(critical_seconds, self.runs)
        return first.further(second[0], self.rounds) if second else first


def shorter_runs(run: PlannedRun) -> ShorterRuns:
    """Runs that `predict_run` uses for a plan with a long batch.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    samples, each = run.batch
    found = _shorter_of(run)
    if found is None:
        alone, column = _alone(run)
        return ShorterRuns((_play(alone, record=False),), column, 0.0)
    sizes, often = found[1], _repeats(run)
    alone_of = [_alone(replace(run, batch=(size, each))) for size in sizes]
    runs = tuple(_play(alone, record=False, repeats=often) for alone, _ in alone_of)
    return ShorterRuns(runs, alone_of[0][1], (samples - sizes[0]) / (sizes[1] - sizes[0]))


def _alone(run: PlannedRun) -> tuple[PlannedRun, PipelineReplica | None]:
    """Run of one of several identical pipeline replicas, and this replica.

    The run stays the same, with None, if no replica stands for all.
    """
    samples, each = run.batch
    if run.swap is not None:
        return run, None
    column = column_of(run.profile.tensors, run.cluster, run.cuts, samples, each)
    return (run, None) if column is None else (replace(run, cuts=column.cuts, batch=(column.batch_size, each)), column)


def _simulated(run: PlannedRun, repeats: int | None = None) -> Predicted:
    samples, _ = run.batch
    alone, column = _alone(run)
    outcome = _play(alone, record=False, repeats=repeats)
    steady, peaks = steady_state(outcome), _peaks(outcome)
    rate = samples / steady.iteration_s if steady.iteration_s > 0 else 0.0
    found = column.everywhere(peaks) if column is not None else peaks
    return Predicted(steady.iteration_s, rate, found, steady.bubble_fraction)


def _play(run: PlannedRun, record: bool, repeats: int | None = None) -> SimulationResult:
    return play(_layout(run.schedule, run.costs.rounds, repeats), run.costs, record=record)


@lru_cache(maxsize=256)
def _layout(schedule: Schedule, rounds: int, repeats: int | None = None) -> NodeLayout:
    """Lower a schedule's program for simulation.

    Arguments:
        rounds: number of microbatches after which their sizes repeat.
        repeats: repetitions of the period; by default as many as the steady state needs.
    """
    with paused():
        program = schedule.program
        return lay_out(program, enough_repeats(program, rounds) if repeats is None else repeats)
