"""Time series that is constant between changes, such as a price."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf, isfinite, isnan, nan

import numpy as np

from hocket.errors import InputError


@dataclass(frozen=True)
class Series:
    """Step function: the value is values[i] from times_s[i] on.

    nan means no value, such as an instance that is not on sale. Before the first time the value is nan. After the
    last time the last value continues, because the end of a price is not recorded.

    Attributes:
        times_s: times at which the value changes, in seconds, ascending.
        values: value from each time on; >= 0 or nan.
    """

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.values):
            found = f"{len(self.times_s)} moments and {len(self.values)} values"
            raise InputError("series", found, "equally many of both, at least one")
        wrong = next((t for t in self.times_s if not isfinite(t)), None)
        if wrong is not None:
            raise InputError("series: moment", str(wrong), "a finite number of seconds")
        early = next(((a, b) for a, b in pairwise(self.times_s) if b <= a), None)
        if early is not None:
            found = f"{early[1]:g} s after {early[0]:g} s, not in ascending order"
            raise InputError("series: moment", found, "a later moment than the one before")
        bad = next((k for k, v in enumerate(self.values) if not isnan(v) and not 0 <= v < inf), None)
        if bad is not None:
            place = f"series: value {bad}, from {self.times_s[bad]:g} s on"
            raise InputError(place, str(self.values[bad]), "a finite number >= 0, or nan for no value")

    @classmethod
    def of(cls, changes: Iterable[tuple[float, float]], place: str) -> "Series":
        """Series from (time, value) pairs in any order; duplicates count once.

        Arguments:
            place: name of the series, for the error message.

        Raises:
            InputError: at `place`, two values for one time, or no values.
        """
        found: dict[float, float] = {}
        for moment, value in changes:
            if moment in found and found[moment] != value and not (isnan(value) and isnan(found[moment])):
                raise InputError(place, f"{found[moment]:g} and {value:g} at one moment, {moment:.0f} s", "one value")
            found[moment] = value
        if not found:
            raise InputError(place, "no values", "at least one")
        times = sorted(found)
        return cls(tuple(times), tuple(found[t] for t in times))

    @classmethod
    def constant(cls, value: float, begin_s: float = 0.0) -> "Series":
        """Series with one value from a time on."""
        return cls((begin_s,), (value,))

    def at(self, now_s: float) -> float:
        """Value at a time; nan if there is none."""
        index = bisect_right(self.times_s, now_s) - 1
        return self.values[index] if index >= 0 else nan

    def on(self, times_s: np.ndarray) -> np.ndarray:
        """Values at many times; same shape."""
        index = np.searchsorted(self.times_s, times_s, side="right") - 1
        return np.where(index >= 0, np.array(self.values)[index], nan)

    def integral(self, begin_s: float, end_s: float) -> float:
        """Integral over the seconds between two times; nan if a value is missing."""
        if not begin_s <= end_s:
            raise InputError("series: end", f"{end_s} s", f"at or after the start, {begin_s} s")
        if begin_s == end_s:
            return 0.0
        if begin_s < self.times_s[0] or self._gaps_between(begin_s, end_s):
            return nan
        return self._area(end_s) - self._area(begin_s)

    def between(self, begin_s: float, end_s: float) -> tuple[tuple[float, float], ...]:
        """Steps (start, value) between two times, the first at `begin_s`."""
        first, last = bisect_right(self.times_s, begin_s), bisect_right(self.times_s, end_s)
        inside = [(self.times_s[i], self.values[i]) for i in range(first, last) if self.times_s[i] < end_s]
        found = [(begin_s, self.at(begin_s)), *inside]
        return tuple(step for k, step in enumerate(found) if k == 0 or step[1] != found[k - 1][1])

    def until(self, now_s: float) -> float:
        """Next time after `now_s` from which the value is missing; inf for none."""
        first = bisect_right(self.times_s, now_s)
        return next((self.times_s[i] for i in range(first, len(self.times_s)) if isnan(self.values[i])), inf)

    @cached_property
    def _areas(self) -> np.ndarray:
        """Integral from the first time to each time; missing values count 0.

        `_gaps_between` detects missing values.
        """
        known = np.nan_to_num(np.array(self.values))
        return np.concatenate([[0.0], np.cumsum(known[:-1] * np.diff(self.times_s))])

    @cached_property
    def _gaps(self) -> np.ndarray:
        """Number of steps without a value before each step."""
        return np.concatenate([[0], np.cumsum(np.isnan(self.values))])

    def _gaps_between(self, begin_s: float, end_s: float) -> bool:
        first = bisect_right(self.times_s, begin_s) - 1
        last = bisect_right(self.times_s, end_s) - 1
        last -= self.times_s[last] == end_s  # a step that starts at the end is outside
        return bool(self._gaps[last + 1] - self._gaps[first])

    def _area(self, now_s: float) -> float:
        index = bisect_right(self.times_s, now_s) - 1
        value = self.values[index]
        return float(self._areas[index]) + (0.0 if isnan(value) else value * (now_s - self.times_s[index]))
