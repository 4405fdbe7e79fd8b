"""Where a graph of layers can be cut: downsets (sets closed under predecessors), whose frontiers are antichains.

A stage is the difference of two downsets, one inside the other; a chain of n layers has n + 1 of them. Every figure of
a stage (time, weights, stash) is the difference of two sums over downsets, so a cut is a row of numbers.

Layers that cost nothing are first tied to a neighbour where that can never lengthen a border (exact). When more than
`limit` downsets remain, the cuts are the prefixes of three orders of the layers (branch after branch, branches side by
side, the order that keeps what crosses smallest): a stated rule, no longer every cut, so `Cuts.exact` is False.
"""

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np

from hocket.profile.model import ModelProfile
from hocket.strategies._partition_graph import Graph, bits, downsets, prefixes, tied_to_neighbours

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
    graph = Graph(profile, sizes)
    free = (seconds + weights + fixed == 0).tolist()
    blocks, before = tied_to_neighbours(graph, free)
    found = downsets(blocks, before, limit)
    exact = found is not None
    masks = found if found is not None else prefixes(graph, blocks, before)
    inside = _members(masks, n)
    # Ascending time, smaller first: in whole femtoseconds, so that rounding never puts a set before its subset.
    whole = inside.astype(np.int64) @ np.rint(seconds * 1e15).astype(np.int64)
    order = np.lexsort((inside.sum(axis=1), whole))
    masks, inside = [masks[k] for k in order.tolist()], inside[order]
    both, forward = graph.crossing(inside)
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
        longest_s=float(seconds.max()),
        exact=exact,
    )


@numba.njit(cache=True)
def _predecessors(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover - compiled
    """Cuts inside each cut, nearest first, as (start, list); `words` are the downsets' bits, cuts in a linear order."""
    count, width = words.shape
    start = np.zeros(count + 1, dtype=np.int64)
    listed = np.empty(count * (count - 1) // 2 + 1, dtype=np.int32)
    at = 0
    for j in range(count):
        start[j] = at
        for i in range(j - 1, -1, -1):
            inside = True
            for k in range(width):
                if words[i, k] & ~words[j, k]:
                    inside = False
                    break
            if inside:
                listed[at] = i
                at += 1
    start[count] = at
    return start, listed[:at]


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
