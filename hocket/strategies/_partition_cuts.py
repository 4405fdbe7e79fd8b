"""Where a graph of layers can be cut: downsets (sets closed under predecessors), whose frontiers are antichains.

A stage is the difference of two downsets, one inside the other; a chain of n layers has n + 1 of them. Every figure of
a stage (time, weights, stash) is the difference of two sums over downsets, so a cut is a row of numbers.

Layers that cost nothing are first tied to a neighbour where that can never lengthen a border (exact). When more than
`limit` downsets remain, the cuts are the prefixes of three orders of the layers (branch after branch, branches side by
side, the order that keeps what crosses smallest): a stated rule, no longer every cut, so `Cuts.exact` is False.
"""

from dataclasses import dataclass

import numpy as np

from hocket.profile.model import ModelProfile

DEFAULT_LIMIT = 1024


@dataclass(frozen=True)
class Cuts:
    """The cuts, ascending by time, each after all cuts inside it: the first is empty, the last is the whole graph.

    Attributes:
        masks: each cut's downset as bits over layers.
        words: the same bits in 64-bit words; shape (cuts, words).
        seconds, weights_bytes, stash_bytes, fixed_bytes: sums over each downset; stash with the batch's own tensors,
            fixed is gradients, optimizer state and buffers.
        crossing_bytes: over each cut, forward and back; activation_bytes: forward only.
        tied_bytes: weights of a layer whose parameters an earlier layer shares, which count once in one stage;
        tied_inside: for each such pair and cut, 1 if the earlier layer is inside, plus 2 if the later one is.
        exact: whether every useful cut is there.
    """

    masks: tuple[int, ...]
    words: np.ndarray
    seconds: np.ndarray
    weights_bytes: np.ndarray
    stash_bytes: np.ndarray
    fixed_bytes: np.ndarray
    crossing_bytes: np.ndarray
    activation_bytes: np.ndarray
    tied_bytes: np.ndarray
    tied_inside: np.ndarray
    exact: bool

    def layers(self, inner: int, outer: int) -> tuple[int, ...]:
        """Layers of the stage between two cuts."""
        return bits(self.masks[outer] & ~self.masks[inner])


def bits(mask: int) -> tuple[int, ...]:
    """Positions of the ones."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def cuts(profile: ModelProfile, microbatch_size: float, limit: int = DEFAULT_LIMIT) -> Cuts:
    """All cuts of a profile's graph, or at most about three per layer when there are more than `limit`."""
    n = len(profile.layers)
    seconds = profile.column("forward_s", microbatch_size) + profile.column("backward_s", microbatch_size)
    stash = profile.column("stash_bytes", microbatch_size)
    weights, fixed, tied = np.zeros(n), np.zeros(n), {}
    last_with: dict[str, int] = {}
    for i, layer in enumerate(profile.layers):
        weights[i] = layer.weights_bytes
        fixed[i] = layer.gradients_bytes + layer.optimizer_bytes + layer.buffers_bytes
        if layer.parameters and all(name in last_with for name in layer.parameters):
            tied[i] = max(last_with[name] for name in layer.parameters)
        last_with.update(dict.fromkeys(layer.parameters, i))
    sizes = profile.tensor_bytes(microbatch_size)
    for tensor, size in zip(profile.tensors, sizes.tolist(), strict=True):
        if tensor.source < 0 and tensor.targets:
            stash[tensor.targets[0]] += size
    graph = _Graph(profile, sizes)
    free = (seconds + weights + fixed == 0).tolist()
    blocks, before = _tied_to_neighbours(graph, free)
    found = _downsets(blocks, before, limit)
    exact = found is not None
    masks = found if found is not None else _prefixes(graph, blocks, before)
    inside = _members(masks, n)
    # Ascending time, smaller first: in whole femtoseconds, so that rounding never puts a set before its subset.
    whole = inside.astype(np.int64) @ np.rint(seconds * 1e15).astype(np.int64)
    order = np.lexsort((inside.sum(axis=1), whole))
    masks, inside = [masks[k] for k in order.tolist()], inside[order]
    both, forward = graph.crossing(masks)
    pairs = sorted(tied.items())
    return Cuts(
        masks=tuple(masks),
        words=_words(masks, n),
        seconds=inside @ seconds,
        weights_bytes=inside @ weights,
        stash_bytes=inside @ stash,
        fixed_bytes=inside @ fixed,
        crossing_bytes=both,
        activation_bytes=forward,
        tied_bytes=np.array([weights[b] for b, _ in pairs]),
        tied_inside=np.array(
            [inside[:, a] + 2 * inside[:, b] for b, a in pairs] if pairs else np.zeros((0, len(masks))), dtype=np.int8
        ),
        exact=exact,
    )


