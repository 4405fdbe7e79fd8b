"""Baselines: per-device virtual memory (Harmony, HotOS 2021, section 2).

A strategy keeps its own order, and each device pages values to its host.

Rules of this file: baselines are planned on request only, for a comparison; `hocket plan` does not consider them
otherwise. A value that an operation needs whole, such as a stage's weights, must fit on the device. For strategies in
PACKED, the same task order is planned with packs of layers as well.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil

from hocket.planning.search.bounds.bounds import Bounds
from hocket.planning.search.failures import failed
from hocket.planning.search.make_plan import make_plan
from hocket.planning.search.result import NO_HOST, Refused
from hocket.planning.swapping.candidates import Packs, has_hosts, tried
from hocket.strategies.base.balance import Balancer, runs
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut, period_forwards
from hocket.strategies.base.strategy import complete, config, in_use, microbatches_of, refusal, strategy
from hocket.util.compatibility import Feature, conflict

BASELINES = ("data_parallel", "gpipe", "flush", "model_parallel")
"""Default strategies of the comparison."""
# Candidates of a strategy that are simulated: the fastest by their bounds, and those with the smallest memory bound.
QUICKEST, LEAST = (
    3,
    2,
)
# For strategies that can also run packs of layers: the mode of `harmony` with the same order.
PACKED = {
    "data_parallel": "data",
    "gpipe": "pipeline",
}
PACKS = 48  # maximum number of packs
MOST_FORWARDS = 2048  # maximum number of forwards in one iteration


def plans_with_virtual_memory(
    space: SearchSpace,
    names: Sequence[str],
    policy: str,
    profile_path: str = "",
    progress: Callable[[int, int, str], None] | None = None,
) -> Packs:
    """Plans of some strategies that swap by a policy, as far as memory requires.

    Arguments:
        names: names of the strategies.
        policy: one of SWAPS (search/request.py).
        profile_path: path of the profile, as plans name it.
        progress: called with (done, total, current step).
    """
    found = Packs()
    if not has_hosts(space):
        found.refused += [Refused(name, "", NO_HOST, swaps=True) for name in names]
        return found
    for k, name in enumerate(names):
        at = partial(progress, k, len(names)) if progress else None
        try:
            _try(space, name, policy, profile_path, found, at)
        except Exception as error:
            found.refused.append(failed(name, "", error, swaps=True))
    return found


def _try(
    space: SearchSpace,
    name: str,
    policy: str,
    profile_path: str,
    found: Packs,
    progress: Callable[[str], None] | None,
) -> None:
    """Evaluate candidates of one strategy; the results are added to `found`."""
    at = progress or (lambda what: None)
    at(f"choices of {name}")
    for choice in _choices(space, name, found):
        plan = make_plan(space, name, choice, profile_path)
        words = f"{config(plan.shapes(space.profile))}{' recompute' * choice.stages[0].recompute} swap {policy}"
        at(f"{name} {words}")
        tried(space, plan, words, found, policy)
    for choice in _packed(space, name):
        plan = make_plan(space, "harmony", choice, profile_path)
        words = f"in the order of {name}, {len(plan.stages)} packs swap {policy}"
        at(words)
        tried(space, plan, words, found, policy)


def _choices(space: SearchSpace, name: str, found: Packs) -> Iterator[Candidate]:
    """Yield a strategy's fastest candidates, and those with the least memory.

    Lower bounds decide. Candidates that cannot be compiled, or cannot swap, are added to the refusals of `found`.
    """
    bounds, own = Bounds(space), strategy(name)
    ranked: list[tuple[float, float, int, Candidate]] = []
    for first in own.choices(space):
        for choice in (first, *first.thriftier):
            shapes = bounds.shapes(choice)
            widths = (len(stage.devices) for stage in choice.stages)
            count = microbatches_of(name, space.batch_size, choice.microbatch_size, widths).count
            options = complete(name, choice.options)
            reason = refusal(name, shapes, count, options)
            if reason is None:
                used = in_use(shapes, own.rule(shapes, count, options), options)
                reason = conflict({Feature.SWAP, *used})
            if reason is not None:
                found.refused.append(Refused(name, f"{config(shapes)} b{choice.microbatch_size}", reason, swaps=True))
            elif period_forwards(choice.stages, choice.microbatches) <= MOST_FORWARDS:
                peak = max(bounds.peak_bytes(name, shapes, choice).values())
                ranked.append((bounds.quick_s(choice), peak, len(ranked), choice))
    kept = sorted(ranked, key=lambda one: (one[0], one[2]))[:QUICKEST]
    kept += [one for one in sorted(ranked, key=lambda one: (one[1], one[2]))[:LEAST] if one not in kept]
    for *_, choice in kept:
        yield choice


def _packed(space: SearchSpace, name: str) -> Iterator[Candidate]:
    """Yield `harmony` candidates with packs of layers, in the order of a strategy.

    A microbatch passes through all packs of a device in turn; optimizer steps come last.
    """
    if name not in PACKED:
        return
    mode, devices = PACKED[name], space.cluster.devices
    options = {"mode": mode, "grouping": False, "just_in_time": False}
    for size in space.sizes:
        microbatches = ceil(space.batch_size / size)
        own = Balancer(space.profile, size).cuts(min(len(space.profile.layers), PACKS))
        if (mode == "data" and microbatches < devices) or microbatches * len(own) > MOST_FORWARDS:
            continue
        everywhere = tuple(range(devices))
        stages = tuple(
            cut(space, layers, everywhere if mode == "data" else (k * devices // len(own),))
            for k, layers in enumerate(runs(own[-1]))
        )
        yield Candidate(stages, size, microbatches, options)
