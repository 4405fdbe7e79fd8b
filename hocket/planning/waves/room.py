"""Waves: how many batches of a job may go through its devices at once, from what one of them leaves, and then by trying.

Rules of this file: a first number from memory, compute and network of one wave alone, as simulated or measured; what several take from
each other is found out by running them, one fewer each time. Both kinds of Wavelet's waves are asked alike: those of data parallelism
run on the same devices at other moments, those of model parallelism at the same moments on other devices.
Source: Wavelet (Wang et al. 2021), section 3.1 and appendix B.2. The paper gives no formula and no limits: they are ours.
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
from hocket.util.units import show_bytes, show_seconds

FULL = 1.01
"""Of a device, or of the links' time, that waves may take together: a hundredth is what columns of time cannot tell."""
STRETCH = 0.1
"""By what share an iteration may be longer than that of one wave: "without significantly introducing latency on the original"."""

GAIN = 0.05
"""What a second wave on the same devices is to gain: it is made to take longer there, and is worth it as long as more is trained."""

TICK_TOCK = 2
"""Waves of data parallelism at most: one computes forwards while the other computes backwards (section 3.2)."""


@dataclass(frozen=True)
class Wave:
    """One wave, and the cost of further waves.

    Attributes:
        usage: of every device, over one iteration of one wave.
        capacity_bytes: by device.
        ring: devices in the order in which a batch goes through them, where further waves run on other devices at the same moments:
            the k-th is on each device what the first is on the device k places before; () where further waves run on the same devices,
            spread evenly over the iteration.
        again_bytes: by device, what each further wave keeps there by itself: of the second kind its copy of the weights.
        sums_s: by number of waves, from one on: seconds of an iteration for which sums of gradients keep the busiest links.
    """

    usage: Usage
    capacity_bytes: Mapping[int, float]
    ring: tuple[int, ...]
    again_bytes: Mapping[int, float]
    sums_s: tuple[float, ...]

    @property
    def most(self) -> int:
        """Waves that the schedule allows: as many as devices in the ring (section 3.3.1), or two."""
        return len(self.ring) if self.ring else TICK_TOCK

    @property
    def stretch(self) -> float:
        """Allowed lengthening of an iteration: STRETCH on other devices; on the same ones, less than would undo GAIN."""
        return STRETCH if self.ring else TICK_TOCK / (1 + GAIN) - 1

    def held_bytes(self, device: int, waves: int) -> float:
        """The most that so many waves hold on a device, if none of them disturbs another."""
        one = self.usage
        if self.ring:
            at = self.ring.index(device)
            return float(sum(one.held_bytes[self.ring[at - r]] for r in range(waves)).max())  # type: ignore[union-attr]
        above = one.above_bytes(device)
        shifted = sum(np.roll(above, r * len(above) // waves) for r in range(waves))
        return float(one.kept_bytes(device) + (waves - 1) * self.again_bytes.get(device, 0.0) + np.max(shifted))

    def compute_share(self, device: int, waves: int) -> float:
        """Computing share of a device with this many waves at the iteration time of one wave."""
        if self.ring:
            at = self.ring.index(device)
            return sum(self.usage.compute_share(self.ring[at - r]) for r in range(waves))
        return waves * self.usage.compute_share(device)


@dataclass(frozen=True)
class WaveRoom:
    """The first number of waves.

    Attributes:
        waves: with the first one. limit: what a further one would find full: memory, compute, network or devices.
        why: the same in a sentence.
    """

    waves: int
    limit: str
    why: str


@dataclass(frozen=True)
class WaveTrial:
    """A tried number of waves: seconds of its iteration (None: it does not run), and its lengthening."""

    waves: int
    iteration_s: float | None
    stretch: float


def room(wave: Wave) -> WaveRoom:
    """The most waves that memory, compute and network have room for."""
    for waves in range(2, wave.most + 1):
        limit, why = _short_of(wave, waves)
        if limit:
            return WaveRoom(waves - 1, limit, why)
    return WaveRoom(wave.most, "devices", f"{wave.most} waves are as many as the schedule has")


def _short_of(wave: Wave, waves: int) -> tuple[str, str]:
    """Missing resource for this many waves, and a sentence about it; ("", "") if there is room."""
    held = {device: wave.held_bytes(device, waves) for device in wave.usage.held_bytes}
    device = max(held, key=lambda d: held[d] - wave.capacity_bytes[d], default=None)
    if device is not None and held[device] > wave.capacity_bytes[device]:
        told = f"{show_bytes(held[device])} of {show_bytes(wave.capacity_bytes[device])}"
        return "memory", f"{waves} waves would hold {told} on device {device}"
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
    """Reduce the number of waves until an iteration is as long as one wave's; measured.

    Arguments:
        first: where to begin (`room`). measure: seconds of an iteration with so many waves; None where that does not run.
        stretch: by what share an iteration may be longer.

    Returns:
        The number, 1 if no further wave is worth it, and what was tried, one wave first.
    """
    if first < 1:
        raise InputError("waves", str(first), ">= 1")
    alone_s = measure(1)
    if alone_s is None or not alone_s > 0:
        raise InputError("waves", "a single wave does not run", "a plan that runs with one wave")
    tried = [WaveTrial(1, alone_s, 0.0)]
    for waves in range(first, 1, -1):
        iteration_s = measure(waves)
        longer = float("inf") if iteration_s is None else iteration_s / alone_s - 1
        tried.append(WaveTrial(waves, iteration_s, longer))
        # Longer by as much as there are more batches is no gain whatever the limit.
        if longer <= stretch and longer < waves - 1:
            return waves, tuple(tried)
    return 1, tuple(tried)


def wave_of(plan: Plan, profile: ModelProfile) -> Wave:
    """One simulated wave of a `model_parallel` or `data_parallel` plan.

    Raises:
        InputError: a plan of another strategy, or with several microbatches where one wave has one.
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
        raise InputError("strategy", plan.strategy, "data_parallel or model_parallel, the strategies that waves extend")
    if plan.microbatches != 1:
        raise InputError(
            "microbatch_size",
            f"{plan.microbatch_size} of {plan.batch_size}",
            "the batch size: each wave runs one microbatch",
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
    """A `model_parallel` or `data_parallel` plan in `waves` waves, each with the plan's batch size."""
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
    """The second round of profiling by simulation, for `decrease`: iterations of so many waves of a plan."""

    def measure(waves: int) -> float | None:
        many = in_waves(plan, waves)
        found = predict_iteration(many, profile)
        cluster = many.group.cluster
        fits = all(size <= cluster.capacity_bytes(d) for d, size in found.peak_memory_bytes.items())
        return found.iteration_s if fits else None

    return measure


def insides_of(plan: Plan, profile: ModelProfile) -> Insides:
    """Memory inside a plan's forwards and backwards."""
    outcome = played(plan, profile, repeats=1)
    return insides(outcome.costs, outcome.program)
