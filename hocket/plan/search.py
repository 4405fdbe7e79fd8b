"""The search: every strategy's choices, ordered by a bound, decided by simulation, under every device's memory limit.

Rules of this file: deterministic to the byte; a choice is refused with its reason, or left out because its bound says that
it cannot be the best; what looks equal within the tolerance goes to fewer stages, then fewer devices, then plain data
parallelism. Among all that is offered and fits, nothing is faster than the best by more than the tolerance.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import ceil, inf

from hocket.errors import InputError, RefusedError, nearest
from hocket.hardware.cluster import Cluster
from hocket.plan.bound import Bounds
from hocket.plan.plan import Plan, PlanStage
from hocket.plan.predict import predict_choice, proven_peaks
from hocket.plan.updates import Updates, synchronous_strategies, updates_of
from hocket.profile.model import BATCH_STATISTICS, ModelProfile
from hocket.program.program import StageShape
from hocket.strategies._choices import MAX_FORWARDS, Choice, Situation, period_forwards
from hocket.strategies._common import complete, config, members, strategy
from hocket.units import show_bytes

SIMULATED_PER_STRATEGY = 4  # of those that cannot be the best of all any more, but may be the best of their strategy
NEAR = 0.85  # share of a device's memory from which a plan's proven need is looked at, and not only the simulated one
TIE = 0.01  # plans within this share of the best count as equal (section 2.5.2: plain data parallelism when it is as good)


@dataclass(frozen=True)
class Candidate:
    """One simulated choice that fits; `updates` says how its mathematics differ from those of one process."""

    strategy: str
    config: str
    plan: Plan
    updates: Updates
    iteration_s: float
    samples_per_s: float
    peak_memory_bytes: dict[int, float]
    bubble_fraction: float = 0.0


@dataclass(frozen=True)
class Refused:
    """A strategy, or one of its choices, that is no candidate, and why.

    Attributes:
        missing_bytes: by how much the fullest device is too small; 0 when memory is not the reason.
    """

    strategy: str
    config: str
    reason: str
    missing_bytes: float = 0.0


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
        nearest_miss = min((r for r in self.refused if r.missing_bytes), key=lambda r: r.missing_bytes, default=None)
        if nearest_miss is not None:
            miss = f"{nearest_miss.strategy} {nearest_miss.config}: {nearest_miss.reason}"
            step = "Give more devices, more memory, a smaller microbatch or a smaller batch."
            raise RefusedError("plan", f"nothing that fits; nearest is {miss}", "a plan that fits", step)
        reasons = list(dict.fromkeys(f"{r.strategy}: {r.reason}" for r in self.refused))[:3]
        step = "Allow other strategies, microbatch sizes or more devices."
        raise RefusedError("plan", "; ".join(reasons) or "no choice at all", "a strategy that supports this", step)


def search(
    profile: ModelProfile,
    cluster: Cluster,
    batch_size: int,
    *,
    strategies: Sequence[str] = (),
    microbatch_sizes: tuple[int, ...] = (),
    profile_path: str = "",
    bucket_bytes: float | None = None,
    synchronous: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Find the best way to train a profiled job on a cluster.

    Arguments:
        batch_size: samples of one update.
        strategies: names to consider; all when empty.
        microbatch_sizes: to consider; those of the profile when empty.
        synchronous: consider only strategies with the mathematics of one process.
        progress: called with (done, total, what).

    Raises:
        InputError: an unknown strategy, one that is not synchronous where only those are wanted, or a batch size that is not positive.
    """
    began = clock()
    if batch_size < 1:
        raise InputError("batch_size", str(batch_size), ">= 1")
    largest = profile.microbatch_sizes[-1]
    if batch_size > MAX_FORWARDS * largest:  # beyond it neither schedules nor figures mean anything
        expected = f"at most {MAX_FORWARDS * largest}, {MAX_FORWARDS} microbatches of the largest that was measured"
        raise InputError(
            "batch_size", str(batch_size), expected, "Profile larger microbatches with `hocket profile -b`."
        )
    chosen = tuple(strategies) or (synchronous_strategies() if synchronous else members())
    for name in chosen:
        if name not in members():
            raise InputError("strategy", repr(name), f"one of {', '.join(members())}", nearest(name, members()))
        if synchronous and name not in synchronous_strategies():
            raise InputError(
                "strategy", f"{name}, which is not synchronous", f"one of {', '.join(synchronous_strategies())}"
            )
    situation = Situation(profile, cluster, batch_size, microbatch_sizes)
    if bucket_bytes is not None:
        situation = replace(situation, bucket_bytes=bucket_bytes)
    hunt = _Hunt(situation, profile_path)
    for name in chosen:
        hunt.offer(name)
    hunt.run(progress)
    found = tuple(_ordered(hunt.candidates))
    return Search(
        found, tuple(hunt.refused), clock() - began, hunt.considered, tuple(_notes(profile, cluster, batch_size))
    )


