"""Candidates: what a search offers, what it refuses and why, and which of those that are equally fast comes first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from hocket.errors import RefusedError
from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.update_semantics import UpdateSemantics
from hocket.util.units import enough_bytes

NEAR = 0.85  # share of a device's memory from which a plan's proven need is looked at, and not only the simulated one
TIE = 0.01  # plans within this share of the best count as equal (section 2.5.2: plain data parallelism when it is as good)


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
        """Predicted samples a second."""
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
        updates: how its mathematics differ from those of one process.
        amplification: device-seconds of an iteration over the seconds of one device alone (amplification.py), where there is a limit.
        buckets: what other buckets of gradients than those of one size gain; empty where it has these.
        default_buckets: it sums gradients in buckets of one size because no others were looked for, though for better candidates they were.
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
    """A strategy, or one of its choices, that is no candidate, and why.

    Attributes:
        missing_bytes: by how much the fullest device is too small; 0 when memory is not the reason.
        swaps: it is of plans that swap; what is missing is missing on a host then. host_bytes: what that host needs.
        bug: it is none because something of ours failed (failures.py).
        too_much: it would be one, if its amplification were allowed.
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
NO_HOST = "the cluster file does not say host_memory_bytes: how much there is to swap to"
"""Reason to refuse plans that swap."""


@dataclass(frozen=True)
class Search:
    """Result of a search: candidates (best first), refusals, seconds, and differences common to all plans."""

    candidates: tuple[Evaluated, ...]
    refused: tuple[Refused, ...]
    search_s: float
    considered: int
    notes: tuple[str, ...] = ()

    @property
    def bugs(self) -> tuple[str, ...]:
        """Sentence for each group of plans that failed by an internal error."""
        alike: dict[str, list[Refused]] = {}
        for one in self.refused:
            if one.bug:
                alike.setdefault(f"{one.strategy} {one.reason}", []).append(one)
        return tuple(_told(group) for group in alike.values())

    @property
    def written(self) -> Evaluated:
        """The best, whose prediction is that of the plan that is written.

        Raises:
            RefusedError: as `best`.
        """
        return self.best

    @property
    def best(self) -> Evaluated:
        """The best candidate.

        Raises:
            RefusedError: nothing fits, with the nearest miss.
        """
        if self.candidates:
            return self.candidates[0]
        if any(r.missing_bytes for r in self.refused):
            staying = min((r for r in self.refused if r.missing_bytes and not r.swaps), key=_missing, default=None)
            swapped = min((r for r in self.refused if r.swaps and not r.bug), key=_missing, default=None)
            near = [r for r in (staying, swapped) if r is not None]
            miss = "; ".join(f"{self.named(r)}{f' {r.config}' * bool(r.config)}: {r.reason}" for r in near)
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
        """A refusal's strategy, and whether it is of plans that swap, where that is not plain."""
        if refused.swaps:
            return f"{refused.strategy} with swaps" if refused.config else refused.strategy
        both = any(r.swaps and r.strategy == refused.strategy for r in self.refused)
        return f"{refused.strategy} without swaps" if both else refused.strategy

    def _step(self) -> str:
        """Advice if nothing fits."""
        others = "more devices, devices of more memory, a smaller microbatch or a smaller batch."
        if any(r.too_much for r in self.refused):
            return f"{_ALLOW}, or give {others}"
        needed = min((r.host_bytes for r in self.refused if r.host_bytes), default=0.0)
        if needed:
            return f"Give hosts more memory (host_memory_bytes: {enough_bytes(needed)} or more), {others}"
        if any(r.reason == NO_HOST for r in self.refused):
            return f"Say host_memory_bytes in the cluster file, so that what does not fit is swapped, or give {others}"
        return f"Give {others}"


def _missing(refused: Refused) -> float:
    return refused.missing_bytes or inf


def _told(alike: Sequence[Refused]) -> str:
    """Sentence about plans that failed in the same way."""
    first = alike[0]
    name = f"{first.strategy} {first.config}".strip()
    others = f" and {len(alike) - 1} more of its choices" if len(alike) > 1 else ""
    return f"{name}{others} left out by a bug of Hocket, {first.reason}; please report it with the profile and the cluster file"


def ordered(candidates: Iterable[Evaluated]) -> list[Evaluated]:
    """Best first; among those within the tolerance of the best, the simplest first."""

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
    """Several searches for one job as one."""
    return Search(
        tuple(ordered(one for found in searches for one in found.candidates)),
        tuple(one for found in searches for one in found.refused),
        sum(found.search_s for found in searches),
        sum(found.considered for found in searches),
        tuple(dict.fromkeys(note for found in searches for note in found.notes)),
    )
