"""Find the deepest model that the given devices can train, by strategy.

The model is made deeper by repeating the profile's block.

Rules of this file: a depth counts if one of the strategy's candidates is proved to fit, as `check` proves it;
nothing is simulated. With swapping, a device needs room for one operation only, whatever the depth, and host memory
limits the depth. The host memory that is needed is proved for two depths and extrapolated linearly.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NamedTuple

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster
from hocket.planning.predict.predict import proven_peaks
from hocket.planning.search.bounds.bounds import Bounds
from hocket.planning.swapping.budgets import by_server
from hocket.planning.swapping.candidates import on_hosts
from hocket.planning.swapping.search import SWAPPING, smallest_packs
from hocket.profiling.analytic.repeat_blocks import LEAST, RepeatedBlock, lengthened, repeated_block
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import MAX_FORWARDS, Candidate, SearchSpace, period_forwards, shared
from hocket.strategies.base.strategy import complete, microbatches_of, missing, refusal, searched, strategy
from hocket.util.units import show_bytes, show_count, show_shortage

MOST_LAYERS = 192  # most layers that are tried; of a strategy that fits, `MaxDepth.more` says that more may fit
FIRST = 6  # if LEAST blocks do not fit, up to this many more are tried, until a depth fits
TRIED = 6  # number of candidates of a depth that are proved, those with the smallest memory bound first


@dataclass(frozen=True)
class MaxDepth:
    """Deepest model of one strategy.

    Attributes:
        blocks: largest number of blocks that fits; 0 if none was found.
        layers, weights_bytes: number of layers, and bytes of weights, of the model with this depth.
        config: label of the candidate that fits.
        limit: reason why one more block, or LEAST blocks if `blocks` is 0, does not fit; empty if more blocks were not
            tried.
        more: True if more blocks may fit, because they were not tried.
    """

    strategy: str
    blocks: int
    layers: int
    weights_bytes: float
    config: str = ""
    limit: str = ""
    more: bool = False


def largest(
    profile: ModelProfile,
    cluster: Cluster,
    batch_size: int,
    strategies: Sequence[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[MaxDepth, ...]:
    """Deepest model of each strategy and of plans that swap, the deepest first.

    Arguments:
        strategies: names; if empty, all strategies, including those with stale weights or two waves.

    Raises:
        RefusedError: no block of layers is repeated LEAST times in the profile.
    """
    block = repeated_block(profile)
    if block is None:
        raise RefusedError(
            "profile",
            "no block of layers that is repeated three times",
            "a repeated block, which makes deeper models possible",
        )
    names = list(dict.fromkeys((*(strategies or searched()), SWAPPING)))
    found = []
    for k, name in enumerate(names):
        at = partial(progress, k, len(names)) if progress else (lambda what: None)
        search = _swapped if name == SWAPPING else _staying
        found.append(search(name, profile, cluster, batch_size, block, at))
    return tuple(sorted(found, key=lambda one: (-one.blocks, one.strategy)))


def block_in_words(profile: ModelProfile) -> str:
    """Description of the repeated block; empty if nothing repeats.

    It names the layers, their bytes and the number of blocks.
    """
    block = repeated_block(profile)
    if block is None:
        return ""
    own = range(block.first, block.first + block.size)
    first, last = profile.layers[own[0]].name, profile.layers[own[-1]].name
    layers = f"{show_count(block.size, 'layer')}, {first}{f' to {last}' if block.size > 1 else ''}"
    weights = show_bytes(profile.weights_bytes(own))
    seen = f"the profile has {block.times} of it, and fewer than {LEAST} are not tried"
    return f"a block: {layers}, {weights} of weights; {seen}"


def _staying(
    name: str, profile: ModelProfile, cluster: Cluster, batch_size: int, block: RepeatedBlock, at: Callable[[str], None]
) -> MaxDepth:
    """Deepest model that fits without swapping: the deepest that is tried, or found by doubling, then bisection."""
    most = max(LEAST, (MOST_LAYERS - len(profile.layers)) // block.size + block.times)
    known: dict[int, _Tried] = {}

    def fits(times: int) -> bool:
        if times not in known:
            at(f"{name}, {times} blocks")
            deeper = lengthened(profile, block, times)
            known[times] = _choice(name, SearchSpace(deeper, cluster, batch_size))
        return known[times].config is not None

    # A strategy may need more than LEAST blocks, such as a layer for each chunk.
    low = high = next((times for times in range(LEAST, min(most, LEAST + FIRST) + 1) if fits(times)), 0)
    if not low:
        return MaxDepth(name, 0, 0, 0.0, limit=f"{LEAST} blocks: {known[LEAST].lacks}")
    low = most if fits(most) else low  # of a small model, every depth fits
    while low < most and fits(high := min(2 * low, most)):
        low = high
    if low < most:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
    limit = "" if low == most else f"{high} blocks: {known[high].lacks}"
    return _largest(name, profile, block, low, known[low].config or "", limit)


class _Tried(NamedTuple):
    """Result of the search for a plan of a model of one depth (number of repeated blocks).

    Attributes:
        config: label of the candidate that is proved to fit; None if there is none.
        lacks: reason why no candidate fits: memory that the nearest one lacks, or a refusal; empty if one fits.
    """

    config: str | None
    lacks: str = ""


def _choice(name: str, space: SearchSpace) -> _Tried:
    """Find a candidate of a strategy that is proved to fit."""
    bounds, cluster = Bounds(space), space.cluster
    capacity = {device: cluster.capacity_bytes(device) for device in range(cluster.devices)}
    waiting: list[tuple[float, int, Candidate]] = []
    near, lacks = inf, ""

    def fullest(peaks: Mapping[int, float]) -> tuple[float, int]:
        return max((peaks[device] / capacity[device], device) for device in peaks)

    def missed(peaks: Mapping[int, float], words: str) -> None:
        nonlocal near, lacks
        share, device = fullest(peaks)
        if share < near:
            near = share
            needed, available = show_shortage(peaks[device], capacity[device])
            lacks = f"device {device} needs {words}{needed} and has {available}"

    try:
        for choice in _variants(name, space):
            shapes = bounds.shapes(choice)
            widths = (len(stage.devices) for stage in choice.stages)
            batches = microbatches_of(name, space.batch_size, choice.microbatch_size, widths)
            refused = refusal(name, shapes, batches.count, complete(name, choice.options))
            if refused:
                lacks = lacks or refused
                continue
            if period_forwards(choice.stages, choice.microbatches) > MAX_FORWARDS:
                continue
            peaks = bounds.peak_bytes(name, shapes, choice)
            share, _ = fullest(peaks)
            if share <= 1:
                waiting.append((share, len(waiting), choice))
            else:
                missed(peaks, "at least ")
    except RefusedError as error:
        return _Tried(None, f"{error.found}; expected {error.expected}" if error.expected else str(error))
    for _, _, choice in sorted(waiting, key=lambda one: one[:2])[:TRIED]:
        peaks = proven_peaks(space, name, choice)
        if fullest(peaks)[0] <= 1:
            shards = {stage.shard for stage in choice.stages} - {"none"}
            words = (
                f"{show_count(len(choice.stages), 'stage')} b{choice.microbatch_size}",
                *(f"shard={one}" for one in shards),
            )
            again = ("recompute",) if any(stage.recompute for stage in choice.stages) else ()
            return _Tried(" ".join((*words, *again)))
        missed(peaks, "up to ")
    return _Tried(None, lacks or missing(name, space) or "this strategy has no candidate here")


def _variants(name: str, space: SearchSpace) -> Iterator[Candidate]:
    """Yield all candidates of a strategy, and variants of them that need less memory."""
    for choice in strategy(name).choices(space):
        for one in (choice, *choice.thriftier):
            yield one
            thrifty = shared(one)
            if thrifty is not None:
                yield replace(thrifty, thriftier=())


def _swapped(
    name: str, profile: ModelProfile, cluster: Cluster, batch_size: int, block: RepeatedBlock, at: Callable[[str], None]
) -> MaxDepth:
    """Deepest model of plans that swap: the depth at which a host is full.

    The host memory that is needed is extrapolated linearly from two depths.
    """
    depths = (max(LEAST, block.times), max(LEAST, block.times) + LEAST)
    needs, config = [], ""
    for times in depths:
        at(f"{name}, what hosts need for {times} blocks")
        deeper = lengthened(profile, block, times)
        try:
            run = smallest_packs(SearchSpace(deeper, cluster, batch_size))
        except RefusedError as error:
            return MaxDepth(name, 0, 0, 0.0, limit=f"{error.place}: {error.found}")
        needs.append(by_server(on_hosts(run), cluster))
        each = len(deeper.layers) / len(run.cuts)
        packs = "packs of one layer" if each == 1 else f"packs of {each:.2g} layers"
        config = f"{run.options['mode']}, {packs} b{run.batch[1]}"
    width, most = cluster.levels[0].width, []
    for server, first in needs[0].items():
        has = cluster.host_bytes(server * width)
        if has is None:
            limit = f"the host memory of server {server} is unknown: set host_memory_bytes in the cluster file"
            return MaxDepth(name, 0, 0, 0.0, limit=limit)
        slope = (needs[1][server] - first) / (depths[1] - depths[0])
        most.append((depths[0] + (has - first) / slope, server, first, slope, has))
    deepest, server, first, slope, has = min(most)
    times = int(deepest)
    more = max(times + 1, LEAST)
    needed, available = show_shortage(first + slope * (more - depths[0]), has)
    limit = f"{more} blocks: the host of server {server} needs {needed} and has {available}"
    if times < LEAST:
        return MaxDepth(name, 0, 0, 0.0, limit=limit)
    return _largest(name, profile, block, times, config, limit)


def _largest(name: str, profile: ModelProfile, block: RepeatedBlock, times: int, config: str, limit: str) -> MaxDepth:
    """Deepest model that a strategy can train, as a `MaxDepth`.

    Arguments:
        times: largest number of blocks that fits.
        limit: reason why one more block does not fit; empty if more blocks were not tried.
    """
    own = range(block.first + block.size, block.first + 2 * block.size)
    layers = len(profile.layers) + (times - block.times) * block.size
    weights = profile.unique_weights_bytes + (times - block.times) * profile.weights_bytes(own)
    return MaxDepth(name, times, layers, weights, config, limit, more=not limit)
