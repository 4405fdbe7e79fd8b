"""Wave measurement: find the best number of waves of a job by training.

Waves are batches that train on the same devices at shifted times (hocket/planning/waves/room.py).

This is the second round of profiling: it runs iterations. Local workers are started for each number of waves. If memory
allows, each number is trained in turns with one wave (train_in_turns.py), because on a shared machine runs that are
minutes apart cannot be compared. Trained weights are discarded. This file does not import torch.

Source: Wavelet (Wang et al. 2021), appendix B.2.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.waves.compare import launched_at_once
from hocket.planning.waves.room import WaveRoom, WaveTrial, decrease, in_waves, room, wave_of
from hocket.profiling.job.job import Job
from hocket.profiling.profile import ModelProfile
from hocket.training.calibrate.train_in_turns import Turns, train_in_turns
from hocket.training.launch.torchrun_environment import under_torchrun
from hocket.training.worker.monitor.listener import Listener, Noting
from hocket.util.units import show_count, show_shortage

LEAST_STEPS = 4  # the first two periods are a warm-up


@dataclass(frozen=True)
class Waved:
    """Result of the search for the number of waves.

    Attributes:
        room: estimate from the profile of the number of waves that fit, and what limits it.
        tried: measured numbers of waves, beginning with one wave.
        waves: the best number of waves.
        plan: plan with that number of waves, and its prediction.
    """

    room: WaveRoom
    tried: tuple[WaveTrial, ...]
    waves: int
    plan: Plan

    def save(self, path: Path, beside: Path) -> None:
        """Write the plan, with the path of its profile relative to the plan's file.

        Arguments:
            beside: file of the plan to which waves were added.
        """
        profile = beside.resolve().parent / self.plan.profile
        replace(self.plan, profile=os.path.relpath(profile, path.resolve().parent)).save(path)


def measure_waves(
    job: Job | str | Path,
    plan: Plan,
    profile: ModelProfile,
    steps: int,
    listener: Listener,
    first: int | None = None,
    **options: Any,
) -> Waved:
    """Measure one wave, then the most waves that fit, then fewer, until fast enough.

    Arguments:
        plan: a plan of model_parallel, waves, data_parallel or tick_tock. Each wave is one of its microbatches, on
            every device or on every chain of devices.
        profile: profile of the job, to estimate how many waves fit.
        listener: receives notes.
        steps: training steps for each number of waves.
        first: first number of waves to try; by default estimated from the profile.
        options: options of workers, see `train`.

    Raises:
        InputError: another kind of plan, too few steps, an impossible `first`, or a call under torchrun.
        WorkerLost: a worker was lost.
    """
    if steps < LEAST_STEPS:
        raise InputError("steps", str(steps), f"at least {LEAST_STEPS}: the first two steps warm up")
    if under_torchrun():
        raise InputError("waves", "torchrun", "a command that starts its own workers", "Use a plan for one machine.")
    one = _one_wave(plan)
    wave = wave_of(one, profile)
    found = room(wave)
    begin = found.waves if first is None else first
    if not 1 <= begin <= wave.most:
        raise InputError("waves", str(begin), f"1 to {wave.most}, the waves of the schedule")

    plans = dict[int, Plan]()  # plans with their predictions, by number of waves
    seconds = dict[int, float | None]()

    def fitting(waves: int) -> Plan | None:
        many = in_waves(one, waves)
        foreseen, cluster = predict_iteration(many, profile), many.group.cluster
        plans[waves] = replace(many, predicted=foreseen)
        for device, size in foreseen.peak_memory_bytes.items():
            if size > cluster.capacity_bytes(device):
                needed, available = show_shortage(size, cluster.capacity_bytes(device))
                told = f"would need {needed} on device {device}, which has {available}"
                listener.note(f"{show_count(waves, 'wave')}: {told}")
                return None
        return many

    def trained(*numbers: int) -> list[float | None]:
        """Train with each number of waves, in turns; return seconds of an iteration."""
        for waves in numbers:
            size = plans[waves].batch_size
            listener.note(f"{show_count(waves, 'wave')}: {show_count(steps, 'step')} of {size} samples")
        found = train_in_turns(
            job,
            [in_waves(one, waves) for waves in numbers],
            steps=steps,
            turns=Turns(max(LEAST_STEPS, steps // 2), own_batch=True),
            listener=Noting(listener),
            **options,
        )
        for waves, turned in zip(numbers, found, strict=True):
            if turned.summary.queued and (
                wave.ring or waves == 1
            ):  # otherwise the other wave on the device used the core
                listener.note(f"{turned.summary.queued}: measure again when the machine is idle")
        return [turned.summary.iteration_s for turned in found]

    def measured(waves: int) -> float | None:
        """Measure an iteration with `waves` waves, in seconds; None if they do not fit.

        The time is scaled to the machine's pace at the first measurement of one wave.
        """
        if waves in seconds or fitting(waves) is None:
            return seconds.get(waves)
        if waves == 1:
            many = begin > 1 and fitting(begin) is not None
            if not many or not _together(plans[1], plans[begin]):
                return _kept(seconds, {1: trained(1)[0]})
            first_s, many_s = trained(1, begin)
            return _kept(seconds, {1: first_s, begin: many_s})
        alone_s = seconds[1]
        if alone_s is None or not _together(plans[1], plans[waves]):
            return trained(waves)[0]
        again_s, many_s = trained(1, waves)
        return many_s * alone_s / again_s if many_s and again_s else many_s

    waves, tried = decrease(begin, measured, wave.stretch)
    return Waved(found, tried, waves, plans[waves])


def _kept(seconds: dict[int, float | None], found: dict[int, float | None]) -> float | None:
    """Store seconds by number of waves; return the seconds of one wave."""
    seconds.update(found)
    return found[1]


def _together(first: Plan, second: Plan) -> bool:
    """True if both plans fit into memory at once, as training in turns requires."""
    cluster, peaks = (
        first.group.cluster,
        [plan.predicted.peak_memory_bytes for plan in (first, second) if plan.predicted],
    )
    return all(sum(own.get(d, 0.0) for own in peaks) <= cluster.capacity_bytes(d) for d in range(cluster.devices))


def _one_wave(plan: Plan) -> Plan:
    one = None if plan.tensor > 1 or plan.swap is not None else launched_at_once(plan)
    if one is None:
        hint = "Make one with `hocket plan --strategy model_parallel`, or data_parallel with `--shard none`."
        expected = "model_parallel, a stage a device, or data_parallel with all of its state"
        raise InputError("plan", f"{plan.strategy} of {show_count(len(plan.stages), 'stage')}", expected, hint)
    return one
