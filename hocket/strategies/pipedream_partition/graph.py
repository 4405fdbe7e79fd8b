"""Layer graph of a profile as bit masks, and its downsets (cuts.py)."""

from itertools import accumulate, chain

import numpy as np

from hocket.profiling.profile import ModelProfile


def bits(mask: int) -> tuple[int, ...]:
    """Positions of the bits that are set, ascending."""
    if mask & (mask - 1) == 0:  # mostly there is one
        return (mask.bit_length() - 1,) if mask else ()
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


class GraphMasks:
    """Layer graph with the predecessors and successors of each layer as bit masks.

    Arguments:
        sizes: bytes of each tensor of the profile.

    Attributes:
        n: number of layers.
        before: for each layer, bit mask of the layers that it reads from.
        after: for each layer, bit mask of the layers that read its outputs.
        tensors: the tensors that a layer writes and another reads, as tuples.
    """

    def __init__(self, profile: ModelProfile, sizes: np.ndarray) -> None:
        self.n = len(profile.layers)
        self.before = [0] * self.n
        self.after = [0] * self.n
        self.tensors: list[tuple[int, tuple[int, ...], float, bool]] = []  # source, targets, bytes, has a gradient
        for tensor, size in zip(profile.tensors, sizes.tolist(), strict=True):
            if tensor.source < 0 or not tensor.targets:
                continue
            readers = 0
            for target in tensor.targets:
                readers |= 1 << target
                self.before[target] |= 1 << tensor.source
            self.after[tensor.source] |= readers
            self.tensors.append((tensor.source, tensor.targets, size, tensor.gradient))

    def crossing(self, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that cross every cut: in both directions, and forward only.

        Arguments:
            inside: 1 if a layer is inside a cut, else 0; shape (cuts, layers).
        """
        if not self.tensors:
            return np.zeros(len(inside)), np.zeros(len(inside))
        sources, readers, sizes, gradients = zip(*self.tensors, strict=True)
        starts = list(accumulate(map(len, readers[:-1]), initial=0))
        held = np.ascontiguousarray(inside.T)  # sums over the first axis then follow the order of the tensors
        every_reader = np.minimum.reduceat(held[list(chain.from_iterable(readers))], starts, axis=0)
        over = held[list(sources)] * (1 - every_reader)
        over *= np.array(sizes)[:, None]
        forward = over.sum(axis=0)
        over *= np.array([2.0 if gradient else 1.0 for gradient in gradients])[:, None]
        return over.sum(axis=0), forward


def tied_to_neighbours(graph: GraphMasks, free: list[bool]) -> tuple[list[int], list[int]]:
    """Group layers into blocks that no useful cut divides.

    A layer without cost joins its first reader if this reader precedes all other readers and the layer's inputs
    together are no larger than its output. Otherwise it joins its only source if the layer is the source's only
    reader and its output is no larger than the source's. Neither adds bytes to any cut.

    Arguments:
        free: for each layer, True if it has no seconds, weights or other fixed bytes.

    Returns:
        For each block, the bit mask of its layers, and the bit mask of the blocks that it reads from.
    """
    n = graph.n
    owner = list(range(n))
    out = [0.0] * n
    for source, _, size, _ in graph.tensors:
        out[source] += size
    above = [0] * n  # all successors; needed if a layer without cost has several readers
    if any(alone and readers & (readers - 1) for alone, readers in zip(free, graph.after, strict=True)):
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


def downsets(blocks: list[int], before: list[int], limit: int) -> list[int] | None:
    """Enumerate all downsets of a graph of blocks, by ascending number of blocks.

    Arguments:
        blocks: bit mask of each block's layers.
        before: bit mask of the blocks that each block reads from.

    Returns:
        Bit masks over layers; None if there are more than `limit`.
    """
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
                masks.append(layers | blocks[b])
        if len(masks) > limit:
            return None
        current = following
    return masks


def prefixes(graph: GraphMasks, blocks: list[int], before: list[int]) -> list[int]:
    """Prefixes of three topological orders of blocks, by ascending number of layers.

    The orders are depth first, breadth first, and the order with the fewest bytes over the cuts, chosen step by step.

    Arguments:
        blocks: bit mask of each block's layers.
        before: bit mask of the blocks that each block reads from.

    Returns:
        Bit masks over layers.
    """
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
