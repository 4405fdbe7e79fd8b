"""Where a graph of layers can be cut: downsets (sets closed under predecessors), whose frontiers are antichains.

A stage is the difference of two downsets, one inside the other; a chain of n layers has n + 1 of them. Every figure of
a stage (time, weights, stash) is the difference of two sums over downsets, so a cut is a row of numbers.

Layers that cost nothing are first tied to a neighbour where that can never lengthen a border (exact). When more than
`limit` downsets remain, the cuts are the prefixes of three orders of the layers (branch after branch, branches side by
side, the order that keeps what crosses smallest): a stated rule, no longer every cut, so `Cuts.exact` is False.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.profiling.layer import Layer
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.graph import GraphMasks, bits, downsets, prefixes, tied_to_neighbours

DEFAULT_LIMIT = 1024
ROWS = 64  # of a table over pairs of cuts that are made at once, so that they stay in the processor's cache
_MAX_UNITS = 2.0**61  # of time in all layers together, so that sums stay whole numbers of 64 bits


@dataclass(frozen=True)
class Cuts:
    """Cuts in ascending order of time, each after all cuts inside it.

    The first is empty, the last is the whole graph.

    Attributes:
        masks: each cut's downset as bits over layers.
        words: the same bits in 64-bit words; shape (cuts, words).
        seconds, weights_bytes, stash_bytes, fixed_bytes: sums over each downset; stash with the batch's own tensors,
            fixed is gradients, optimizer state and buffers.
        crossing_bytes: over each cut, forward and back; activation_bytes: forward only.
        tied_bytes: weights of a layer whose parameters an earlier layer shares, which count once in one stage;
        tied_inside: for each such pair and cut, 1 if the earlier layer is inside, plus 2 if the later one is.
        longest_s: of the layer that takes longest.
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
    longest_s: float
    exact: bool

    @cached_property
    def predecessors(self) -> tuple[np.ndarray, np.ndarray]:
        """Cuts inside each cut, nearest first, as (start, list)."""
        return _predecessors(self.words)

    def layers(self, inner: int, outer: int) -> tuple[int, ...]:
        """Layers of the stage between two cuts."""
        return bits(self.masks[outer] & ~self.masks[inner])


def cuts(profile: ModelProfile, microbatch_size: float, limit: int = DEFAULT_LIMIT) -> Cuts:
    """All cuts of a profile's graph; at most about three for each layer if there are more than `limit`."""
    n = len(profile.layers)
    seconds = profile.column("forward_s", microbatch_size) + profile.column("backward_s", microbatch_size)
    stash = profile.column("stash_bytes", microbatch_size)
    layers = profile.layers
    weights = np.array([layer.weights_bytes for layer in layers], dtype=float)
    fixed = np.array([one.gradients_bytes + one.optimizer_bytes + one.buffers_bytes for one in layers], dtype=float)
    sizes = profile.tensor_bytes(microbatch_size)
    for tensor, size in zip(profile.tensors, sizes.tolist(), strict=True):
        if tensor.source < 0 and tensor.targets:
            stash[tensor.targets[0]] += size
    graph = GraphMasks(profile, sizes)
    free = (seconds + weights + fixed == 0).tolist()
    blocks, before = tied_to_neighbours(graph, free)
    found = downsets(blocks, before, limit)
    exact = found is not None
    masks = found if found is not None else prefixes(graph, blocks, before)
    words = _words(masks, n)
    inside = np.unpackbits(words.view(np.uint8), axis=1, count=n, bitorder="little").astype(float)
    # Ascending time, smaller first: in whole femtoseconds (larger units for hours), so that rounding never puts a set before
    # its subset.
    units_a_second = min(1e15, _MAX_UNITS / max(float(seconds.sum()), 1.0))
    whole = inside.astype(np.int64) @ np.rint(seconds * units_a_second).astype(np.int64)
    order = np.lexsort((inside.sum(axis=1), whole))
    inside = inside[order]
    both, forward = graph.crossing(inside)
    pairs = _tied(layers)
    return Cuts(
        masks=tuple(masks[k] for k in order.tolist()),
        words=words[order],
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
        longest_s=float(seconds.max()),
        exact=exact,
    )


def _tied(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """Layers whose parameters earlier layers share, ascending, each with the last of those."""
    names = [name for layer in layers for name in layer.parameters]
    if len(set(names)) == len(names):
        return []
    pairs = []
    last_with: dict[str, int] = {}
    for i, layer in enumerate(layers):
        if layer.parameters and all(name in last_with for name in layer.parameters):
            pairs.append((i, max(last_with[name] for name in layer.parameters)))
        last_with.update(dict.fromkeys(layer.parameters, i))
    return pairs


def _predecessors(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cuts inside each cut, nearest first: those of cut j are list[start[j] : start[j + 1]]."""
    count = len(words)
    inside = np.tri(count, k=-1, dtype=bool)  # [j, i]: cut i is inside cut j; those after it are not
    for begin in range(0, count, ROWS):
        end = min(begin + ROWS, count)
        for word in words.T:
            inside[begin:end, :end] &= (word[:end] & ~word[begin:end, None]) == 0
    start = np.zeros(count + 1, dtype=np.uint32)
    start[1:] = inside.sum(axis=1).cumsum()
    return start, (count - 1 - np.nonzero(inside[:, ::-1])[1]).astype(np.uint32)


def _words(masks: list[int], n: int) -> np.ndarray:
    """Masks as 64-bit words; shape (cuts, words)."""
    width = (n + 63) // 64
    raw = b"".join(mask.to_bytes(8 * width, "little") for mask in masks)
    return np.frombuffer(raw, dtype="<u8").reshape(len(masks), width)
