"""Plans that swap, improved: stashes that are kept instead of made again, and values that are swapped in ahead of their use.

Rules of this file: the same packs, the same memory; each is proved and simulated like any other plan, and is one where it is quicker.
"""

from collections.abc import Sequence
from dataclasses import replace

from hocket.planning.plan import Plan
from hocket.planning.search.result import TIE, Evaluated
from hocket.planning.swapping.candidates import Packs, tried
from hocket.strategies.base.search_space import SearchSpace

POLICY = "next_use"
FINE = 1.1  # what the finest may take of the quickest by the tuner's clock, which does not fetch ahead: many small packs gain most by it
KEPT = (1, 2, 4)  # one of so many packs keeps its stash instead of making it again, in the order in which that is tried
AHEAD = (2, 1)  # operations ahead of which values are swapped in


def finalists_of(plain: Sequence[Evaluated]) -> list[Evaluated]:
    """Candidates for refinement: the fastest, and the one with most packs among those nearly as fast."""
    ordered = sorted(plain, key=lambda one: one.iteration_s)
    near = [one for one in ordered if one.iteration_s <= FINE * ordered[0].iteration_s]
    finest = max(near, key=lambda one: len(one.plan.stages), default=None)
    return ordered[:1] if finest is None or finest is ordered[0] else [ordered[0], finest]


def improve(situation: SearchSpace, first: Evaluated, found: Packs) -> None:
    """Refine candidates: keep stashes instead of recomputing, then prefetch, each if faster.

    A stash that is kept is swapped where there is no room for it, which takes more or less time than to compute it again. Those of the last
    packs are needed soonest: where there is no room to keep all, half as many are tried, and a quarter.
    """
    best, kept, stages = first, 0, len(first.plan.stages)

    def try_with(count: int, ahead: int) -> Evaluated | None:
        keeps = f" {'all' if count == stages else count} kept" if count else ""
        words = f"{first.config}{keeps}{f' ahead {ahead}' if ahead else ''}"
        known = Packs()
        tried(situation, _keeping(first.plan, count), words, known, POLICY, ahead)
        found.considered += known.considered
        found.refused += known.refused
        return next(iter(known.candidates), None)

    def gains(one: Evaluated | None) -> bool:
        nonlocal best
        if one is None or one.iteration_s >= best.iteration_s * (1 - TIE):
            return False
        found.candidates.append(one)
        best = one
        return True

    for count in (stages // part for part in KEPT if stages >= part):
        one = try_with(count, 0)
        if one is not None:
            kept = count if gains(one) else 0
            break
    for ahead in AHEAD:
        for count in dict.fromkeys((kept, kept // 2)):
            one = try_with(count, ahead)
            if one is not None:
                gains(one)
                break


def _keeping(plan: Plan, count: int) -> Plan:
    """A plan of which so many of the last packs keep their stashes."""
    first = len(plan.stages) - count
    return replace(plan, stages=tuple(replace(stage, recompute=s < first) for s, stage in enumerate(plan.stages)))
