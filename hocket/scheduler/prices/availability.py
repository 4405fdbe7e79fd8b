"""Availability of instances, preemptions and preemption notices.

Source: Narayanan's dissertation, sections 6.3.2 (Figure 6.2: times granted and preempted) and 6.5 (time to
preemption).
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nan

from hocket.errors import InputError
from hocket.scheduler.prices.market import PriceKey
from hocket.scheduler.prices.series import Series

# Seconds between notice and preemption: two minutes on AWS, half a minute on Google and Azure.
NOTICE_S = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}


@dataclass(frozen=True)
class InstanceLifetime:
    """Lifetime of one instance.

    `preempted` is False if the instance was still there at the end of the observation.
    """

    begin_s: float
    end_s: float
    preempted: bool


@dataclass(frozen=True)
class Availability:
    """Availability of an instance type in one place, under continuous requests.

    Attributes:
        key: place and instance type.
        accelerator: accelerator name; empty if unknown because no instance was granted.
        accelerators: number of accelerators in the instance.
        held: lifetimes in order; they never overlap.
        refused_s: times of refused requests.
        begin_s, end_s: start and end of the observation.
    """

    key: PriceKey
    accelerator: str
    accelerators: float
    held: tuple[InstanceLifetime, ...]
    refused_s: tuple[float, ...]
    begin_s: float
    end_s: float

    def __post_init__(self) -> None:
        place = f"availability of {self.key}"
        moments = [self.begin_s, *(t for h in self.held for t in (h.begin_s, h.end_s)), self.end_s]
        early = next(((a, b) for a, b in pairwise(moments) if b < a), None)
        if early is not None:
            found = f"the time {early[1]:g} s after {early[0]:g} s, not in ascending order"
            raise InputError(place, found, "consecutive instances between begin_s and end_s")

    def available(self, now_s: float) -> bool | None:
        """True if an instance was available at a time; None outside the observation."""
        if not self.begin_s <= now_s <= self.end_s:
            return None
        index = bisect_right([h.begin_s for h in self.held], now_s) - 1
        return index >= 0 and (now_s < self.held[index].end_s or not self.held[index].preempted)

    @property
    def series(self) -> Series:
        """Step function: 1 while an instance was held, 0 otherwise, nan if not observed."""
        steps = {self.begin_s: 0.0}
        for held in self.held:
            steps[held.begin_s] = 1.0
            steps[held.end_s] = 0.0
        steps[self.end_s] = nan
        return Series.of(steps.items(), f"availability of {self.key}")

    @property
    def held_s(self) -> float:
        """Seconds during which an instance was held."""
        return sum(h.end_s - h.begin_s for h in self.held)

    @property
    def fraction(self) -> float:
        """Fraction of the observed time with an instance; nan without observed time."""
        looked = self.end_s - self.begin_s
        return self.held_s / looked if looked else nan

    @property
    def preemptions(self) -> int:
        """Number of preempted instances."""
        return sum(h.preempted for h in self.held)

    @property
    def mean_s_to_preemption(self) -> float:
        """Seconds with an instance, per preemption; inf without preemptions.

        This is the maximum-likelihood mean for random preemptions. Instances still there at the end count with their
        time; omitting them would bias the mean toward short lifetimes.
        """
        return self.held_s / self.preemptions if self.preemptions else inf

    def notices(self, notice_s: float | None = None) -> tuple["Notice", ...]:
        """Preemption notices of the instances that were preempted.

        A notice is never before the instance was granted.

        Arguments:
            notice_s: seconds from notice to preemption; None for the notice period of the cloud (`NOTICE_S`).

        Raises:
            InputError: `notice_s` is None and the cloud's notice period is unknown, or it is negative or infinite.
        """
        if notice_s is None:
            if self.key.cloud not in NOTICE_S:
                found = f"nothing, and no known preemption notice period of the cloud {self.key.cloud!r}"
                expected = f"the notice period in seconds, >= 0, for clouds other than {', '.join(NOTICE_S)}"
                raise InputError("notice_s", found, expected)
            notice_s = NOTICE_S[self.key.cloud]
        if not 0 <= notice_s < inf:
            raise InputError("notice_s", str(notice_s), "seconds, >= 0")
        ends = ((h.begin_s, h.end_s) for h in self.held if h.preempted)
        return tuple(Notice(self.key, max(begin, end - notice_s), end) for begin, end in ends)


@dataclass(frozen=True)
class Notice:
    """Preemption notice at `at_s`: the instance goes away at `deadline_s`."""

    key: PriceKey
    at_s: float
    deadline_s: float

    def enough_for(self, checkpoint_s: float) -> bool:
        """True if a checkpoint of this duration fits before the deadline."""
        return checkpoint_s <= self.deadline_s - self.at_s


def notices(all_of: Iterable[Availability], notice_s: float | None = None) -> tuple[Notice, ...]:
    """Preemption notices of all instances, in time order.

    Arguments:
        notice_s: seconds from notice to preemption; None for the notice period of each cloud (`NOTICE_S`).
    """
    return tuple(sorted((n for a in all_of for n in a.notices(notice_s)), key=lambda n: (n.at_s, n.key)))