class _Graph:
    """Predecessors, successors and tensors as bit masks over layers."""

    def __init__(self, profile: ModelProfile, sizes: np.ndarray) -> None:
        self.n = len(profile.layers)
        self.before = [0] * self.n
        self.after = [0] * self.n
        self.tensors: list[tuple[int, int, float, bool]] = []  # source, mask of targets, bytes, has a gradient
        for tensor, size in zip(profile.tensors, sizes.tolist(), strict=True):
            if tensor.source < 0 or not tensor.targets:
                continue
            readers = 0
            for target in tensor.targets:
                readers |= 1 << target
                self.before[target] |= 1 << tensor.source
            self.after[tensor.source] |= readers
            self.tensors.append((tensor.source, readers, size, tensor.gradient))

    def crossing(self, masks: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Bytes over every cut: forward and back, forward only."""
        both, forward = np.zeros(len(masks)), np.zeros(len(masks))
        for k, mask in enumerate(masks):
            for source, readers, size, gradient in self.tensors:
                if mask >> source & 1 and readers & ~mask:
                    forward[k] += size
                    both[k] += size * (2 if gradient else 1)
        return both, forward


def _tied_to_neighbours(graph: _Graph, free: list[bool]) -> tuple[list[int], list[int]]:
    """Group layers into blocks that no useful cut divides: masks of the layers, and of the blocks before each.

    A layer that costs nothing joins its first reader, when that one precedes all other readers and moving the layer
    there replaces its output by inputs that are no larger. Otherwise it joins its only source, when it is that
    source's only reader and its output is no larger. Neither can lengthen a border at any cut.
    """
    n = graph.n
    owner = list(range(n))
    out = [0.0] * n
    for source, _, size, _ in graph.tensors:
        out[source] += size
    above = [0] * n  # all successors
    if any(free):
        for i in range(n - 1, -1, -1):
            for j in bits(graph.after[i]):
                above[i] |= above[j] | 1 << j
    for i in range(n - 1, -1, -1):
        if not free[i]:
            continue
        readers, sources = bits(graph.after[i]), bits(graph.before[i])
        if readers and out[i] >= sum(out[s] for s in sources):
            rest = graph.after[i] & ~(1 << readers[0])
            if rest & ~above[readers[0]] == 0 and owner[readers[0]] != i:
                owner[i] = readers[0]
                continue
        if len(sources) == 1 and graph.after[sources[0]] == 1 << i and out[i] <= out[sources[0]]:
            owner[i] = sources[0]
    roots = [_root(owner, i) for i in range(n)]
    names = sorted(set(roots))
    number = {root: b for b, root in enumerate(names)}
    layers, before = [0] * len(names), [0] * len(names)
    for i in range(n):
        b = number[roots[i]]
        layers[b] |= 1 << i
        for source in bits(graph.before[i]):
            if roots[source] != roots[i]:
                before[b] |= 1 << number[roots[source]]
    return layers, before


def _root(owner: list[int], i: int) -> int:
    while owner[i] != i:
        i = owner[i]
    return i


def _downsets(blocks: list[int], before: list[int], limit: int) -> list[int] | None:
    """Every downset as a mask of layers, ascending by size; None when there are more than `limit`."""
    count = len(blocks)
    after: list[list[int]] = [[] for _ in range(count)]
    ready = 0
    for b in range(count):
        for a in bits(before[b]):
            after[a].append(b)
        if not before[b]:
            ready |= 1 << b
    current = {0: (ready, 0)}  # mask of blocks -> blocks that may come next, mask of layers
    masks = [0]
    while current:
        following: dict[int, tuple[int, int]] = {}
        for mask, (ready, layers) in current.items():
            for b in bits(ready):
                grown = mask | 1 << b
                if grown in following:
                    continue
                opened = ready & ~(1 << b)
                for c in after[b]:
                    if before[c] & ~grown == 0:
                        opened |= 1 << c
                following[grown] = (opened, layers | blocks[b])
        masks.extend(layers for _, layers in following.values())
        if len(masks) > limit:
            return None
        current = following
    return masks


def _prefixes(graph: _Graph, blocks: list[int], before: list[int]) -> list[int]:
    """Prefixes of three orders of the blocks, as masks of layers, ascending by size."""
    count = len(blocks)
    after: list[list[int]] = [[] for _ in range(count)]
    for b in range(count):
        for a in bits(before[b]):
            after[a].append(b)
    size_out = [0.0] * graph.n
    for source, _, size, _ in graph.tensors:
        size_out[source] += size
    born = [sum(size_out[i] for i in bits(block)) for block in blocks]

    def order(deep: bool, smallest: bool) -> list[int]:
        done, turn, waiting = 0, 0, [0] * count
        opened = {b: 0 for b in range(count) if not before[b]}
        readers_left = [len(a) for a in after]
        chosen = []
        while opened:

            def rank(b: int) -> tuple[float, int]:
                if smallest:
                    freed = sum(born[a] for a in bits(before[b]) if readers_left[a] == 1)
                    return (born[b] - freed if after[b] else -freed, b)
                return (-opened[b] if deep else opened[b], b)

            b = min(opened, key=rank)
            del opened[b]
            chosen.append(b)
            done |= 1 << b
            turn += 1
            for a in bits(before[b]):
                readers_left[a] -= 1
            for c in after[b]:
                waiting[c] += 1
                if before[c] & ~done == 0:
                    opened[c] = turn
        return chosen

    found = {0}
    for deep, smallest in ((True, False), (False, False), (False, True)):
        mask = 0
        for b in order(deep, smallest):
            mask |= blocks[b]
            found.add(mask)
    return sorted(found, key=lambda mask: (mask.bit_count(), mask))


def _members(masks: list[int], n: int) -> np.ndarray:
    """Which layers stand in each downset; shape (cuts, layers), zeros and ones."""
    raw = _words(masks, n).view(np.uint8)
    unpacked: np.ndarray = np.unpackbits(raw, axis=1, count=n, bitorder="little").astype(float)
    return unpacked


def _words(masks: list[int], n: int) -> np.ndarray:
    """Masks as 64-bit words; shape (cuts, words)."""
    width = (n + 63) // 64
    raw = b"".join(mask.to_bytes(8 * width, "little") for mask in masks)
    return np.frombuffer(raw, dtype="<u8").reshape(len(masks), width)
