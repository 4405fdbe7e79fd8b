"""Refine plans that swap: keep saved activations (stashes), and prefetch.

Rules of this file: packs and memory stay the same. Each refined plan is proved and simulated like any other, and
kept if it is faster.
"""

from collections.abc import Sequence
from dataclasses import replace

from hocket.planning.search.result import TIE, Evaluated
from hocket.planning.swapping.candidates import Packs, tried
from hocket.strategies.base.search_space import SearchSpace

POLICY = "next_use"
# Largest seconds, relative to the fastest plan, of a plan with many small packs that is considered as well. Estimates
# ignore prefetching, from which many small packs gain most.
FINE = 1.1
KEPT = (1, 2, 4)  # all packs, half and a quarter of them keep their stashes instead of recomputing, in this order
AHEAD = (2, 1)  # numbers of operations ahead for which values are prefetched, in the order of trial


def finalists_of(plain: Sequence[Evaluated]) -> list[Evaluated]:
    """Candidates to refine: the fastest one, and one more that is nearly as fast.

    The second one has the most packs.
    """
    ordered = sorted(plain, key=lambda one: one.iteration_s)
    near = [one for one in ordered if one.iteration_s <= FINE * ordered[0].iteration_s]
    finest = max(near, key=lambda one: len(one.plan.stages), default=None)
    return ordered[:1] if finest is None or finest is ordered[0] else [ordered[0], finest]


def improve(space: SearchSpace, first: Evaluated, found: Packs) -> None:
    """Refine a candidate: keep stashes instead of recomputing, then prefetch.

    Each refinement that is faster is added to `found`. A stash that is kept is swapped if there is no room for it,
    which may cost more or less than recomputation. The stashes of the last packs are needed soonest. So if a plan that
    keeps all stashes is refused, the last half of the packs is tried, then the last quarter.
    """
    best, kept, stages = first, 0, len(first.plan.stages)

    def try_with(count: int, ahead: int) -> Evaluated | None:
        keeps = f" {'all' if count == stages else count} kept" if count else ""
        words = f"{first.config}{keeps}{f' ahead {ahead}' if ahead else ''}"
        known = Packs()
        own = enumerate(first.plan.stages)
        plan = replace(first.plan, stages=tuple(replace(stage, recompute=s < stages - count) for s, stage in own))
        tried(space, plan, words, known, POLICY, ahead)
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
