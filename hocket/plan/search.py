"""The search: every strategy's choices, pruned by a bound, decided by simulation, under every device's memory limit.

Rules of this file: deterministic to the byte; a choice is refused with its reason, never silently dropped; what looks
equal within the tolerance goes to fewer stages, then fewer devices, then plain data parallelism.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from hocket.errors import InputError, RefusedError, nearest
from hocket.hardware.cluster import Cluster
from hocket.passes.borders import stage_shapes
from hocket.plan.plan import Plan, PlanStage
from hocket.plan.predict import predict_choice
from hocket.profile.model import BATCH_STATISTICS, ModelProfile
from hocket.strategies._choices import Choice, Situation
from hocket.strategies._common import complete, config, members, strategy
from hocket.units import show_bytes

SIMULATED_PER_STRATEGY = 8
TIE = 0.01  # plans within this share of the best count as equal (section 2.5.2: plain data parallelism when it is as good)


@dataclass(frozen=True)
class Candidate:
    """One simulated choice that fits."""

    strategy: str
    config: str
    plan: Plan
    iteration_s: float
    samples_per_s: float
    peak_memory_bytes: dict[int, float]
    bubble_fraction: float = 0.0


@dataclass(frozen=True)
class Refused:
    """A strategy, or one of its choices, that was not simulated to the end, and why."""

    strategy: str
    config: str
    reason: str


@dataclass(frozen=True)
class Search:
    """What a search found: candidates best first, refusals, how long it took, and what no plan can keep the same."""

    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    search_s: float
    considered: int
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate:
        """The best candidate.

        Raises:
            RefusedError: nothing fits, with the nearest miss.
        """
        if self.candidates:
            return self.candidates[0]
        reasons = (
            "; ".join(f"{r.strategy} {r.config}: {r.reason}" for r in self.refused[:3]) or "no strategy offers a choice"
        )
        raise RefusedError(
            "plan", reasons, "a strategy that fits", "Give more devices, more memory or a smaller batch."
        )


def search(
    profile: ModelProfile,
    cluster: Cluster,
    batch_size: int,
    *,
    strategies: Sequence[str] = (),
    microbatch_sizes: tuple[int, ...] = (),
    profile_path: str = "",
    bucket_bytes: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Find the best way to train a profiled job on a cluster.

    Arguments:
        batch_size: samples of one update.
        strategies: names to consider; all when empty.
        microbatch_sizes: to consider; those of the profile when empty.
        progress: called with (done, total, what).

    Raises:
        InputError: an unknown strategy, or a batch size that is not positive.
    """
    began = clock()
    if batch_size < 1:
        raise InputError("batch_size", str(batch_size), ">= 1")
    chosen = tuple(strategies) or members()
    for name in chosen:
        if name not in members():
            raise InputError("strategy", repr(name), f"one of {', '.join(members())}", nearest(name, members()))
    situation = Situation(profile, cluster, batch_size, microbatch_sizes)
    if bucket_bytes is not None:
        situation = replace(situation, bucket_bytes=bucket_bytes)
    candidates: list[Candidate] = []
    refused: list[Refused] = []
    considered = 0
    for position, name in enumerate(chosen):
        if progress:
            progress(position, len(chosen), name)
        try:
            offered = list(strategy(name).choices(situation))
        except RefusedError as error:
            refused.append(Refused(name, "", str(error)))
            continue
        considered += len(offered)
        ranked = sorted(offered, key=lambda choice: _bound_s(situation, choice, name))
        kept = 0
        for choice in ranked:
            if kept >= SIMULATED_PER_STRATEGY:
                break
            outcome = _simulate(situation, name, choice, profile_path)
            if isinstance(outcome, Candidate):
                candidates.append(outcome)
                kept += 1
            else:
                refused.append(outcome)
        if not offered:
            refused.append(Refused(name, "", f"no choice for {cluster.devices} devices and a batch of {batch_size}"))
    if progress:
        progress(len(chosen), len(chosen), "done")
    return Search(tuple(_ordered(candidates)), tuple(refused), clock() - began, considered, tuple(_notes(profile)))


