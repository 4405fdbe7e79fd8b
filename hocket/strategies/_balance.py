"""Balanced stages: cut a model into a given number of runs of layers so that the slowest run is as quick as it can be."""

from itertools import pairwise

import numpy as np

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster
from hocket.profile.model import ModelProfile


def border_bytes(profile: ModelProfile, microbatch_size: float) -> np.ndarray:
    """Bytes of activations that cross the cut in front of each layer; shape (layers + 1,), both ends zero."""
    crossing = np.zeros(len(profile.layers) + 2)
    for tensor, size in zip(profile.tensors, profile.tensor_bytes(microbatch_size), strict=True):
        if tensor.source >= 0 and tensor.targets:
            crossing[tensor.source + 1] += size
            crossing[max(tensor.targets) + 1] -= size
    return np.cumsum(crossing)[:-1]


def balanced(
    profile: ModelProfile, cluster: Cluster, microbatch_size: float, stages: int
) -> tuple[tuple[int, ...], ...]:
    """Runs of consecutive layers, one a stage, with the least possible maximum of (compute + sends and receives).

    Dynamic programming over (stages, layers); ties go to the earliest cut.

    Raises:
        RefusedError: fewer layers than stages.
    """
    count = len(profile.layers)
    if stages > count:
        raise RefusedError("stages", f"{stages} stages for {count} layers", f"at most {count}")
    seconds = profile.column("forward_s", microbatch_size) + profile.column("backward_s", microbatch_size)
    before = np.concatenate(([0.0], np.cumsum(seconds)))
    link = cluster.levels[0].link
    border = 2 * border_bytes(profile, microbatch_size) / link.bandwidth_bytes_per_s
    # run[i, j]: seconds of layers i to j - 1 with half of each border's traffic on each side
    run = before[None, :] - before[:, None] + 0.5 * (border[:, None] + border[None, :])
    run[np.tril_indices(count + 1)] = np.inf
    best = run[0].copy()
    cuts = np.zeros((stages, count + 1), dtype=int)
    for s in range(1, stages):
        worst = np.maximum(best[:, None], run)
        cuts[s] = worst.argmin(axis=0)
        best = worst.min(axis=0)
    ends = [count]
    for s in range(stages - 1, 0, -1):
        ends.append(int(cuts[s, ends[-1]]))
    ends.append(0)
    ends.reverse()
    return tuple(tuple(range(a, b)) for a, b in pairwise(ends))
