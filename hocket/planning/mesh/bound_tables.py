"""Parts of the bounds of layouts: prefix sums of layers, microbatches in flight."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.cost.compute import Columns
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.placement import StagePlacement


@dataclass(frozen=True)
class Bound:
    """Lower bounds of a layout's iteration time and of its peak memory.

    Attributes:
        seconds: lower bound of an iteration's seconds.
        bytes: lower bound of the peak bytes on the device that has the least memory left.
        room_bytes: memory of this device.
    """

    seconds: float
    bytes: float
    room_bytes: float = float("inf")

    @property
    def fits(self) -> bool:
        """True if the layout may fit: the lower bound of its bytes is within the device's memory."""
        return self.bytes <= self.room_bytes


@dataclass(frozen=True)
class PrefixTables:
    """Prefix sums over the layers.

    Attributes:
        forward_s, backward_s: sums of seconds, shape (types, layers + 1).
        stash_bytes: sums of the bytes of saved activations, shape (layers + 1,).
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
        turns: number of microbatches that each device runs in a batch.

    Returns:
        - Number of microbatches, shape (chunks, stages).
        - True for devices with forwards after their first backward.
        - True for devices on which as many microbatches are in flight once more, after all chunks have gradients.
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

    They follow strategies/schedules/two_bw.py. If a stage sums gradients over several devices, its update waits until
    the first forward that reads the new weights. The last stage then has no other microbatch in flight and does not
    need the old version.

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
