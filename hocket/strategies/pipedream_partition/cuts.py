"""Possible cuts of a layer graph into pipeline stages.

A cut is a downset of the graph: a set of layers that contains all predecessors of its layers. A stage is the
difference of two nested downsets. The frontier of a downset is an antichain. A chain of n layers has n + 1 downsets.
Time, weights and saved activations of a stage are differences of sums over the two downsets. Each cut therefore has
such sums.

Layers without cost are first joined to a neighbour if that never adds bytes to a stage boundary (exact). If more than
`limit` downsets remain, the cuts are the prefixes of three orders of the layers: branch after branch, branches side
by side, and the order with the fewest bytes over the cuts. These are not all cuts, so `Cuts.exact` is False.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.profiling.layer import Layer
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.graph import GraphMasks, bits, downsets, prefixes, tied_to_neighbours

DEFAULT_LIMIT = 1024
ROWS = 64  # rows of a table over pairs of cuts that are computed at once, to stay in the processor's cache
_MAX_UNITS = 2.0**61  # time units of all layers together, so that sums stay 64-bit integers


@dataclass(frozen=True)
class Cuts:
    """Possible cuts in ascending order of time, each after all cuts inside it.

    The first cut is empty, the last is the whole graph.

    Attributes:
        masks: downset of each cut, as a bit mask over layers.
        words: the same bits in 64-bit words; shape (cuts, words).
        seconds: forward and backward of all layers of each downset.
        weights_bytes: weights of all layers of each downset.
        stash_bytes: saved activations of all layers of each downset, and the batch's tensors that they read first.
        fixed_bytes: gradients, optimizer state and buffers of all layers of each downset.
        crossing_bytes: bytes that cross each cut, activations and their gradients.
        activation_bytes: bytes that cross each cut, activations only.
        tied_bytes: weights of each layer that shares all its parameters with earlier layers. They count once if both
            are in one stage.
        tied_inside: for each such layer and cut, 1 if the earlier layer is inside the cut, plus 2 if the later layer
            is; shape (pairs, cuts).
        longest_s: seconds of the slowest layer.
        exact: True if every useful cut is included.
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
        """Indices of the cuts inside each cut, nearest first; see `_predecessors`."""
        return _predecessors(self.words)

    def layers(self, inner: int, outer: int) -> tuple[int, ...]:
        """Layers of the stage between two cuts, which are given by index."""
        return bits(self.masks[outer] & ~self.masks[inner])


def cuts(profile: ModelProfile, microbatch_size: float, limit: int = DEFAULT_LIMIT) -> Cuts:
    """Find the possible cuts of a profile's layer graph.

    Arguments:
        limit: maximum number of cuts to enumerate. A graph that has more gets about three cuts for each layer.
    """
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
    # Sort by time, then by number of layers. Times are integers in femtoseconds, or in larger units if they add up to
    # hours, so that rounding never puts a set before its subset.
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
    """Layers that share all their parameters with earlier layers, ascending.

    Returns:
        Each such layer, and the last earlier layer that has one of its parameters.
    """
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
    """Indices of the cuts inside each cut, nearest first.

    Arguments:
        words: downsets as 64-bit words; shape (cuts, words).

    Returns:
        Arrays `start` and `list`: the cuts inside cut j are list[start[j] : start[j + 1]].
    """
    count = len(words)
    inside = np.tri(count, k=-1, dtype=bool)  # [j, i]: cut i is inside cut j; later cuts never are
    for begin in range(0, count, ROWS):
        end = min(begin + ROWS, count)
        for word in words.T:
            inside[begin:end, :end] &= (word[:end] & ~word[begin:end, None]) == 0
    start = np.zeros(count + 1, dtype=np.uint32)
    start[1:] = inside.sum(axis=1).cumsum()
    return start, (count - 1 - np.nonzero(inside[:, ::-1])[1]).astype(np.uint32)


def _words(masks: list[int], n: int) -> np.ndarray:
    """Bit masks over n layers as 64-bit words; shape (masks, words)."""
    width = (n + 63) // 64
    raw = b"".join(mask.to_bytes(8 * width, "little") for mask in masks)
    return np.frombuffer(raw, dtype="<u8").reshape(len(masks), width)
