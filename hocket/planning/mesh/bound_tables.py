"""Parts of layout bounds: prefix sums of layers, and microbatches in flight."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.cost.compute import Columns
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.placement import StagePlacement


@dataclass(frozen=True)
class Bound:
    """Lower bound of a layout.

    Attributes:
        seconds: of an iteration.
        bytes: on the device with the least room.
        room_bytes: memory of that device.
    """

    seconds: float
    bytes: float
    room_bytes: float = float("inf")

    @property
    def fits(self) -> bool:
        """True if the layout may fit."""
        return self.bytes <= self.room_bytes


@dataclass(frozen=True)
class PrefixTables:
    """Prefix sums over the layers.

    Attributes:
        forward_s, backward_s: seconds, shape (types, layers + 1).
        stash_bytes: shape (layers + 1,).
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    stash_bytes: np.ndarray

    @classmethod
    def of(cls, on: Sequence[Columns], samples: int) -> "PrefixTables":
        """Build the prefix sums of a profile for each device type, at one microbatch size."""
        forward_s, backward_s = (
            before(np.array([getattr(one.at(samples), name) for one in on])) for name in ("forward_s", "backward_s")
        )
        return cls(forward_s, backward_s, before(on[0].at(samples).stash_bytes))


def flying(
    ground: StagePlacement, mesh: ParallelLayout, turns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Microbatches in flight on each device at its first backward, by chunk.

    Arguments:
        turns: microbatches of each device.

    Returns:
        - Number of microbatches, shape (chunks, stages).
        - True for devices with forwards after their first backward.
        - True for devices that hold as many stashes again once they have gradients of all their chunks.
    """
    if mesh.schedule == "gpipe":
        return turns[None, :], turns < 0, turns < 0
    chunks = mesh.chunks
    if chunks == 1:
        ahead = ground.flying(turns)
        return ahead[None, :], ahead < turns, (ahead < turns) | mesh.stale  # without a flush, the next batch follows
    depth, virtual, round_ = len(turns), turns * chunks, len(turns) * chunks
    ahead = np.minimum(virtual, 2 * (depth - np.arange(depth) - 1) + (chunks - 1) * depth + 1)
    whole, rest = np.divmod(ahead, round_)
    counts = whole * depth + np.clip(rest - np.arange(chunks)[:, None] * depth, 0, depth)
    return counts, ahead < virtual, ahead + round_ <= virtual


def doubled(ground: StagePlacement, mesh: ParallelLayout, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    """Masks of stages with a second weight version, and with a second gradient sum.

    They follow strategies/schedules/two_bw.py. Where devices sum their gradients, the update waits for the forward that
    reads its weights. The last stage has no other microbatch in flight then and no longer needs the old version.

    Arguments:
        tied: True if the first and the last stage share weights.
    """
    summed = (ground.widths > 1) & mesh.stale
    summed[[0, -1]] |= tied & mesh.stale
    behind = np.cumsum(ground.widths[::-1])[::-1]
    return ((behind > ground.widths) | ~summed) & mesh.stale, summed


def sums(values: Iterable[float]) -> np.ndarray:
    """Prefix sums from 0 to the total, one more than there are values."""
    return before(np.fromiter(values, dtype=float))


def before(values: np.ndarray) -> np.ndarray:
    """Prefix sums of each row, from 0 to the total; shape (..., n + 1)."""
    found = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=found[..., 1:])
    return found