@dataclass
class _Hunt:
    """One search under way: choices wait in the order of their bounds.

    Attributes:
        waiting: (bound in seconds, number, strategy, choice, whether the bound is the tight one).
        best_s: of all candidates, and of those of each strategy; kept: how many each strategy has.
    """

    situation: Situation
    profile_path: str
    candidates: list[Candidate] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    considered: int = 0
    waiting: list[tuple[float, int, str, Choice, bool]] = field(default_factory=list)
    best_s: dict[str, float] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bounds = Bounds(self.situation)

    def offer(self, name: str) -> None:
        """Take in a strategy's choices."""
        self.best_s[name], self.kept[name] = inf, 0
        before = self.considered
        try:
            for choice in strategy(name).choices(self.situation):
                self._wait(name, choice)
        except RefusedError as error:
            self.refused.append(Refused(name, "", str(error)))
            return
        if self.considered == before:
            devices, batch = self.situation.cluster.devices, self.situation.batch_size
            self.refused.append(Refused(name, "", f"no choice for {devices} devices and a batch of {batch}"))

    def _wait(self, name: str, choice: Choice) -> None:
        self.waiting.append((self.bounds.quick_s(choice), self.considered, name, choice, False))
        self.considered += 1

    def run(self, progress: Callable[[int, int, str], None] | None) -> None:
        """Simulate in the order of the bounds whatever may still be the best."""
        heapify(self.waiting)
        done = 0
        while self.waiting:
            bound_s, number, name, choice, tight = heappop(self.waiting)
            if not self._promising(name, bound_s):
                done += 1
                continue
            if progress:
                progress(done, self.considered, name)
            shapes = self.bounds.shapes(choice)
            if not tight:
                reason = self._impossible(name, shapes, choice)
                if reason is None:
                    bound_s = max(bound_s, self.bounds.seconds(name, shapes, choice))
                    heappush(self.waiting, (bound_s, number, name, choice, True))
                    continue
            else:
                reason = self._simulate(name, shapes, choice)
            done += 1
            if reason is not None:
                self.refused.append(Refused(name, _label(shapes, choice), reason.text, reason.missing_bytes))
                if reason.missing_bytes and choice.thriftier:
                    first, rest = choice.thriftier[0], choice.thriftier[1:]
                    next_one = replace(first, thriftier=rest)
                    heappush(self.waiting, (self.bounds.quick_s(next_one), self.considered, name, next_one, False))
                    self.considered += 1
        if progress:
            progress(self.considered, self.considered, "done")

    def _promising(self, name: str, bound_s: float) -> bool:
        """Whether a choice may be the best of all, or one of its strategy's best of which not enough are known."""
        if bound_s <= min(self.best_s.values()) * (1 + TIE):
            return True
        return bound_s <= self.best_s[name] * (1 + TIE) and self.kept[name] < SIMULATED_PER_STRATEGY

    def _impossible(self, name: str, shapes: tuple[StageShape, ...], choice: Choice) -> "_Reason | None":
        """Why a choice need not be simulated."""
        microbatches = ceil(self.situation.batch_size / choice.microbatch_size)
        reason = strategy(name).supports(shapes, microbatches, complete(name, choice.options))
        if reason:
            return _Reason(reason)
        forwards = period_forwards(choice.stages, choice.microbatches)
        if forwards > MAX_FORWARDS:
            return _Reason(
                f"replicas in these numbers take the same turns again only after {forwards // len(shapes)} microbatches; "
                f"programs of more than {MAX_FORWARDS} forwards are not considered"
            )
        return self._too_large(self.bounds.peak_bytes(name, shapes, choice), "at least ")

    def _simulate(self, name: str, shapes: tuple[StageShape, ...], choice: Choice) -> "_Reason | None":
        """Add a candidate, or say why it is none."""
        predicted = predict_choice(self.situation, name, choice)
        reason = self._too_large(predicted.peak_memory_bytes, "")
        promising = predicted.iteration_s <= self.best_s[name] * (1 + TIE)
        if reason is None and promising and self._is_near(predicted.peak_memory_bytes):
            # Other timing may take more than the simulated one, and `check` takes no risk. What is not among the best of its
            # strategy is not worth the proof.
            reason = self._too_large(proven_peaks(self.situation, name, choice), "up to ")
        if reason is not None:
            return reason
        plan = replace(make_plan(self.situation, name, choice, self.profile_path), predicted=predicted)
        seconds = predicted.iteration_s
        self.candidates.append(
            Candidate(
                name,
                config(shapes),
                plan,
                updates_of(name, shapes, plan.batch_size, plan.microbatch_size, plan.options),
                seconds,
                predicted.samples_per_s,
                predicted.peak_memory_bytes,
                predicted.bubble_fraction,
            )
        )
        self.best_s[name] = min(self.best_s[name], seconds)
        self.kept[name] += 1
        return None

    def _is_near(self, peaks: dict[int, float]) -> bool:
        return any(size > NEAR * self.situation.cluster.capacity_bytes(device) for device, size in peaks.items())

    def _too_large(self, peaks: dict[int, float], how: str) -> "_Reason | None":
        """The device that lacks most, if one does."""
        capacity = {device: self.situation.cluster.capacity_bytes(device) for device in sorted(peaks)}
        device = max(capacity, key=lambda d: peaks[d] - capacity[d])
        missing = peaks[device] - capacity[device]
        if missing <= 0:
            return None
        needs = f"device {device} needs {how}{show_bytes(peaks[device])} of {show_bytes(capacity[device])}"
        return _Reason(needs, missing)


