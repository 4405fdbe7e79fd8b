"""Reasons why plans with waves are not the best of a search, in a line each.

Rules of this file: waves compete with all other strategies under the same memory limits. The reasons come from
simulations of both plans.
"""

from collections.abc import Iterator

from hocket.planning.predict.predict import played
from hocket.planning.search.result import TIE, Evaluated, Refused, Search
from hocket.simulation.summary import Summary, summarize
from hocket.strategies.base.search_space import MAX_FORWARDS
from hocket.util.units import show_bytes, show_gap

NAMES = ("waves", "tick_tock")
_FULL = 0.9  # busy share of the least busy device from which a plan is said to leave devices no idle time


def why_not(found: Search) -> Iterator[str]:
    """Yield a line for each wave strategy that was searched and is not the best."""
    best = found.best
    for name in NAMES:
        own = [one for one in found.candidates if one.strategy == name]
        refused = [one for one in found.refused if one.strategy == name]
        if best.strategy == name:
            continue
        if own:
            nearest = min(own, key=lambda one: one.iteration_s)
            gap = nearest.iteration_s / best.iteration_s - 1
            yield f"{name}: {nearest.config} b{nearest.plan.microbatch_size} {_behind(gap)}: {_reason(found, nearest)}"
        elif refused:
            miss = min(refused, key=_missing)
            yield f"{name}: refused, {f'{miss.config}: ' if miss.config else ''}{miss.reason}"


def _missing(one: Refused) -> tuple[bool, float]:
    return not one.missing_bytes, one.missing_bytes


def _behind(gap: float) -> str:
    return f"takes {gap:.1%} more" if gap > TIE else f"{show_gap(gap)}, which counts as equal"


def _reason(found: Search, other: Evaluated) -> str:
    """Reason why the best plan is better."""
    best = found.best
    mine, theirs = _summary(found, best), _summary(found, other)
    if mine is None or theirs is None:
        return f"its bubble is {other.bubble_fraction:.1%}, that of {best.strategy} {best.bubble_fraction:.1%}"
    busy, idle = _busy(mine), _busy(theirs)
    sent = [sum(one.sent_bytes.values()) for one in (mine, theirs)]
    more = f"it sends {show_bytes(sent[1])} an iteration, {best.strategy} {show_bytes(sent[0])}"
    if busy >= _FULL:
        full = f"{best.strategy} computes {busy:.0%} of the time on every device, which leaves waves nothing to fill"
        return f"{full}, and {more}" if sent[1] > sent[0] else full
    if sent[1] > sent[0]:
        return more
    return f"its devices compute {idle:.0%} of the time, those of {best.strategy} {busy:.0%}"


def _busy(summary: Summary) -> float:
    """Busy share of the least busy device."""
    return min(summary.utilization.values())


def _summary(found: Search, one: Evaluated) -> Summary | None:
    """Summary of a candidate's simulation; None if the simulation would take long."""
    plan = one.plan
    if plan.microbatches * len(plan.stages) > MAX_FORWARDS:
        return None
    return summarize(played(plan, found.loaded(one).profile), plan.tensor, plan.slices)
