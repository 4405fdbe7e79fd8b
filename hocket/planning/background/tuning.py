"""Tune the rules of a background job so that it slows the foreground down less.

Rules of this file: rules to try follow from the causes of the foreground's lost time. Each trial changes one rule
and is simulated like the first run. A rule is reported only if it removes at least a quarter of the loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import floor, inf, log10

from hocket.cost.contention import Collocation
from hocket.planning.background.background_job import beside
from hocket.planning.load import LoadedPlan
from hocket.simulation.background.background import Collocated
from hocket.simulation.background.replay import COLLECTIVE

_AIM = 0.02  # share of an iteration that shorter launches may cost: the foreground keeps nearly all of its pace
_LIMIT = 1.5
_MOST_LAUNCHES = 2000  # of an iteration, on all devices: more of them take long to simulate
_WORTH = 0.75  # share of the loss that may be left: a rule that leaves more does not help


@dataclass(frozen=True)
class BackgroundTuning:
    """One set of sharing rules, and the speed of both jobs under it."""

    rules: Collocation
    slowdown: float
    background_samples_per_s: float


def remedies(opened: LoadedPlan, found: Collocated) -> list[BackgroundTuning]:
    """Rules that cost the foreground clearly less time, the best first.

    Arguments:
        opened: the plan.
        found: the plan's run with a background job, from `beside`.
    """
    tried = [beside(opened, found.background, rules, found.devices) for rules in _candidates(found)]
    helped = [one for one in tried if one.slowdown - 1 <= _WORTH * (found.slowdown - 1)]
    made = [BackgroundTuning(one.rules, one.slowdown, sum(one.background_samples_per_s.values())) for one in helped]
    return sorted(made, key=lambda one: one.slowdown)


def _candidates(found: Collocated) -> Iterator[Collocation]:
    """Rules to try, by the causes of lost time."""
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
