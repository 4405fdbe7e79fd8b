"""The hunt for the best plan: choices wait in the order of their bounds, and are simulated as long as one may be the best.

Rules of this file: a choice is refused with its reason, or left out because its bound says that it cannot be the best. Where nobody said
what replicas divide, those of a choice divide optimizer state and step as well if their steps take more than what counts as equal, or
if the choice does not fit without.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from hocket.errors import InputError, RefusedError
from hocket.planning.buckets.assign import Rebucketed
from hocket.planning.burst.amplification_limit import Tolerance, held_s
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.model_differences import differences
from hocket.planning.predict.predict import predict_choice, proven_peaks, trace_of_choice
from hocket.planning.predict.update_semantics import updates_of
from hocket.planning.search.bounds.bounds import Bounds
from hocket.planning.search.failures import failed
from hocket.planning.search.result import NEAR, TIE, Evaluated, Refused
from hocket.program.program import StageShape
from hocket.program.trace.busy_time import active_s
from hocket.strategies.base.search_space import MAX_FORWARDS, Candidate, SearchSpace, period_forwards, shared
from hocket.strategies.base.strategy import complete, config, microbatches_of, missing, refusal, strategy, yields_idle
from hocket.util.units import show_bytes, show_count

SIMULATED_PER_STRATEGY = 4  # of those that cannot be the best of all any more, but may be the best of their strategy


@dataclass
class BranchAndBound:
    """One branch-and-bound search: candidates wait in the order of their bounds.

    Attributes:
        waiting: (bound in seconds, number, strategy, choice, whether the bound is the tight one).
        best_s: of all candidates, and of those of each strategy; kept: how many each strategy has, simulated ones that use
            too much of devices counted.
        tolerance: what a choice may use of devices. rebucket: a plan that uses more, with buckets with which it does not.
    """

    situation: SearchSpace
    profile_path: str
    tolerance: Tolerance | None = None
    rebucket: Callable[[Plan], Rebucketed | None] = lambda plan: None
    candidates: list[Evaluated] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    considered: int = 0
    waiting: list[tuple[float, int, str, Candidate, bool]] = field(default_factory=list)
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
        except InputError:  # of what was given, and not of a choice
            raise
        except Exception as error:
            self.refused.append(failed(name, "", error))
            return  # those before it wait
        if self.considered == before:
            devices, batch = self.situation.cluster.devices, self.situation.batch_size
            none = f"no choice for {show_count(devices, 'device')} and a batch of {batch}"
            self.refused.append(Refused(name, "", ": ".join(filter(None, (none, missing(name, self.situation))))))

    def _wait(self, name: str, choice: Candidate) -> None:
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
                progress(done, self.considered, f"choices of {name}")
            shapes = self.bounds.shapes(choice)
            try:
                reason = self._beyond(name, choice, bound_s) if tight else self._impossible(name, shapes, choice)
                if reason is None and not tight:
                    if self._worth_sharing(name, shapes, choice):
                        self._add(name, shared(choice))
                    bound_s = max(bound_s, self.bounds.seconds(name, shapes, choice))
                    heappush(self.waiting, (bound_s, number, name, choice, True))
                    continue
                reason = reason or self._simulate(name, shapes, choice)
            except Exception as error:
                self.refused.append(failed(name, _label(shapes, choice), error))
                reason = None
            done += 1
            if reason is not None:
                self.refused.append(Refused(name, _label(shapes, choice), reason.text, reason.missing_bytes))
                if reason.missing_bytes:
                    if self.situation.shard is None and not (tight and self._worth_sharing(name, shapes, choice)):
                        self._add(name, shared(choice))
                    for first in choice.thriftier[:1]:
                        self._add(name, replace(first, thriftier=choice.thriftier[1:]))

    def _add(self, name: str, choice: Candidate | None) -> None:
        """Let another choice wait, if there is one."""
        if choice is not None:
            heappush(self.waiting, (self.bounds.quick_s(choice), self.considered, name, choice, False))
            self.considered += 1

    def _worth_sharing(self, name: str, shapes: tuple[StageShape, ...], choice: Candidate) -> bool:
        """True if sharded steps may gain more than a tie."""
        return self.situation.shard is None and self.bounds.step_share(name, shapes, choice) > TIE

    def _promising(self, name: str, bound_s: float) -> bool:
        """True if a candidate may be the best of all, or among the best of its strategy while these are too few."""
        if bound_s <= min(self.best_s.values()) * (1 + TIE):
            return True
        return bound_s <= self.best_s[name] * (1 + TIE) and self.kept[name] < SIMULATED_PER_STRATEGY

    def _impossible(self, name: str, shapes: tuple[StageShape, ...], choice: Candidate) -> "_Reason | None":
        """Why a choice need not be simulated."""
        widths = (len(stage.devices) for stage in choice.stages)
        batches = microbatches_of(name, self.situation.batch_size, choice.microbatch_size, widths)
        reason = refusal(name, shapes, batches.count, complete(name, choice.options))
        if reason:
            return _Reason(reason)
        forwards = period_forwards(choice.stages, choice.microbatches)
        if forwards > MAX_FORWARDS:
            return _Reason(
                f"replicas in these numbers take the same turns again only after {forwards // len(shapes)} microbatches; "
                f"programs of more than {MAX_FORWARDS} forwards are not considered"
            )
        too_much = self._beyond(name, choice, self.bounds.quick_s(choice))
        return too_much or self._too_large(self.bounds.peak_bytes(name, shapes, choice), "at least ")

    def _beyond(self, name: str, choice: Candidate, least_s: float) -> "_Reason | None":
        """Reason if a candidate exceeds the amplification limit even at its lower bound; None otherwise."""
        if self.tolerance is None or yields_idle(name):
            return None
        text = self.tolerance.refusal(held_s(choice.stages, least_s, self.tolerance.members), "at least ")
        return _Reason(text) if text else None

    def _used_s(self, name: str, choice: Candidate, iteration_s: float, tolerance: Tolerance) -> float:
        """Device-seconds of an iteration."""
        if yields_idle(name):
            return tolerance.members * sum(active_s(trace_of_choice(self.situation, name, choice)).values())
        return held_s(choice.stages, iteration_s, tolerance.members)

    def _simulate(self, name: str, shapes: tuple[StageShape, ...], choice: Candidate) -> "_Reason | None":
        """Add a candidate, or say why it is none."""
        predicted = predict_choice(self.situation, name, choice)
        plan = replace(make_plan(self.situation, name, choice, self.profile_path), predicted=predicted)
        reason = self._too_large(predicted.peak_memory_bytes, "")
        amplification, better = None, None
        if reason is None and self.tolerance is not None:
            used_s = self._used_s(name, choice, predicted.iteration_s, self.tolerance)
            text = self.tolerance.refusal(used_s)
            better = self.rebucket(plan) if text else None
            if text and better is None:
                self.kept[name] += 1
                return _Reason(text)
            if better is not None:
                predicted, used_s = better.predicted, better.used_s
                plan = replace(plan, stages=better.plan.stages, predicted=predicted)
            amplification = used_s / self.tolerance.alone_s
        promising = predicted.iteration_s <= self.best_s[name] * (1 + TIE)
        if reason is None and better is None and promising and self._is_near(predicted.peak_memory_bytes):
            # Other timing may take more than the simulated one, and `check` takes no risk. What is not among the best of its
            # strategy is not worth the proof.
            reason = self._too_large(proven_peaks(self.situation, name, choice), "up to ")
        if reason is not None:
            return reason
        seconds = predicted.iteration_s
        self.candidates.append(
            Evaluated(
                name,
                _config(shapes),
                plan,
                updates_of(
                    name,
                    shapes,
                    plan.batch_size,
                    plan.microbatch_size,
                    plan.options,
                    differences(self.situation.profile),
                ),
                seconds,
                predicted.samples_per_s,
                predicted.peak_memory_bytes,
                predicted.bubble_fraction,
                amplification,
                better.text if better else "",
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


def _label(shapes: tuple[StageShape, ...], choice: Candidate) -> str:
    """A choice in a few words, such as '2-2 b4 recompute'."""
    recompute = " recompute" if any(stage.recompute for stage in choice.stages) else ""
    options = "".join(f" {key}={value}" for key, value in choice.options.items())
    return f"{_config(shapes)} b{choice.microbatch_size}{recompute}{options}"


def _config(shapes: tuple[StageShape, ...]) -> str:
    """A configuration, and what its replicas divide, which for units is everything."""
    found = config(shapes)
    return found if found.endswith("units") else found + next((f" shard={s.shard}" for s in shapes if s.sharded), "")


def make_plan(situation: SearchSpace, name: str, choice: Candidate, profile_path: str = "") -> Plan:
    """The plan file of one choice, without a prediction."""
    layers = situation.profile.layers
    stages = tuple(
        PlanStage(
            layers=tuple(layers[i].name for i in stage.layers),
            devices=stage.devices,
            recompute=stage.recompute,
            buckets=tuple(tuple(layers[i].name for i in bucket) for bucket in stage.buckets),
            threads=stage.threads,
            wave=stage.wave,
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
        dtype=situation.profile.dtype if situation.profile.digest_of_model else "",
        shard=choice.stages[0].shard,
    )
