"""Availability: when an instance was to be had, when it was taken away, and the notice of that.

Source: section 6.3.2 (Figure 6.2: times granted and preempted) and 6.5 (time to preemption).
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nan

from hocket.errors import InputError
from hocket.scheduler.prices.market import PriceKey
from hocket.scheduler.prices.series import Series

# Seconds between the notice and the end: AWS says two minutes before, Google and Azure half a minute.
NOTICE_S = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}


@dataclass(frozen=True)
class InstanceLifetime:
    """One instance from when it was granted; `preempted`, or still there when nobody looked any more."""

    begin_s: float
    end_s: float
    preempted: bool


@dataclass(frozen=True)
class Availability:
    """Of one type of instance in one place, as somebody found it who always wanted one.

    Attributes:
        held: in order, never two at once.
        refused_s: moments at which none was granted.
        begin_s, end_s: between which somebody looked.
        accelerator: and how many `accelerators` in the instance; empty where it was never granted and so nobody can tell.
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
        if any(b < a for a, b in pairwise(moments)):
            raise InputError(place, "times out of order", "instances one after the other, between begin_s and end_s")

    def available(self, now_s: float) -> bool | None:
        """Whether there was one at a moment; None when nobody looked."""
        if not self.begin_s <= now_s <= self.end_s:
            return None
        index = bisect_right([h.begin_s for h in self.held], now_s) - 1
        return index >= 0 and (now_s < self.held[index].end_s or not self.held[index].preempted)

    @property
    def series(self) -> Series:
        """1 while there was one, 0 while not, nan when nobody looked."""
        steps = {self.begin_s: 0.0}
        for held in self.held:
            steps[held.begin_s] = 1.0
            steps[held.end_s] = 0.0
        steps[self.end_s] = nan
        return Series.of(steps.items(), f"availability of {self.key}")

    @property
    def held_s(self) -> float:
        """Seconds with an instance."""
        return sum(h.end_s - h.begin_s for h in self.held)

    @property
    def fraction(self) -> float:
        """Of the time in which somebody looked, with an instance; nan if that is no time."""
        looked = self.end_s - self.begin_s
        return self.held_s / looked if looked else nan

    @property
    def preemptions(self) -> int:
        """Instances that were taken away."""
        return sum(h.preempted for h in self.held)

    @property
    def mean_s_to_preemption(self) -> float:
        """Time with an instance by preemptions: the likeliest mean if they come at random; inf without any.

        Instances that were still there at the end count with their time, as they should: leaving them out would favour
        the short-lived.
        """
        return self.held_s / self.preemptions if self.preemptions else inf

    def notices(self, notice_s: float | None = None) -> tuple["Notice", ...]:
        """Of every preemption, so many seconds before it (by default the cloud's own), but not before the grant.

        Raises:
            InputError: a cloud whose notice is not known, and none given.
        """
        if notice_s is None:
            if self.key.cloud not in NOTICE_S:
                raise InputError("notice_s", f"none known for {self.key.cloud!r}", "seconds, >= 0")
            notice_s = NOTICE_S[self.key.cloud]
        if not 0 <= notice_s < inf:
            raise InputError("notice_s", str(notice_s), "seconds, >= 0")
        ends = ((h.begin_s, h.end_s) for h in self.held if h.preempted)
        return tuple(Notice(self.key, max(begin, end - notice_s), end) for begin, end in ends)


@dataclass(frozen=True)
class Notice:
    """At `at_s` the cloud says that an instance goes at `deadline_s`."""

    key: PriceKey
    at_s: float
    deadline_s: float

    def enough_for(self, checkpoint_s: float) -> bool:
        """Whether a checkpoint that takes so long is written in time."""
        return checkpoint_s <= self.deadline_s - self.at_s


def notices(all_of: Iterable[Availability], notice_s: float | None = None) -> tuple[Notice, ...]:
    """Of all instances, in the order in which they come."""
    return tuple(sorted((n for a in all_of for n in a.notices(notice_s)), key=lambda n: (n.at_s, n.key)))
