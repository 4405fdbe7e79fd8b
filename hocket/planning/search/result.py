"""Results of a search: candidates in order, and refusals with their reasons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from hocket.errors import RefusedError
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.update_semantics import UpdateSemantics
from hocket.planning.search.request import PlanRequest
from hocket.profiling.profile import ModelProfile
from hocket.util.units import enough_bytes

NEAR = 0.85  # share of a device's memory above which a plan's peak is proved, not only simulated
# Plans within this share of the best count as equal (Narayanan's dissertation, section 2.5.2: plain data parallelism
# if it is as good).
TIE = 0.01


@dataclass(frozen=True)
class SimulatedCandidate:
    """A candidate of any search, with its prediction."""

    predicted: Predicted

    @property
    def iteration_s(self) -> float:
        """Predicted seconds of an iteration."""
        return self.predicted.iteration_s

    @property
    def samples_per_s(self) -> float:
        """Predicted samples per second."""
        return self.predicted.samples_per_s

    @property
    def peak_memory_bytes(self) -> dict[int, float]:
        """Predicted peak memory by device."""
        return self.predicted.peak_memory_bytes

    @property
    def bubble_fraction(self) -> float:
        """Predicted idle time relative to busy time."""
        return self.predicted.bubble_fraction


@dataclass(frozen=True)
class Evaluated(SimulatedCandidate):
    """A simulated candidate of a profiled model that fits.

    Attributes:
        updates: how the candidate's updates differ from those of one process.
        amplification: device-seconds of an iteration, relative to the seconds of one device alone
            (burst/amplification.py); None without a limit.
        buckets: sentence about gradient buckets that were chosen for the candidate; empty if it has the default ones.
        default_buckets: True if the candidate has the default buckets because others were chosen only for better
            candidates.
    """

    strategy: str
    config: str
    plan: Plan
    updates: UpdateSemantics
    amplification: float | None = None
    buckets: str = ""
    default_buckets: bool = False

    @property
    def label(self) -> str:
        """Label such as "flush 2-2 b4"."""
        return f"{self.strategy} {self.config} b{self.plan.microbatch_size}"


@dataclass(frozen=True)
class Refused:
    """A refused strategy or candidate, with the reason.

    Attributes:
        missing_bytes: memory that the fullest device lacks; 0 if memory is not the reason.
        swaps: True for plans that swap; a host lacks the missing memory then.
        host_bytes: memory that this host needs.
        bug: True if Hocket failed (failures.py).
        too_much: True if only the amplification limit excludes it.
    """

    strategy: str
    config: str
    reason: str
    missing_bytes: float = 0.0
    swaps: bool = False
    host_bytes: float = 0.0
    bug: bool = False
    too_much: bool = False


_ALLOW = "Allow a larger amplification"
NO_HOST = "the cluster file has no host_memory_bytes, the memory to swap to"
"""Reason to refuse plans that swap."""


@dataclass(frozen=True)
class Search:
    """Result of a search for the best plan of a profiled job.

    Attributes:
        candidates: simulated candidates that fit, best first.
        refused: refused strategies and candidates.
        search_s: seconds of the search.
        considered: number of candidates.
        request: what the search was asked for.
        profiles: the job's profiles, by path: one for each tensor-parallel size that was searched.
        notes: sentences that hold for all plans.
    """

    candidates: tuple[Evaluated, ...]
    refused: tuple[Refused, ...]
    search_s: float
    considered: int
    request: PlanRequest = field(compare=False)
    profiles: Mapping[str, ModelProfile] = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def loaded(self, one: Evaluated) -> LoadedPlan:
        """Plan of a candidate, with its profile."""
        plan = one.plan
        return LoadedPlan(plan, next(p for p in self.profiles.values() if p.digest == plan.profile_digest))

    @property
    def bugs(self) -> tuple[str, ...]:
        """Sentence for each internal error by which plans failed."""
        alike: dict[str, list[Refused]] = {}
        for one in self.refused:
            if one.bug:
                alike.setdefault(f"{one.strategy} {one.reason}", []).append(one)
        return tuple(_told(group) for group in alike.values())

    @property
    def written(self) -> Evaluated:
        """The best candidate, with the prediction that its plan file contains.

        Raises:
            RefusedError: as `best`.
        """
        return self.best

    @property
    def nearest_misses(self) -> tuple[Refused, ...]:
        """Refusals that lack the least memory, for the error message of `best`.

        There is at most one of a plan without swaps, and one of a plan with swaps. Empty if memory is never the
        reason.
        """
        if not any(r.missing_bytes for r in self.refused):
            return ()
        staying = min((r for r in self.refused if r.missing_bytes and not r.swaps), key=_missing, default=None)
        swapped = min((r for r in self.refused if r.swaps and not r.bug), key=_missing, default=None)
        return tuple(r for r in (staying, swapped) if r is not None)

    @property
    def best(self) -> Evaluated:
        """The candidate to choose: the fastest, or a simpler one that is as fast within a tie.

        Raises:
            RefusedError: no plan fits; the message has the nearest miss.
        """
        if self.candidates:
            return self.candidates[0]
        if self.nearest_misses:
            miss = "; ".join(
                f"{self.named(r)}{f' {r.config}' * bool(r.config)}: {r.reason}" for r in self.nearest_misses
            )
            miss = "; ".join((miss, *self.bugs))
            raise RefusedError("plan", f"nothing that fits; nearest is {miss}", "a plan that fits", self._step())
        least = next((r for r in self.refused if r.too_much), None)
        if least is not None:
            miss = "; ".join((f"{self.named(least)} {least.config}: {least.reason}", *self.bugs))
            raise RefusedError("plan", miss, "a plan within the limit", f"{_ALLOW}.")
        reasons = list(dict.fromkeys(f"{r.strategy}: {r.reason}" for r in self.refused if not r.bug))[:3]
        reasons += self.bugs
        step = "Allow other strategies, microbatch sizes or more devices."
        raise RefusedError(
            "plan", "; ".join(reasons) or "no candidate", "a strategy that supports this job and cluster", step
        )

    def named(self, refused: Refused) -> str:
        """Name of a refused strategy, with "with swaps" or "without swaps" if needed."""
        if refused.swaps:
            return f"{refused.strategy} with swaps" if refused.config else refused.strategy
        both = any(r.swaps and r.strategy == refused.strategy for r in self.refused)
        return f"{refused.strategy} without swaps" if both else refused.strategy

    def _step(self) -> str:
        """Advice if no plan fits."""
        others = "more devices, devices with more memory, a smaller microbatch size or a smaller batch."
        if any(r.too_much for r in self.refused):
            return f"{_ALLOW}, or give {others}"
        needed = min((r.host_bytes for r in self.refused if r.host_bytes), default=0.0)
        if needed:
            return f"Give hosts more memory (host_memory_bytes: {enough_bytes(needed)} or more), {others}"
        if any(r.reason == NO_HOST for r in self.refused):
            return f"Set host_memory_bytes in the cluster file, so that plans can swap, or give {others}"
        return f"Give {others}"


def _missing(refused: Refused) -> float:
    return refused.missing_bytes or inf


def _told(alike: Sequence[Refused]) -> str:
    """Sentence about plans that failed with the same error."""
    first = alike[0]
    name = f"{first.strategy} {first.config}".strip()
    others = f" and {len(alike) - 1} more of its candidates" if len(alike) > 1 else ""
    return f"{name}{others} left out by a bug of Hocket, {first.reason}; please report it with the profile and the cluster file"


def ordered(candidates: Iterable[Evaluated]) -> list[Evaluated]:
    """Sort candidates, best first; among ties, the simplest first."""

    def simplicity(candidate: Evaluated) -> tuple[int, int, int, bool, float, str]:
        stages = candidate.plan.stages
        devices = {d for stage in stages for d in stage.devices}
        plain = 0 if candidate.strategy == "data_parallel" else 1
        whole = candidate.plan.shard == "none"
        return len(stages), len(devices), plain, not whole, candidate.iteration_s, candidate.strategy

    by_time = sorted(candidates, key=lambda c: (c.iteration_s, simplicity(c)))
    if not by_time:
        return []
    limit = by_time[0].iteration_s * (1 + TIE)
    near = sorted((c for c in by_time if c.iteration_s <= limit), key=simplicity)
    return near + [c for c in by_time if c.iteration_s > limit]


def joined(searches: Sequence[Search]) -> Search:
    """Merge several searches for one job and one request."""
    return Search(
        tuple(ordered(one for found in searches for one in found.candidates)),
        tuple(one for found in searches for one in found.refused),
        sum(found.search_s for found in searches),
        sum(found.considered for found in searches),
        searches[0].request,
        {path: profile for found in searches for path, profile in found.profiles.items()},
        tuple(dict.fromkeys(note for found in searches for note in found.notes)),
    )
