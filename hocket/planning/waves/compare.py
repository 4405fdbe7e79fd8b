"""Compare a plan with and without waves: memory and computation over time.

Without waves, all devices train on one batch together (gang scheduling). With waves, several batches (waves) are on
the devices at shifted times.

Rules of this file: everything is simulated. `reporting/plan_report/usage_panel.py` draws the result.
Source: Wavelet (Wang et al. 2021), figures 1, 2, 5, 6 and 8.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hocket.errors import HocketError
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict
from hocket.planning.waves.room import WaveTrial, decrease, in_waves, insides_of, room, simulated, wave_of
from hocket.profiling.profile import ModelProfile
from hocket.program.trace.trace import Trace
from hocket.program.trace.usage import Usage, usage
from hocket.strategies.base.strategy import ring_of
from hocket.util.units import show_count

_MOST_DEVICES = 64  # a picture of more devices is not readable


@dataclass(frozen=True)
class PlanTimeline:
    """One iteration of a plan.

    Attributes:
        title: name of the plan.
        usage: memory and computation of each device over time.
        samples: samples that the iteration trains on.
        note: a further remark; may be empty.
        most_bytes: by device, peak memory that is proved for any timing; {} if only the predicted peak is known.
    """

    title: str
    usage: Usage
    samples: int
    note: str = ""
    most_bytes: Mapping[int, float] = field(default_factory=dict)


def courses(plan: Plan, profile: ModelProfile, trace: Trace) -> tuple[PlanTimeline, ...]:
    """Timelines of one wave and of several waves of a plan.

    - For a plan with several waves: one wave of the plan, then the plan.
    - For a plan that could run in waves: one wave with a single microbatch on each device or chain, then as many waves
      as there is room for, if more than one.
    - For other plans: the plan alone.

    There are none, (), for large clusters and tensor-parallel plans.

    Arguments:
        profile: profile of one device, as the plan names it.
        trace: the plan's predicted trace, with memory.
    """
    if plan.group.cluster.devices > _MOST_DEVICES or plan.tensor > 1:
        return ()
    own = _course(plan, profile, trace)
    gang = launched_at_once(plan)
    if gang is None or (gang.strategy == plan.strategy and len(trace.devices) == 1):
        return (own,)
    try:
        wave = wave_of(gang, profile)
    except HocketError:  # a plan with waves may have no version without: stages share weights, or memory is too small
        return (own,)
    first = room(wave)
    alone = PlanTimeline(f"gang-scheduled: {_title(gang)}", wave.usage, gang.batch_size)
    if gang.strategy != plan.strategy:
        return (alone, own)
    alone = replace(alone, note=f"room for {show_count(first.waves, 'wave')}: {first.why}")
    count = first.waves
    if wave.ring and count > 1:  # Wavelet, appendix B.2: the limit on lengthening is for waves on other devices
        count, tried = decrease(count, simulated(gang, profile))
        if count < first.waves:
            told = ", ".join(f"{one.waves} {_outcome(one)}" for one in tried[1:])
            alone = replace(alone, note=f"{alone.note}; simulated one fewer each time: {told}")
    if count == 1:
        return (alone,)
    waves = in_waves(gang, count)
    found, _ = predict(waves, profile)
    return (alone, _course(waves, profile, found))


def _outcome(one: WaveTrial) -> str:
    return "do not fit" if one.iteration_s is None else f"take {one.stretch:.0%} longer than one"


def _course(plan: Plan, profile: ModelProfile, trace: Trace) -> PlanTimeline:
    """Predicted timeline of a plan.

    For two waves on the same devices, it has the proved peak memory as well.
    """
    course = PlanTimeline(_title(plan), usage(trace, insides_of(plan, profile)), plan.batch_size)
    if not any(stage.wave for stage in plan.stages):
        return course
    why = (
        "memory is drawn for the predicted timing; peak memory is the proven maximum for any timing, which limits the plan: "
        "nothing orders one wave's forward and the other's backward, and a wave with a stalled thread keeps its stash"
    )
    return replace(course, note=why, most_bytes=trace.peak_memory_bytes())


def launched_at_once(plan: Plan) -> Plan | None:
    """Plan of one wave alone: one microbatch on each device or chain of devices.

    None if the plan's strategy cannot run in waves.
    """
    devices = [stage.devices for stage in plan.stages]
    if plan.strategy == "waves":
        ring = ring_of(devices) or ()
        if len(ring) != len(devices) or len(ring) < 2:
            return None
        stages = tuple(
            replace(stage, devices=(ring[s],), buckets=(), threads=()) for s, stage in enumerate(plan.stages)
        )
        return replace(
            plan,
            strategy="model_parallel",
            stages=stages,
            batch_size=plan.microbatch_size,
            shard="none",
            predicted=None,
        )
    if plan.strategy == "tick_tock":
        return replace(
            plan,
            strategy="data_parallel",
            options={},  # options of tick_tock, such as align, do not apply
            stages=plan.stages[:1],
            batch_size=plan.microbatch_size * len(devices[0]),
            predicted=None,
        )
    if plan.strategy == "model_parallel" and len(devices) > 1 and all(len(own) == 1 for own in devices):
        return replace(plan, batch_size=plan.microbatch_size, predicted=None)
    if plan.strategy == "data_parallel" and plan.shard == "none":
        return replace(plan, batch_size=plan.microbatch_size * len(devices[0]), predicted=None)
    return None


def _title(plan: Plan) -> str:
    own = plan.microbatches
    return f"{plan.strategy}, {show_count(own, 'microbatch')} of {plan.microbatch_size}"
