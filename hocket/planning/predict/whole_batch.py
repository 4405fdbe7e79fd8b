"""Summary of one iteration of a plan with a batch too long to simulate whole.

Rules of this file: seconds, samples per second, bubble and peaks come from `predict_iteration`. All other figures are
extrapolated from two shorter batches (extrapolate.py). If pipeline replicas (columns) are identical, one is simulated.
Only drawings show an excerpt, and `excerpt_text` names it.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import TypeVar

from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.group_bytes import group_bytes
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import ShorterRuns, predict, shorter_runs
from hocket.profiling.profile import ModelProfile
from hocket.program.trace.overlap import Overlap
from hocket.simulation.analysis.traffic import Pair, Traffic, by_level, by_name, traffic_of
from hocket.simulation.analysis.without_overlap import sums_apart
from hocket.simulation.result import SimulationResult
from hocket.simulation.simulator import play
from hocket.simulation.steady_state import steady_state
from hocket.simulation.summary import Summary
from hocket.util.units import show_count

_Key = TypeVar("_Key", bound=Hashable)


def whole_summary(plan: Plan, profile: ModelProfile, excerpt: Summary, shown: Plan, now: Predicted) -> Summary:
    """Summary of a plan of which only an excerpt is simulated by instruction.

    Arguments:
        profile: profile of one device, as the plan names it.
        excerpt: summary of `shown`.
        shown: the excerpt, with fewer microbatches or pipeline replicas (columns).
        now: the whole plan's prediction by `predict_iteration`.

    Returns:
        A summary with the figures of one iteration of the whole plan. The critical path, the run's length and its
            instructions are the excerpt's.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    if plan.swap is not None:  # plans that swap are always simulated whole
        return predict(plan, profile)[1]
    found = shorter_runs(PlannedRun.of(plan, profile))
    busy = _further(found, [_busy_s(run) for run in found.runs])
    busy = found.column.everywhere(busy) if found.column is not None else busy
    between = _between(found, plan)
    return replace(
        excerpt,
        iteration_s=now.iteration_s,
        samples_per_s=now.samples_per_s,
        bubble_fraction=now.bubble_fraction,
        peak_memory_bytes=now.peak_memory_bytes,
        utilization={device: seconds / now.iteration_s for device, seconds in sorted(busy.items())},
        sent_bytes=by_level(plan.group.cluster, between),
        sent_bytes_between=by_name(between),
        group_bytes=group_bytes(plan, profile),
        overlap=_overlap(found, plan, excerpt, shown, now),
    )


def excerpt_text(plan: Plan, shown: Plan) -> str:
    """Name of the drawn part of a plan, such as "32 of 1,536 microbatches".

    Empty for the whole plan.
    """
    if shown is plan:
        return ""
    columns, all_columns = (len(one.stages[0].devices) for one in (shown, plan))
    part = f" in {columns:,} of {all_columns:,} columns" if columns < all_columns else ""
    return f"{shown.microbatches:,} of {show_count(plan.microbatches, 'microbatch')}{part}"


def _further(found: ShorterRuns, figures: list[dict[_Key, float]]) -> dict[_Key, float]:
    """Extrapolate figures of the shorter runs to the whole batch.

    Arguments:
        figures: for each run, the figures by device or by pair of devices.
    """
    first, last = figures[0], figures[-1]
    keys = dict.fromkeys([*first, *last])
    return {key: _at(found, first.get(key, 0.0), last.get(key, 0.0)) for key in keys}


def _at(found: ShorterRuns, first: float, last: float) -> float:
    return first + found.rounds * (last - first)


def _busy_s(run: SimulationResult) -> dict[int, float]:
    """Compute seconds of each device in one iteration."""
    steady = steady_state(run)
    return {device: seconds / steady.batches for device, seconds in steady.busy_s.items()}


def _between(found: ShorterRuns, plan: Plan) -> dict[Pair, float]:
    """Bytes sent in an iteration, by pair of devices of the whole plan."""
    sent = [traffic_of(run, plan.tensor, plan.slices) for run in found.runs]
    messages = _further(found, [one.messages for one in sent])
    if found.column is not None:
        messages = found.column.pairs_everywhere(messages)
    collectives = _further(found, [one.collectives for one in sent])
    return Traffic(messages, collectives, 0.0).between()


def _overlap(found: ShorterRuns, plan: Plan, excerpt: Summary, shown: Plan, now: Predicted) -> Overlap | None:
    """Gain of overlap over a whole iteration.

    The drawn timeline of the last backwards stays the excerpt's.
    """
    if excerpt.overlap is None:
        return None
    gains = [_gained_s(run) for run in found.runs]
    batch = tuple(count * plan.microbatches // shown.microbatches for count in excerpt.overlap.batch)
    apart_s = now.iteration_s + _at(found, gains[0], gains[-1])
    return replace(excerpt.overlap, iteration_s=now.iteration_s, apart_iteration_s=apart_s, batch=batch)


def _gained_s(run: SimulationResult) -> float:
    """Seconds of an iteration that overlap saves."""
    apart = sums_apart(run.layout)
    if apart is None:
        return 0.0
    return steady_state(play(apart, run.costs, record=False)).iteration_s - steady_state(run).iteration_s