def _notes(profile: ModelProfile) -> Iterator[str]:
    """What differs from one process whatever the plan."""
    normalised = [layer.name for layer in profile.layers if BATCH_STATISTICS in layer.notes]
    if normalised:
        yield (
            f"{len(normalised)} layers ({normalised[0]}, ...) normalise with the statistics of each microbatch on each replica, "
            "not of the batch: losses depend on the microbatch size, as with any gradient accumulation"
        )


def _ordered(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Best first; among those within the tolerance of the best, the simplest first."""

    def simplicity(candidate: Candidate) -> tuple[int, int, int, float, str]:
        stages = candidate.plan.stages
        devices = {d for stage in stages for d in stage.devices}
        plain = 0 if candidate.strategy == "data_parallel" else 1
        return len(stages), len(devices), plain, candidate.iteration_s, candidate.strategy

    by_time = sorted(candidates, key=lambda c: (c.iteration_s, simplicity(c)))
    if not by_time:
        return []
    limit = by_time[0].iteration_s * (1 + TIE)
    near = sorted((c for c in by_time if c.iteration_s <= limit), key=simplicity)
    return near + [c for c in by_time if c.iteration_s > limit]


def _bound_s(situation: Situation, choice: Choice, name: str) -> float:
    """Seconds for a batch if nothing but the slowest device's compute and the pipeline's filling took time."""
    profile, size = situation.profile, choice.microbatch_size
    seconds = profile.column("forward_s", size) + profile.column("backward_s", size)
    again = profile.column("forward_s", size)
    microbatches = ceil(situation.batch_size / size)
    busy: dict[int, float] = {}
    longest = 0.0
    for stage in choice.stages:
        each = sum(float(seconds[i]) + (float(again[i]) if stage.recompute else 0.0) for i in stage.layers)
        for device in stage.devices:
            busy[device] = busy.get(device, 0.0) + each * microbatches / len(stage.devices)
        longest = max(longest, each)
    filling = (
        0.0
        if name in ("pipedream", "two_bw")
        else longest * (len(choice.stages) - 1) * (1 if name != "interleaved" else 0)
    )
    if name == "model_parallel":
        filling *= microbatches
    return max(busy.values()) + filling


def make_plan(situation: Situation, name: str, choice: Choice, profile_path: str = "") -> Plan:
    """The plan file of one choice, without a prediction."""
    layers = situation.profile.layers
    stages = tuple(
        PlanStage(
            layers=tuple(layers[i].name for i in stage.layers),
            devices=stage.devices,
            recompute=stage.recompute,
            buckets=tuple(tuple(layers[i].name for i in bucket) for bucket in stage.buckets),
        )
        for stage in choice.stages
    )
    return Plan(
        strategy=name,
        model=situation.profile.name,
        batch_size=situation.batch_size,
        microbatch_size=choice.microbatch_size,
        stages=stages,
        cluster=situation.cluster,
        options=dict(choice.options),
        profile=profile_path,
        profile_digest=situation.profile.digest,
    )


def _simulate(situation: Situation, name: str, choice: Choice, profile_path: str) -> Candidate | Refused:
    shapes = stage_shapes(situation.profile, choice.stages)
    microbatches = ceil(situation.batch_size / choice.microbatch_size)
    recompute = " recompute" if any(stage.recompute for stage in choice.stages) else ""
    label = f"{config(shapes)} b{choice.microbatch_size}{recompute}"
    reason = strategy(name).supports(shapes, microbatches, complete(name, choice.options))
    if reason:
        return Refused(name, label, reason)
    predicted = predict_choice(situation, name, choice)
    for device, peak_bytes in sorted(predicted.peak_memory_bytes.items()):
        capacity_bytes = situation.cluster.capacity_bytes(device)
        if peak_bytes > capacity_bytes:
            return Refused(
                name, label, f"device {device} needs {show_bytes(peak_bytes)} of {show_bytes(capacity_bytes)}"
            )
    plan = replace(make_plan(situation, name, choice, profile_path), predicted=predicted)
    return Candidate(
        name,
        config(shapes),
        plan,
        predicted.iteration_s,
        predicted.samples_per_s,
        predicted.peak_memory_bytes,
        predicted.bubble_fraction,
    )
