"""Figures of layers side by side, and how many microbatches fly: what bounds of meshes are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.cost.compute import Columns
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.placement import StagePlacement


@dataclass(frozen=True)
class Bound:
    """Lower bound of a layout: seconds of an iteration, bytes on the tightest device, and its capacity."""

    seconds: float
    bytes: float
    room_bytes: float = float("inf")

    @property
    def fits(self) -> bool:
        """True if the layout may fit."""
        return self.bytes <= self.room_bytes


@dataclass(frozen=True)
class PrefixTables:
    """Figures of the layers before each layer, and of all; shapes (types, layers + 1) and (layers + 1,)."""

    forward_s: np.ndarray
    backward_s: np.ndarray
    stash_bytes: np.ndarray

    @classmethod
    def of(cls, on: Sequence[Columns], samples: int) -> "PrefixTables":
        """Prefix sums of one profile for each type, at one microbatch size."""
        forward_s, backward_s = (
            before(np.array([getattr(one.at(samples), name) for one in on])) for name in ("forward_s", "backward_s")
        )
        return cls(forward_s, backward_s, before(on[0].at(samples).stash_bytes))


def flying(
    ground: StagePlacement, mesh: ParallelLayout, turns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Microbatches that each device has forward before its first backward (strategies/), by chunk.

    Arguments:
        turns: microbatches of each device.

    Returns:
        shape (chunks, stages); whether forwards come behind that backward; whether as many are there again when the device has
        gradients of all its chunks.
    """
    if mesh.schedule == "gpipe":
        return turns[None, :], turns < 0, turns < 0
    chunks = mesh.chunks
    if chunks == 1:
        ahead = ground.flying(turns)
        return ahead[None, :], ahead < turns, (ahead < turns) | mesh.stale  # without a flush the next batch's come
    depth, virtual, round_ = len(turns), turns * chunks, len(turns) * chunks
    ahead = np.minimum(virtual, 2 * (depth - np.arange(depth) - 1) + (chunks - 1) * depth + 1)
    whole, rest = np.divmod(ahead, round_)
    counts = whole * depth + np.clip(rest - np.arange(chunks)[:, None] * depth, 0, depth)
    return counts, ahead < virtual, ahead + round_ <= virtual


def doubled(ground: StagePlacement, mesh: ParallelLayout, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    """Masks of stages with a second version of weights, and a second sum of gradients (strategies/schedules/two_bw.py).

    Where gradients are summed over devices the update waits for the forward that reads it. Then the last stage, which has nothing
    in flight, has no use for the old version any more.

    Arguments:
        tied: whether the first stage and the last share weights.
    """
    summed = (ground.widths > 1) & mesh.stale
    summed[[0, -1]] |= tied & mesh.stale
    behind = np.cumsum(ground.widths[::-1])[::-1]
    return ((behind > ground.widths) | ~summed) & mesh.stale, summed


def sums(values: Iterable[float]) -> np.ndarray:
    """Exclusive prefix sums, and the total."""
    return before(np.fromiter(values, dtype=float))


def before(values: np.ndarray) -> np.ndarray:
    """Prefix sums of each row; shape (..., n + 1)."""
    found = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=found[..., 1:])
    return found
