"""Remedy: what of the rules of a background job would hold its foreground up for less, tried and not guessed.

Rules of this file: what is tried follows from what the foreground lost its time to, and only what takes a quarter of the loss away is told. Each is
one rule that changes, played like the first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import floor, inf, log10

from hocket.cost.contention import Collocation
from hocket.planning.background.background_job import beside
from hocket.planning.load import LoadedPlan
from hocket.simulation.background.background import Collocated
from hocket.simulation.background.replay import COLLECTIVE

_AIM = 0.02  # of an iteration, that shorter launches are to cost: the foreground keeps nearly all of its pace
_LIMIT = 1.5
_MOST_LAUNCHES = 2000  # of an iteration, on all devices: shorter ones take long to play
_WORTH = 0.75  # of the loss, that is left at most: less help is none


@dataclass(frozen=True)
class BackgroundTuning:
    """One sharing rule, and both jobs under it."""

    rules: Collocation
    slowdown: float
    background_samples_per_s: float


def remedies(opened: LoadedPlan, found: Collocated) -> list[BackgroundTuning]:
    """Rules under which a foreground loses clearly less than it does, the best first.

    Arguments:
        opened, found: a plan and its run with a background job, by `beside`.
    """
    tried = [beside(opened, found.background, rules, found.devices) for rules in _candidates(found)]
    helped = [one for one in tried if one.slowdown - 1 <= _WORTH * (found.slowdown - 1)]
    made = [BackgroundTuning(one.rules, one.slowdown, sum(one.background_samples_per_s.values())) for one in helped]
    return sorted(made, key=lambda one: one.slowdown)


def _candidates(found: Collocated) -> Iterator[Collocation]:
    """Rules to try, for what time was lost to."""
    rules, lost_s = found.rules, found.lost_s
    if sum(seconds for kind, seconds in lost_s.items() if kind != COLLECTIVE) > 0:
        if not rules.priority:
            yield replace(rules, priority=True)
        if rules.outstanding > 1:
            yield replace(rules, outstanding=1)
        longest_s = max(launch.seconds for launch in found.background.divided(rules.launch_s).launches)
        least_s = found.steady[0].iteration_s * len(found.devices) / _MOST_LAUNCHES
        shorter_s = _round_down(max(least_s, min(1.0, _AIM / (found.slowdown - 1)) * longest_s))
        if shorter_s < longest_s:
            yield replace(rules, launch_s=shorter_s)
    if rules.slowdown_limit == inf and (lost_s.get(COLLECTIVE, 0.0) > 0 or (rules.beside and found.room)):
        yield replace(rules, slowdown_limit=_LIMIT)


def _round_down(seconds: float) -> float:
    """Round down to one, two or five times a power of ten."""
    power = float(10 ** floor(log10(seconds) + 1e-9))
    return next(k * power for k in (5, 2, 1) if k * power <= seconds * (1 + 1e-9))
