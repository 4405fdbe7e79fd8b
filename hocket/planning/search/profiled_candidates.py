"""Candidates of all strategies for a profiled model.

A candidate is refused with a reason, or left out because its lower bound excludes it as the best. If the user did not
choose the sharding, a candidate is also tried with sharded optimizer state in two cases: sharded optimizer steps may
gain more than a tie, or the candidate does not fit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from hocket.errors import InputError, RefusedError
from hocket.planning.buckets.assign import Rebucketed
from hocket.planning.burst.amplification_limit import Tolerance, held_s
from hocket.planning.plan import Plan
from hocket.planning.predict.model_differences import differences
from hocket.planning.predict.predict import predict_choice, proven_peaks, trace_of_choice
from hocket.planning.predict.update_semantics import updates_of
from hocket.planning.search.bounds.bounds import Bounds
from hocket.planning.search.branch_and_bound import Bounded, BranchAndBound
from hocket.planning.search.failures import RefusalReason, configuration, failed, label, too_large
from hocket.planning.search.make_plan import make_plan
from hocket.planning.search.result import NEAR, TIE, Evaluated, Refused
from hocket.program.program import StageShape
from hocket.program.trace.busy_time import active_s
from hocket.strategies.base.search_space import MAX_FORWARDS, Candidate, SearchSpace, period_forwards, shared
from hocket.strategies.base.strategy import complete, microbatches_of, missing, refusal, strategy, yields_idle
from hocket.util.compatibility import Feature, conflict
from hocket.util.units import show_count

SIMULATED_PER_STRATEGY = 4  # simulations of a strategy after which candidates that can only be its best are left out


@dataclass(frozen=True)
class Waiting:
    """A waiting candidate of a strategy.

    Attributes:
        number: order of arrival.
        tight: True if the bound is `Bounds.seconds`; False for `Bounds.quick_s`, which is quicker to compute.
    """

    number: int
    strategy: str
    candidate: Candidate
    tight: bool = False


class ProfiledCandidates:
    """Candidates of all strategies for a profiled model: a `CandidateSource`.

    Attributes:
        found: simulated candidates that fit.
        refused: strategies and candidates that were refused.
        considered: number of candidates.
    """

    def __init__(
        self,
        space: SearchSpace,
        profile_path: str,
        tolerance: Tolerance | None = None,
        rebucket: Callable[[Plan], Rebucketed | None] = lambda plan: None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        """Begin a search without candidates; `offer` adds the candidates of each strategy.

        Arguments:
            space, profile_path: search space of all candidates, and path of the profile as plans name it.
            tolerance: limit on amplification; None for no limit.
            rebucket: function that gives a plan above this limit buckets with which it is below, or returns None.
            progress: called with (finished candidates, all candidates, next step).
        """
        self.found: list[Evaluated] = []
        self.refused: list[Refused] = []
        self.considered = 0
        self._space, self._profile_path, self._bounds = space, profile_path, Bounds(space)
        self._tolerance, self._rebucket, self._progress = tolerance, rebucket, progress
        self._best_s: dict[str, float] = {}
        self._kept: dict[str, int] = {}  # simulated candidates by strategy, including those beyond the tolerance
        self._done = 0
        self._search: BranchAndBound[Waiting] = BranchAndBound(self)

    def offer(self, name: str) -> None:
        """Add the candidates of a strategy."""
        self._best_s[name], self._kept[name] = inf, 0
        before, several = self.considered, False
        try:
            for candidate in strategy(name).choices(self._space):
                if self._space.profile.coupled_step and len(candidate.stages) > 1:
                    several = True
                    continue
                self._search.add(self._new(name, candidate))
        except RefusedError as error:
            self.refused.append(Refused(name, "", str(error)))
            return
        except InputError:  # the input is wrong, not one candidate
            raise
        except Exception as error:
            self.refused.append(failed(name, "", error))
            return  # candidates offered before the error remain
        if several:
            reason = conflict((Feature.STAGES, Feature.COUPLED_STEPS)) or ""
            self.refused.append(Refused(name, "", f"{self._space.profile.optimizer}: {reason}"))
        elif self.considered == before:
            devices, batch = self._space.cluster.devices, self._space.batch_size
            none = f"no candidate for {show_count(devices, 'device')} and a batch of {batch}"
            self.refused.append(Refused(name, "", ": ".join(filter(None, (none, missing(name, self._space))))))

    def run(self) -> None:
        """Simulate all candidates that may be the best."""
        self._search.run()

    def order(self, bound_s: float, node: Waiting) -> tuple[float, ...]:
        """Sort key of a waiting candidate: by bound, then in the order of proposal."""
        return bound_s, node.number

    def reaches(self, order: tuple[float, ...]) -> bool:
        """True for every candidate: each strategy has its own limit (`promising`)."""
        return True

    def promising(self, bound_s: float, node: Waiting) -> bool:
        """True if a candidate may be the best of all, or one of the best of its strategy.

        The second reason ends after `SIMULATED_PER_STRATEGY` simulations of its strategy.
        """
        if bound_s <= min(self._best_s.values()) * (1 + TIE):
            return True
        name = node.strategy
        return bound_s <= self._best_s[name] * (1 + TIE) and self._kept[name] < SIMULATED_PER_STRATEGY

    def branch(self, bound_s: float, node: Waiting) -> list[Bounded[Waiting]]:
        """Tighten a candidate's bound, or simulate it.

        Returns:
            The candidate with its tighter bound, and variants that need less time or memory.
        """
        name, candidate, tight = node.strategy, node.candidate, node.tight
        if self._progress:
            self._progress(self._done + self._search.left_out, self.considered, f"choices of {name}")
        shapes, more = self._bounds.shapes(candidate), list[Bounded[Waiting]]()
        try:
            reason = self._beyond(name, candidate, bound_s) if tight else self._impossible(name, shapes, candidate)
            if reason is None and not tight:
                if self._worth_sharing(name, shapes, candidate):
                    more += self._variant(name, shared(candidate))
                bound_s = max(bound_s, self._bounds.seconds(name, shapes, candidate))
                return [*more, (bound_s, replace(node, tight=True))]
            reason = reason or self._simulate(name, shapes, candidate)
        except Exception as error:
            self.refused.append(failed(name, label(shapes, candidate), error))
            reason = None
        self._done += 1
        if reason is not None:
            self.refused.append(Refused(name, label(shapes, candidate), reason.text, reason.missing_bytes))
            if reason.missing_bytes:
                if self._space.shard is None and not (tight and self._worth_sharing(name, shapes, candidate)):
                    more += self._variant(name, shared(candidate))
                for first in candidate.thriftier[:1]:
                    more += self._variant(name, replace(first, thriftier=candidate.thriftier[1:]))
        return more

    def _new(self, name: str, candidate: Candidate) -> Bounded[Waiting]:
        waiting = Waiting(self.considered, name, candidate)
        self.considered += 1
        return self._bounds.quick_s(candidate), waiting

    def _variant(self, name: str, candidate: Candidate | None) -> list[Bounded[Waiting]]:
        """The candidate as a list of one node; an empty list for None."""
        return [] if candidate is None else [self._new(name, candidate)]

    def _worth_sharing(self, name: str, shapes: tuple[StageShape, ...], candidate: Candidate) -> bool:
        """True if sharded optimizer steps may gain more than a tie."""
        return self._space.shard is None and self._bounds.step_share(name, shapes, candidate) > TIE

    def _impossible(self, name: str, shapes: tuple[StageShape, ...], candidate: Candidate) -> RefusalReason | None:
        """Reason why a candidate need not be simulated; None otherwise."""
        widths = (len(stage.devices) for stage in candidate.stages)
        batches = microbatches_of(name, self._space.batch_size, candidate.microbatch_size, widths)
        reason = refusal(name, shapes, batches.count, complete(name, candidate.options))
        if reason:
            return RefusalReason(reason)
        forwards = period_forwards(candidate.stages, candidate.microbatches)
        if forwards > MAX_FORWARDS:
            return RefusalReason(
                f"with this batch and these replicas the schedule repeats only after {forwards // len(shapes)} "
                f"microbatches; programs of more than {MAX_FORWARDS} forwards are not considered"
            )
        too_much = self._beyond(name, candidate, self._bounds.quick_s(candidate))
        return too_much or too_large(self._space.cluster, self._bounds.peak_bytes(name, shapes, candidate), "at least ")

    def _beyond(self, name: str, candidate: Candidate, least_s: float) -> RefusalReason | None:
        """Reason if a candidate exceeds the amplification limit; None otherwise.

        Arguments:
            least_s: lower bound of the candidate's iteration time in seconds.
        """
        if self._tolerance is None or yields_idle(name):
            return None
        text = self._tolerance.refusal(held_s(candidate.stages, least_s, self._tolerance.members), "at least ")
        return RefusalReason(text) if text else None

    def _used_s(self, name: str, candidate: Candidate, iteration_s: float, tolerance: Tolerance) -> float:
        """Device-seconds of an iteration of a candidate.

        If its strategy leaves idle devices to other jobs, only busy seconds count. Otherwise all its devices count
        for the whole iteration.
        """
        if yields_idle(name):
            return tolerance.members * sum(active_s(trace_of_choice(self._space, name, candidate)).values())
        return held_s(candidate.stages, iteration_s, tolerance.members)

    def _simulate(self, name: str, shapes: tuple[StageShape, ...], candidate: Candidate) -> RefusalReason | None:
        """Simulate a candidate and add it to `found`, or return the reason to refuse it."""
        predicted = predict_choice(self._space, name, candidate)
        plan = replace(make_plan(self._space, name, candidate, self._profile_path), predicted=predicted)
        reason = too_large(self._space.cluster, predicted.peak_memory_bytes, "")
        amplification, better = None, None
        if reason is None and self._tolerance is not None:
            used_s = self._used_s(name, candidate, predicted.iteration_s, self._tolerance)
            text = self._tolerance.refusal(used_s)
            better = self._rebucket(plan) if text else None
            if text and better is None:
                self._kept[name] += 1
                return RefusalReason(text)
            if better is not None:
                predicted, used_s = better.predicted, better.used_s
                plan = replace(plan, stages=better.plan.stages, predicted=predicted)
            amplification = used_s / self._tolerance.alone_s
        promising = predicted.iteration_s <= self._best_s[name] * (1 + TIE)
        if reason is None and better is None and promising and self._is_near(predicted.peak_memory_bytes):
            # Other timing may need more memory than the simulated timing, and `check` takes no risk. The proof is
            # skipped for a candidate that is not among the best of its strategy.
            reason = too_large(self._space.cluster, proven_peaks(self._space, name, candidate), "up to ")
        if reason is not None:
            return reason
        seconds = predicted.iteration_s
        self.found.append(
            Evaluated(
                predicted,
                name,
                configuration(shapes),
                plan,
                updates_of(
                    name,
                    shapes,
                    plan.batch_size,
                    plan.microbatch_size,
                    plan.options,
                    differences(self._space.profile.layers, self._space.profile.loss_parts),
                ),
                amplification,
                better.text if better else "",
            )
        )
        self._best_s[name] = min(self._best_s[name], seconds)
        self._kept[name] += 1
        return None

    def _is_near(self, peaks: dict[int, float]) -> bool:
        return any(size > NEAR * self._space.cluster.capacity_bytes(device) for device, size in peaks.items())
