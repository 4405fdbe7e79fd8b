"""Amplification: device-seconds of an iteration relative to one device alone.

The single device processes the same batch.

Rules of this file: planned and measured amplification are counted alike. A strategy that keeps its devices uses
each of them all the time. A strategy that yields idle devices (burst_parallel) uses only active devices
(program/trace/busy_time.py): devices that a stage does not use are free for other jobs meanwhile.
Source: DeepPool section 4, "GPU-sec amplification". There it is defined for each layer, here for the iteration.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.planning.burst.amplification_limit import held_s
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import played, predict_iteration
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind
from hocket.program.program import replica
from hocket.program.trace.busy_time import active_s
from hocket.program.trace.trace import KINDS, Trace
from hocket.program.trace.update_time import update_s
from hocket.strategies.base.strategy import merged, several_waves, yields_idle
from hocket.strategies.burst.costs import BurstCosts
from hocket.util.units import show_count, show_seconds

Work = Counter[tuple[str, int, str]]
"""Number of computed samples, by kind ("forward" or "backward"), device and layer name."""


def alone_s(profiles: Iterable[ModelProfile], cluster: Cluster, batch_size: int) -> float:
    """Seconds of an iteration on one device.

    Forward and backward of the whole batch at once, and the step of every layer, on the cluster's first device,
    ignoring its memory. Beyond the largest profiled size, seconds are proportional to samples.

    Arguments:
        profiles: profiles of the same job at several tensor-parallel sizes. The smallest size is used. If it is above
            1, the computation of all ranks is summed, so that undivided layers count once for each rank.

    Raises:
        InputError: the layers take no time at all, or the profile's device type cannot be compared.
    """
    profile = min(profiles, key=lambda one: one.tensor)
    costs = BurstCosts(profile, cluster, batch_size, (1,), (range(len(profile.layers)),))
    found = profile.tensor * float(costs.alone_s.sum())
    if not found > 0:
        raise InputError("layers", f"{found:g} s for all layers", "seconds above 0 on one device")
    return found


@dataclass(frozen=True)
class Amplification:
    """Amplification of a plan: device-seconds relative to one device alone.

    Attributes:
        alone_s: seconds of an iteration on one device.
        planned_s, measured_s: device-seconds of an iteration; `measured_s` is None without a measured run.
        iterations: number of measured iterations that were compared.
        other: first difference between measured and planned computation, in words; empty if there is none.
    """

    alone_s: float
    planned_s: float
    measured_s: float | None = None
    iterations: int = 0
    other: str = ""

    @property
    def planned(self) -> float:
        """Predicted amplification: device-seconds of an iteration, relative to one device alone."""
        return self.planned_s / self.alone_s

    @property
    def text(self) -> str:
        """Sentence about the planned amplification, and the measured one if there is one."""
        spent = f"device-seconds of an iteration {show_seconds(self.planned_s)}"
        alone = f"one device alone {show_seconds(self.alone_s)}"
        if self.measured_s is None:
            return f"{self.planned:.2f} ({spent}, {alone})"
        found = f"{self.planned:.2f} planned, {self.measured_s / self.alone_s:.2f} measured"
        both = f"{spent} planned, {show_seconds(self.measured_s)} measured, {alone} by the profile"
        if self.other:
            return f"{found} ({both}); not as planned: {self.other}"
        same = f"in {show_count(self.iterations, 'iteration')} each layer ran on the plan's devices, with the plan's samples"
        return f"{found} ({both}); {same}"


def amplification_of(plan: Plan, profile: ModelProfile, measured: Trace | None = None) -> Amplification:
    """Amplification of a plan, simulated and measured.

    Arguments:
        profile: profile that the plan names.
        measured: trace of a run of the plan, if there is one.

    Raises:
        InputError: as `alone_s`; plan and profile do not belong together; the trace has no whole iteration.
    """
    alone = alone_s((profile,), plan.cluster, plan.batch_size)
    planned_s = device_s(plan, profile)
    if measured is None:
        return Amplification(alone, planned_s)
    measured = measured.by_group()
    done, wanted = work_done(plan, measured), work_of(plan)
    if not done:
        raise InputError("trace", "no whole iteration", "a trace of a run of this plan")
    other = next((text for update, work in sorted(done.items()) for text in _unlike(update, work, wanted)), "")
    return Amplification(alone, planned_s, _device_s(plan, measured), len(done), other)


def device_s(plan: Plan, profile: ModelProfile) -> float:
    """Device-seconds of a simulated iteration.

    A plan that keeps its devices keeps them for the seconds of an iteration, as searches count them. The mean over the
    updates of a trace may be less: stages without gradients to sum may be ahead of the others, more with each update.

    Raises:
        InputError: plan and profile do not belong together.
    """
    if yields_idle(plan.strategy):
        return _device_s(plan, played(plan, profile).trace)
    return held_s(plan.stages, predict_iteration(plan, profile).iteration_s, plan.tensor)


def _device_s(plan: Plan, trace: Trace) -> float:
    if yields_idle(plan.strategy):
        return plan.tensor * sum(active_s(trace).values())
    return held_s(plan.stages, update_s(trace), plan.tensor)


def work_of(plan: Plan) -> Work:
    """Samples that each device computes in one iteration of the plan."""
    found: Work = Counter()
    for stage in plan.stages:
        many = merged(plan.strategy, len(stage.devices), plan.microbatches)
        count = plan.microbatches // 2 if several_waves(plan.strategy) else plan.microbatches
        for m in range(stage.wave * count, (stage.wave + 1) * count, many):
            _count(found, plan, stage.layers, replica(stage.devices, m, many), plan.samples(m, many))
    return found


def _count(work: Work, plan: Plan, layers: Iterable[str], device: int, samples: int, *kinds: str) -> None:
    for kind in kinds or (Kind.FORWARD, Kind.BACKWARD):
        for layer in layers:
            work[str(kind), device, layer] += samples


def work_done(plan: Plan, trace: Trace) -> dict[int, Work]:
    """Samples that each device computed, in the iterations that ended with a step.

    Recomputation is left out.

    Returns:
        The samples by number of the update.
    """
    updates = {int(u) for u in trace.index[trace.kind == KINDS.index(Kind.STEP)].tolist()}
    found: dict[int, Work] = {}
    for event in trace.events:
        if event.kind not in (Kind.FORWARD, Kind.BACKWARD) or event.name.startswith(f"{Kind.FORWARD} again"):
            continue
        update, stage = event.index // plan.microbatches, plan.stages[event.stage]
        many = merged(plan.strategy, len(stage.devices), plan.microbatches)
        if update in updates:
            own = found.setdefault(update, Counter())
            _count(own, plan, stage.layers, event.device, plan.samples(event.index, many), str(event.kind))
    return found


def _unlike(update: int, work: Work, wanted: Work) -> Iterator[str]:
    for kind, device, layer in sorted(work.keys() | wanted.keys()):
        ran, should = work[kind, device, layer], wanted[kind, device, layer]
        if ran != should:
            what = f"in iteration {update} device {device} ran the {kind} of {layer} on {show_count(ran, 'sample')}"
            yield f"{what} instead of {should}"
