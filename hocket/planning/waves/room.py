"""Determine how many waves of a job may run on its devices at once.

Waves are batches that train at the same time on the same set of devices. Waves of data parallelism (strategy
`tick_tock`) use each device at other moments, each with its own copy of the model. Waves of model parallelism (strategy
`waves`) are microbatches that pass through the model's partitions, at any moment on different devices.

Rules of this file: a first number follows from memory, compute and network that one wave leaves free, simulated or
measured. Then the slowdown of this many waves is found by running or simulating them; if it is too large, one wave
fewer is tried, and so on.
Source: Wavelet (Wang et al. 2021), section 3.1 and appendix B.2. The paper gives no formulas and no limits; those
here are ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hocket.cost.memory.instruction_profile import Insides, insides
from hocket.cost.transfer import collective
from hocket.errors import InputError
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import played, predict, predict_iteration
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind
from hocket.program.trace.usage import Usage, usage
from hocket.util.units import show_seconds, show_shortage

FULL = 1.01
"""Share of a device, or of the links' time, that waves may use; columns of time have a resolution of a hundredth."""
STRETCH = 0.1
"""Share by which waves on other devices may make an iteration longer.

The paper asks for waves "without significantly introducing latency on the original", without a number.
"""

GAIN = 0.05
"""Least gain of a second wave on the same devices, where it makes an iteration longer."""

TICK_TOCK = 2
"""Most waves of data parallelism: one computes forwards while the other computes backwards (Wavelet, section 3.2)."""


