"""Table of the costs of a stage by its number of blocks.

A row of the table has the least seconds of a stage with 0, 1, ... blocks, with as little recomputation as the stage's
memory requires. The table also determines the number of blocks of each stage.

Rules of this file: a row is one stage, whatever the layout. The blocks of a stage have at most two recompute settings.
Source: Narayanan's dissertation, sections 3.3.1 (recomputation) and 4.3.5 (number of recomputed blocks).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from hocket.planning.mesh.block_costs import BlockFigures


class Least:
    """Least seconds of stages with n blocks, and the recompute settings for them.

    A mix is two recompute settings, and the number of blocks with the second.

    Arguments:
        block_s: seconds of a block on each stage, by recompute setting.
        n: numbers of blocks, shape (1, numbers), or (stages, 1) for one number on each stage.

    Attributes:
        seconds: least seconds of a microbatch in the blocks, shape (stages, numbers); infinite if nothing fits.
        quick, thrifty, counts: the mix: first and second setting, and number of blocks with the second.
    """

    def __init__(self, block_s: Sequence[np.ndarray], n: np.ndarray) -> None:
        self._n, shape = n, np.broadcast_shapes(n.shape, (len(block_s[0]), 1))
        self._block_s = [own[:, None] for own in block_s]
        self.seconds = np.full(shape, np.inf)
        self.quick, self.thrifty, self.counts = (np.zeros(shape, dtype=int) for _ in range(3))

    def count(self, beyond: np.ndarray, saved: np.ndarray) -> np.ndarray:
        """Number of blocks to recompute to save missing bytes.

        Arguments:
            beyond: missing bytes.
            saved: bytes that each recomputed block saves.

        Returns:
            Infinite if all blocks together save too little.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(beyond > 0, np.ceil(beyond / saved), 0.0)
        return np.where(found <= self._n, found, np.inf)

    def offer(self, quick: int, thrifty: int, count: np.ndarray) -> None:
        """Record a mix for the stages on which it is faster than the recorded one.

        Arguments:
            quick, thrifty: first and second recompute setting.
            count: number of blocks with the setting `thrifty`; infinite if the mix does not fit.
        """
        with np.errstate(invalid="ignore"):
            seconds = self._n * self._block_s[quick] + count * (self._block_s[thrifty] - self._block_s[quick])
        better = np.isfinite(count) & (seconds < self.seconds)
        self.seconds = np.where(better, seconds, self.seconds)
        self.quick[better], self.thrifty[better], self.counts[better] = quick, thrifty, count[better].astype(int)


class StageRow(NamedTuple):
    """Costs of a stage with 0, 1, ... blocks: entry n is for n blocks.

    Attributes:
        exact_s: least seconds of a batch; infinite if the stage does not fit into memory.
        seconds: the same, made monotone: no less than the seconds of fewer blocks.
        quick, thrifty: the two recompute settings of the blocks.
        counts: number of blocks with the second setting, `thrifty`.
    """

    exact_s: np.ndarray
    seconds: np.ndarray
    quick: np.ndarray
    thrifty: np.ndarray
    counts: np.ndarray


def rows_of(of: BlockFigures, stages: np.ndarray, most: int) -> list[StageRow]:
    """Costs of stages with up to `most` blocks.

    Arguments:
        of: figures of embedding, block and output.
        stages: a row for each stage. Its columns are:

            0   number of microbatches that each device of the stage runs in a batch
            1   microbatches in flight
            2   above 0 if as many microbatches are in flight once more, after the first gradients
            3   bytes of memory
            4   shards of the optimizer state
            5   above 0 for a second copy of weights
            6   above 0 for a second gradient sum
            7   1 for the first stage
            8   1 for the last stage
            9   seconds of embedding and output
            10  seconds of a block, one column for each recompute setting
    """
    turns, ahead, coming, room, parts, more, summed, first, last, ends_s = (one[:, None] for one in stages[:, :10].T)
    ways, n = len(of.block_s), np.arange(most + 1)
    gradients = of.gradients[1] * n + of.gradients[0] * first + of.gradients[2] * last
    each_of = of.state_of(*(one[:, 0] for one in (parts, more, summed)))[:, :, None]  # by layer and stage
    state = each_of[1] * n + each_of[0] * first + each_of[2] * last
    besides = of.stash[0, 0] * first + of.stash[0, 2] * last + of.border * (last - first)
    working = np.where(last > 0, of.working[0, 2], 0.0)
    least = Least(list(stages[:, 10:].T), n[None, :])
    for quick, thrifty in (*((k, k) for k in range(ways)), *combinations(range(ways), 2)):
        each = of.stash[quick, 1]
        stash = each * n + besides
        load = ahead * stash + np.where(coming > 0, gradients, np.maximum(0.0, gradients - stash))
        beyond = state + load - room
        saved = ahead * (each - of.stash[thrifty, 1])
        count = least.count(beyond + np.maximum(working, of.working[quick, 1]), saved)
        # The first blocks of a stage are recomputed: the stashes of the other blocks are freed by then.
        again = np.maximum(of.working[quick, 1], of.working[thrifty, 1] - (n - count) * each)
        least.offer(quick, thrifty, least.count(beyond + np.maximum(working, again), saved))
    exact_s = (least.seconds + ends_s) * turns
    seconds = np.maximum.accumulate(exact_s, axis=1)
    return [StageRow(*row) for row in zip(exact_s, seconds, least.quick, least.thrifty, least.counts, strict=True)]


def counts_of(rows: Sequence[StageRow], blocks: int, chunks: int) -> np.ndarray | None:
    """Number of blocks of each device that makes the slowest as fast as possible.

    Every chunk has at least one block, except chunks with the embedding or the output.

    Arguments:
        rows: costs of each device.
        blocks: number of all blocks.
        chunks: number of chunks on each device.

    Returns:
        Shape (devices,); None if memory is too small.
    """
    least = np.full(len(rows), chunks)
    least[[0, -1]] -= 1
    return _shared(np.stack([row.seconds for row in rows]), blocks, least if len(rows) > 1 else np.array([blocks]))


def _shared(seconds: np.ndarray, blocks: int, least: np.ndarray) -> np.ndarray | None:
    """Number of blocks of each stage that makes the slowest as fast as possible.

    None if memory is too small.

    Arguments:
        seconds: seconds of each stage with 0, 1, ... blocks; monotone, infinite where the blocks do not fit; shape
            (stages, most blocks + 1).
        blocks: number of all blocks.
        least: smallest number of blocks of each stage.
    """
    rows = np.arange(len(seconds))
    floor, finite = seconds[rows, least].max(), np.isfinite(seconds)
    if not np.isfinite(floor) or finite.sum() - len(rows) < blocks:
        return None
    limits = np.sort(seconds[finite & (seconds >= floor)])
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if (seconds <= limits[middle]).sum() - len(rows) >= blocks:
            high = middle
        else:
            low = middle + 1
    counts: np.ndarray = (seconds <= limits[high]).sum(axis=1) - 1
    while counts.sum() > blocks:
        counts[np.where(counts > least, seconds[rows, counts], -np.inf).argmax()] -= 1
    return counts