@dataclass(frozen=True)
class _Reason:
    """Why a choice is refused, and how much memory is missing if that is why."""

    text: str
    missing_bytes: float = 0.0


def _label(shapes: tuple[StageShape, ...], choice: Choice) -> str:
    """A choice in a few words, such as '2-2 b4 recompute'."""
    recompute = " recompute" if any(stage.recompute for stage in choice.stages) else ""
    options = "".join(f" {key}={value}" for key, value in choice.options.items())
    return f"{config(shapes)} b{choice.microbatch_size}{recompute}{options}"


def _notes(profile: ModelProfile, cluster: Cluster, batch_size: int) -> Iterator[str]:
    """What keeps a plan from being trained, what makes the figures rough, and what differs from one process, whatever the plan."""
    if profile.batch_size not in (0, batch_size):
        yield (
            f"the job was profiled with batch_size={profile.batch_size}: `hocket train` takes a plan for {batch_size} "
            f"only after the job says batch_size={batch_size}"
        )
    here = profile.device_type
    others = dict.fromkeys([node.device_type for node in cluster.nodes] or [cluster.device_type])
    others.pop(here, None)
    if others:
        names = ", ".join(others)
        yield f"measured on {here}, scaled to {names} by their peak rates: rough; measure where it matters"
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
        model_digest=situation.profile.digest_of_model,
    )