@dataclass(frozen=True)
class Wave:
    """Use of the devices by one wave, from which the cost of further waves follows.

    Attributes:
        usage: memory and computation of every device over one iteration of one wave.
        capacity_bytes: memory of each device, by device.
        ring: devices in the order in which a batch passes through them, if further waves run on other devices at
            the same moments (model parallelism): wave k uses each device as the first wave uses the device k places
            before. () if further waves run on the same devices, evenly spread over the iteration (data parallelism).
        again_bytes: by device, bytes that each further wave needs all the time: in data parallelism, another copy of
            the weights.
        sums_s: entry k is for k + 1 waves: seconds of an iteration for which gradient sums keep the busiest links
            busy.
    """

    usage: Usage
    capacity_bytes: Mapping[int, float]
    ring: tuple[int, ...]
    again_bytes: Mapping[int, float]
    sums_s: tuple[float, ...]

    @property
    def most(self) -> int:
        """Maximum number of waves: as many as devices in the ring, or two.

        Source: Wavelet, section 3.3.1.
        """
        return len(self.ring) if self.ring else TICK_TOCK

    @property
    def stretch(self) -> float:
        """Share by which an iteration may be longer than with one wave.

        On the same devices, it is so large that two waves have at least the share GAIN more throughput than one.
        """
        return STRETCH if self.ring else TICK_TOCK / (1 + GAIN) - 1

    def held_bytes(self, device: int, waves: int) -> float:
        """Peak memory of a device in bytes with this many waves, if none delays another."""
        one = self.usage
        if self.ring:
            at = self.ring.index(device)
            return float(sum(one.held_bytes[self.ring[at - r]] for r in range(waves)).max())  # type: ignore[union-attr]
        above = one.above_bytes(device)
        shifted = sum(np.roll(above, r * len(above) // waves) for r in range(waves))
        return float(one.kept_bytes(device) + (waves - 1) * self.again_bytes.get(device, 0.0) + np.max(shifted))

    def compute_share(self, device: int, waves: int) -> float:
        """Computation of a device with this many waves, per iteration time of one wave.

        Above 1, the waves need more than the device has.
        """
        if self.ring:
            at = self.ring.index(device)
            return sum(self.usage.compute_share(self.ring[at - r]) for r in range(waves))
        return waves * self.usage.compute_share(device)


@dataclass(frozen=True)
class WaveRoom:
    """First estimate of the number of waves.

    Attributes:
        waves: number of waves, including the first.
        limit: resource that a further wave would exceed: memory, compute, network or devices.
        why: the reason in a sentence.
    """

    waves: int
    limit: str
    why: str


@dataclass(frozen=True)
class WaveTrial:
    """A number of waves that was tried.

    Attributes:
        waves: number of waves.
        iteration_s: seconds of an iteration; None if this number of waves cannot run.
        stretch: increase of an iteration's time relative to one wave (0.1: 10 % longer); infinite if this number of
            waves cannot run.
    """

    waves: int
    iteration_s: float | None
    stretch: float


def room(wave: Wave) -> WaveRoom:
    """Largest number of waves for which memory, compute and network suffice."""
    for waves in range(2, wave.most + 1):
        limit, why = _short_of(wave, waves)
        if limit:
            return WaveRoom(waves - 1, limit, why)
    return WaveRoom(wave.most, "devices", f"the schedule allows at most {wave.most} waves")


def _short_of(wave: Wave, waves: int) -> tuple[str, str]:
    """Resource that is missing for this many waves, and a sentence about it.

    Two empty texts if nothing is missing.
    """
    held = {device: wave.held_bytes(device, waves) for device in wave.usage.held_bytes}
    device = max(held, key=lambda d: held[d] - wave.capacity_bytes[d], default=None)
    if device is not None and held[device] > wave.capacity_bytes[device]:
        needed, available = show_shortage(held[device], wave.capacity_bytes[device])
        return "memory", f"{waves} waves would need {needed} on device {device}, which has {available}"
    shares = {device: wave.compute_share(device, waves) for device in wave.ring or wave.usage.computes}
    device = max(shares, key=lambda d: (shares[d], -d))
    if shares[device] > FULL:
        one = wave.usage.compute_share(device)
        return (
            "compute",
            f"compute is full: {waves} waves would need {shares[device]:.2f} of device {device}, one has {one:.2f}",
        )
    if wave.sums_s[waves - 1] > FULL * wave.usage.period_s:
        told = f"{show_seconds(wave.sums_s[waves - 1])} of an iteration of {show_seconds(wave.usage.period_s)}"
        return "network", f"sums of gradients of {waves} waves would keep links busy for {told}"
    return "", ""


def decrease(
    first: int, measure: Callable[[int], float | None], stretch: float = STRETCH
) -> tuple[int, tuple[WaveTrial, ...]]:
    """Reduce the number of waves until an iteration is short enough.

    Arguments:
        first: number of waves to begin with (`room`).
        measure: function from a number of waves to the seconds of an iteration; it returns None if so many do not run.
        stretch: share by which an iteration may be longer than with one wave.

    Returns:
        The number of waves, 1 if no further wave is worth it; and all trials, one wave first.

    Raises:
        InputError: `first` is below 1, or a single wave does not run.
    """
    if first < 1:
        raise InputError("waves", str(first), "the number of waves to begin with, >= 1")
    alone_s = measure(1)
    if alone_s is None or not alone_s > 0:
        raise InputError("waves", "a single wave does not run", "a plan that runs with one wave")
    tried = [WaveTrial(1, alone_s, 0.0)]
    for waves in range(first, 1, -1):
        iteration_s = measure(waves)
        longer = float("inf") if iteration_s is None else iteration_s / alone_s - 1
        tried.append(WaveTrial(waves, iteration_s, longer))
        # An iteration that is longer in proportion to the number of waves is no gain, whatever the limit.
        if longer <= stretch and longer < waves - 1:
            return waves, tuple(tried)
    return 1, tuple(tried)


def wave_of(plan: Plan, profile: ModelProfile) -> Wave:
    """Simulate one wave of a `model_parallel` or `data_parallel` plan.

    Arguments:
        plan: plan of the wave, as `launched_at_once` returns it.

    Raises:
        InputError: the plan has another strategy, or it is a `model_parallel` plan with several microbatches.
    """
    trace, _ = predict(plan, profile)
    cluster = plan.group.cluster
    capacity = {device: cluster.capacity_bytes(device) for device in trace.devices}
    found = Wave(usage(trace, insides_of(plan, profile)), capacity, (), {}, ())
    gradients = [sum(profile.layers[i].gradients_bytes for i in cut.layers) for cut in plan.cuts(profile)]

    def sum_s(devices: tuple[int, ...], size_bytes: float) -> float:
        return sum(collective(cluster, Kind.ALL_REDUCE, devices, size_bytes))

    if plan.strategy == "data_parallel":
        weights = sum(layer.weights_bytes for layer in profile.layers)
        one_s = sum_s(plan.stages[0].devices, gradients[0])
        again = dict.fromkeys(trace.devices, weights)
        return replace(found, again_bytes=again, sums_s=tuple((k + 1) * one_s for k in range(TICK_TOCK)))
    if plan.strategy != "model_parallel":
        expected = "data_parallel or model_parallel: only plans of these strategies can run in several waves at once"
        raise InputError("strategy", plan.strategy, expected)
    if plan.microbatches != 1:
        raise InputError(
            "microbatch_size",
            f"{plan.microbatch_size}, with batch_size {plan.batch_size}",
            f"{plan.batch_size}, the batch size: each wave runs one microbatch",
        )
    sums = []
    for waves in range(1, len(plan.stages) + 1):
        stages = in_waves(plan, waves).stages
        each = [sum_s(stage.devices, size) for stage, size in zip(stages, gradients, strict=True)]
        sums.append(
            max(sum(s for s, stage in zip(each, stages, strict=True) if d in stage.devices) for d in trace.devices)
        )
    return replace(found, ring=tuple(stage.devices[0] for stage in plan.stages), sums_s=tuple(sums))


def in_waves(plan: Plan, waves: int) -> Plan:
    """A `model_parallel` or `data_parallel` plan in waves, each with the plan's batch.

    The strategy becomes `waves` or `tick_tock`.
    """
    if waves == 1:
        return plan
    many = replace(plan, batch_size=waves * plan.batch_size, predicted=None)
    if plan.strategy == "data_parallel":
        stages = tuple(replace(plan.stages[0], wave=wave) for wave in range(waves))
        return replace(many, strategy="tick_tock", stages=stages)
    ring = [stage.devices[0] for stage in plan.stages]

    def moved(s: int, stage: PlanStage) -> PlanStage:
        return replace(stage, devices=tuple(ring[(r + s) % len(ring)] for r in range(waves)))

    return replace(many, strategy="waves", stages=tuple(moved(s, stage) for s, stage in enumerate(plan.stages)))


def simulated(plan: Plan, profile: ModelProfile) -> Callable[[int], float | None]:
    """Function for `decrease` that simulates an iteration with a number of waves.

    The paper measures this in a second profiling run. The function returns None if the waves do not fit into memory.
    """

    def measure(waves: int) -> float | None:
        many = in_waves(plan, waves)
        found = predict_iteration(many, profile)
        cluster = many.group.cluster
        fits = all(size <= cluster.capacity_bytes(d) for d, size in found.peak_memory_bytes.items())
        return found.iteration_s if fits else None

    return measure


def insides_of(plan: Plan, profile: ModelProfile) -> Insides:
    """Memory over time inside each stage's forward and backward."""
    outcome = played(plan, profile, repeats=1)
    return insides(outcome.costs, outcome.program)
