"""Tune how a background job shares devices, to slow the foreground down less.

Rules of this file: the settings of `Collocation` to try follow from the causes of the foreground's lost time. Each
trial changes one setting and is simulated like the first run. It is reported only if it removes at least a quarter of
the loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import floor, inf, log10

from hocket.cost.contention import Collocation
from hocket.planning.background.background_job import beside
from hocket.planning.background.excerpt import part_of
from hocket.planning.load import LoadedPlan
from hocket.simulation.background.background import Collocated
from hocket.simulation.background.replay import COLLECTIVE

_AIM = 0.02  # slowdown of the foreground, as a share of an iteration, that shorter launches aim at
_LIMIT = 1.5  # `Collocation.slowdown_limit` to try
_MOST_LAUNCHES = 2000  # launches of an iteration on all devices together: more of them take long to simulate
_WORTH = 0.75  # share of the slowdown that may be left: a setting that leaves more does not help


@dataclass(frozen=True)
class BackgroundTuning:
    """Settings for sharing devices, and the speed of both jobs with them.

    Attributes:
        rules: how both jobs share a device.
        slowdown: iteration time of the foreground, relative to its iteration time alone.
        background_samples_per_s: throughput of the background job, summed over devices.
    """

    rules: Collocation
    slowdown: float
    background_samples_per_s: float


def remedies(opened: LoadedPlan, found: Collocated) -> list[BackgroundTuning]:
    """Sharing settings that slow the foreground clearly less, the best first.

    Arguments:
        opened: the foreground plan.
        found: simulated run of the plan with a background job, from `beside`.
    """
    part = part_of(opened, frozenset(found.devices))
    tried = [beside(opened, found.background, rules, found.devices, part) for rules in _candidates(found)]
    helped = [one for one in tried if one.slowdown - 1 <= _WORTH * (found.slowdown - 1)]
    made = [BackgroundTuning(one.rules, one.slowdown, sum(one.background_samples_per_s.values())) for one in helped]
    return sorted(made, key=lambda one: one.slowdown)


def _candidates(found: Collocated) -> Iterator[Collocation]:
    """Yield settings to try, each with one change, by the causes of lost time."""
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
