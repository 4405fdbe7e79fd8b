"""Tensor fusion: choose gradient buckets and the communication threads of each.

Rules of this file: layers are numbered in the order in which a backward finishes their gradients. A bucket is a run of
consecutive layers. Seconds come from an `OverlapModel`. The search divides the backward's computation into chunks of
equal time and begins all-reduces only between two chunks. The times of its result are exact.
Source: LIBRA (Liu et al. 2023), section IV: equations 16 to 23, Algorithm 1. Equation numbers are of this paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel, OverlapStage

MOST_BUCKETS = 10
CHUNKS = 150
THREADS = (128, 256, 512, 1024, 2048, 4096)
"""Values of K (buckets), Z (chunks) and R (threads) that the paper uses for NCCL on one GPU (section V.A)."""


@dataclass(frozen=True)
class ReadyGradients:
    """Gradients of a backward by layer, in the order in which they become ready.

    Attributes:
        sizes_bytes: bytes of each layer's gradients; 0 for a layer without weights.
        computes_s: seconds of each layer's backward, without an all-reduce beside it.
    """

    sizes_bytes: tuple[float, ...]
    computes_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.sizes_bytes) == len(self.computes_s) > 0:
            found = f"{len(self.sizes_bytes)} sizes, {len(self.computes_s)} times"
            raise InputError("gradients", found, "one time for each size, at least one")
        for name, figures in (("sizes_bytes", self.sizes_bytes), ("computes_s", self.computes_s)):
            for i, figure in enumerate(figures):
                if not 0 <= figure < float("inf"):
                    raise InputError(f"gradients.{name}.{i}", str(figure), "a number that is not below zero")
        if not (sum(self.sizes_bytes) > 0 and sum(self.computes_s) > 0):
            raise InputError("gradients", "gradients of 0 bytes, or a backward of 0 s", "a total above 0 for both")


@dataclass(frozen=True)
class Fusion:
    """Gradient buckets, with the communication threads of each.

    Attributes:
        ends: for each bucket, the number of layers up to its end; ascending, the last is the number of all layers.
        threads: for each bucket, the number of threads of its all-reduce.
    """

    ends: tuple[int, ...]
    threads: tuple[int, ...]

    @property
    def buckets(self) -> tuple[range, ...]:
        """Range of layer indices of each bucket."""
        return tuple(range(begin, end) for begin, end in pairwise((0, *self.ends)))

    def stages(self, gradients: ReadyGradients, model: OverlapModel) -> tuple[OverlapStage, ...]:
        """Phases of the backward, with their seconds: one before the first all-reduce, then one for each bucket.

        A bucket's phase begins with its all-reduce, and ends when the next all-reduce begins or the last one ends.
        """
        sizes_bytes = [sum(gradients.sizes_bytes[own.start : own.stop]) for own in self.buckets]
        computes_s = [sum(gradients.computes_s[own.start : own.stop]) for own in self.buckets]
        return model.stages(sizes_bytes, computes_s, self.threads)

    def backward_s(self, gradients: ReadyGradients, model: OverlapModel) -> float:
        """Seconds of the backward with its all-reduces."""
        return sum(stage.seconds for stage in self.stages(gradients, model))


def least_chunk(done_s: float, width_s: float, chunks: int) -> int:
    """Number of chunks after which some computation is done (GetMinChunkID).

    Arguments:
        done_s: seconds of the computation, from the start of the backward.
        width_s: seconds of one chunk.
        chunks: number of all chunks.

    Returns:
        1 to `chunks`.
    """
    edge = 1
    while edge < chunks and edge * width_s < done_s:
        edge += 1
    return edge


def joint(
    gradients: ReadyGradients,
    model: OverlapModel,
    threads: Sequence[int] = THREADS,
    most_buckets: int = MOST_BUCKETS,
    chunks: int = CHUNKS,
) -> Fusion:
    """Choose gradient buckets, and each bucket's communication threads (Algorithm 1).

    The backward with its all-reduces becomes as short as possible.

    Arguments:
        gradients: bytes and seconds by layer.
        model: speed of computation and all-reduces beside each other.
        threads: numbers of threads to choose from.
        most_buckets: maximum number of buckets.
        chunks: number of equal time slices of the computation, between which all-reduces begin.
    """
    return _Search(gradients, model, threads, min(most_buckets, len(gradients.sizes_bytes)), chunks, None).best()


def allocate(
    gradients: ReadyGradients,
    model: OverlapModel,
    ends: Sequence[int],
    threads: Sequence[int] = THREADS,
    chunks: int = CHUNKS,
) -> Fusion:
    """Choose the thread count of each bucket's all-reduce, for given buckets (equations 16 to 19).

    Arguments:
        ends: for each bucket, the number of layers up to its end; ascending, the last is the number of all layers.
        threads: thread counts to choose from.
        chunks: number of equal time slices of the computation, between which all-reduces begin.
    """
    return _Search(gradients, model, threads, len(ends), chunks, tuple(ends)).best()


class _Search:
    """Dynamic program over cells over[i][end][z].

    In a cell, the first `end` layers are in i buckets, and the all-reduces of these buckets have ended when z chunks
    are computed. The cell's value is the least extra time, in addition to the computation of all chunks alone.

    An all-reduce that ends before the computation ends costs only the slowdown of the computation beside it. This cost
    does not depend on its start. So it starts as late as possible: as many chunks before z as it lasts. Only for
    all-reduces that outlast the computation are all starts tried.

    Arguments:
        ends: for each given bucket, the number of layers up to its end. None to choose buckets as well as threads.
    """

    def __init__(
        self,
        gradients: ReadyGradients,
        model: OverlapModel,
        threads: Sequence[int],
        most_buckets: int,
        chunks: int,
        ends: tuple[int, ...] | None,
    ) -> None:
        if chunks < 1:
            raise InputError("chunks", str(chunks), ">= 1")
        if most_buckets < 1:
            raise InputError("buckets", str(most_buckets), ">= 1")
        if not threads or min(threads) < 1:
            raise InputError("threads", str(list(threads)), "at least one number, each >= 1")
        layers = len(gradients.sizes_bytes)
        if ends is not None and (list(ends) != sorted(set(ends)) or ends[0] < 1 or ends[-1] != layers):
            raise InputError("buckets", str(list(ends)), f"ascending numbers of layers, the last {layers}")
        self._ends, self._most, self._chunks = ends, most_buckets, chunks
        # With given buckets, each bucket counts as one layer of this search.
        steps = range(1, layers + 1) if ends is None else ends
        self._cuts = (0, *steps)
        self._sizes = np.concatenate(([0.0], np.cumsum(gradients.sizes_bytes)))[list(self._cuts)]
        self._done = np.concatenate(([0.0], np.cumsum(gradients.computes_s)))[list(self._cuts)]
        self._threads = np.array(sorted(set(threads)))
        self._model = model
        self._share = np.array([model.share(r) for r in self._threads])
        self._rates = np.array([[rate.at(r) for r in self._threads] for rate in (model.beside, model.alone)])
        self._width_s = float(self._done[-1]) / chunks
        self._least = [least_chunk(float(done), self._width_s, chunks) for done in self._done]

    def best(self) -> Fusion:
        """Buckets and threads with the least extra time.

        They are traced back from the last cell, by recomputing each cell's choice.
        """
        over = self._table()
        layers, chunks = len(self._cuts) - 1, self._chunks
        last = int(np.argmin(over[:, layers, chunks])) if self._ends is None else self._most
        end, z, found = layers, chunks, []
        for i in range(last, 0, -1):
            before, begin, lanes = self._choice(over[i - 1], end, z)
            found.append((self._cuts[end], int(self._threads[lanes])))
            end, z = before, begin
        ends, threads = zip(*reversed(found), strict=True)
        return Fusion(ends, threads)

    def _table(self) -> np.ndarray:
        layers, chunks, most = len(self._cuts) - 1, self._chunks, self._most
        over = np.full((most + 1, layers + 1, chunks + 1), np.inf)
        over[0, 0] = 0.0
        for end in range(1, layers + 1):
            first = end - 1 if self._ends is not None else 0
            cost, lasts = self._within(first, end)
            rows = np.nonzero(lasts <= chunks - self._least[end])
            at_end = self._at_end(first, end)
            for i in range(1, most + 1) if self._ends is None else (end,):
                cells = self._cells(over[i - 1], first, end)
                if rows[0].size:
                    # Index chunks - k of the second axis holds the cells of k chunks before.
                    shifted = cells[rows[0], chunks - lasts[rows]]
                    over[i, end] = (shifted + cost[rows][:, None]).min(axis=0)
                    over[i, end, : self._least[end]] = np.inf
                begun = over[i - 1, first:end, ::-1] + at_end
                over[i, end, chunks] = min(over[i, end, chunks], begun[:, : chunks + 1 - self._least[end]].min())
        return over

    def _cells(self, before: np.ndarray, first: int, end: int) -> np.ndarray:
        """Cells from which a bucket that ends with layer `end` may continue.

        Arguments:
            before: cells with one bucket fewer, shape (layers + 1, chunks + 1).

        Returns:
            Shape (end - first, chunks + 1, chunks + 1). Entry [n, chunks - k, z] is before[first + n, z - k]. It is
                inf if the bucket's gradients are not ready after z - k chunks.
        """
        padded = np.full((end - first, 2 * self._chunks + 1), np.inf)
        padded[:, self._chunks + self._least[end] :] = before[first:end, self._least[end] :]
        return sliding_window_view(padded, self._chunks + 1, axis=1)

    def _within(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Cost and length of all-reduces that end during computation.

        Each sums the layers from k up to `end`, for each k from `first` on.

        Returns:
            Extra seconds, and lengths of the all-reduces in chunks; both of shape (end - first, threads). If another
                number of threads is as good in both, the length is above the number of chunks, which excludes it.
        """
        moved_s = self._moved_s(first, end, 0)
        needs_s = moved_s * self._share
        lasts = np.ceil(needs_s / self._width_s).astype(int)
        slow = lasts * self._width_s / self._share < moved_s  # rounding: compare as defined
        lasts += slow
        quick = (lasts - 1) * self._width_s / self._share >= moved_s
        lasts -= quick & (lasts > 0)
        cost = moved_s * (1 - self._share)
        for one in range(cost.shape[1]):
            for other in range(cost.shape[1]):
                if one != other:
                    better = (cost[:, other] <= cost[:, one]) & (lasts[:, other] <= lasts[:, one])
                    same = (cost[:, other] == cost[:, one]) & (lasts[:, other] == lasts[:, one])
                    lasts[better & (~same | (other < one)), one] = self._chunks + 1
        return cost, lasts

    def _moved_s(self, first: int, end: int, alone: int) -> np.ndarray:
        """Seconds of the all-reduces of layers k to `end`, for each k from `first` on.

        Arguments:
            alone: 1 for all-reduces alone, 0 for all-reduces beside computation.

        Returns:
            Shape (end - first, threads); 0 for layers without gradients.
        """
        sizes = (self._sizes[end] - self._sizes[first:end])[:, None]
        carried = self._model.carried_bytes(1.0) * sizes
        startup_s = self._model.startup_s if alone else self._model.beside_startup_s
        return np.where(sizes > 0, startup_s + carried / self._rates[alone], 0.0)

    def _at_end(self, first: int, end: int) -> np.ndarray:
        """Least extra time of all-reduces that begin d chunks before computation ends.

        Returns:
            Seconds with the best number of threads, by first layer and d; shape (end - first, chunks + 1).
        """
        return self._over(first, end, np.arange(self._chunks + 1))[0].min(axis=2)

    def _over(self, first: int, end: int, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Extra time of all-reduces that run beside chunks (equations 8 to 11).

        Arguments:
            chunks: numbers of chunks that are left when the all-reduce begins.

        Returns:
            Extra seconds, and True where the all-reduce lasts longer than the chunks; both of shape (end - first,
                numbers of chunks, threads).
        """
        alone = (chunks * self._width_s)[None, :, None]
        slowed_s = alone / self._share
        moving_s, moving_alone_s = (self._moved_s(first, end, kind)[:, None, :] for kind in (0, 1))
        both_s = np.minimum(slowed_s, moving_s)
        shape = np.broadcast_shapes(both_s.shape)
        computed = np.divide(both_s, slowed_s, out=np.zeros(shape), where=slowed_s > 0)
        moved = np.divide(both_s, moving_s, out=np.ones(shape), where=moving_s > 0)
        return both_s - alone * computed + moving_alone_s * (1 - moved), moved < 1

    def _choice(self, before: np.ndarray, end: int, z: int) -> tuple[int, int, int]:
        """The last bucket of a cell, recomputed.

        Arguments:
            before: cells with one bucket fewer, shape (layers + 1, chunks + 1).
            end, z: indices of the cell.

        Returns:
            Number of layers before the bucket, number of chunks before its all-reduce, and index of its number of
                threads.
        """
        first = end - 1 if self._ends is not None else 0
        begins = np.arange(self._least[end], z + 1)
        over, left = self._over(first, end, z - begins)
        if z < self._chunks:
            over = np.where(left, np.inf, over)
        whole = before[first:end, begins][:, :, None] + over
        row, begin, lanes = np.unravel_index(int(np.argmin(whole)), whole.shape)
        return first + int(row), int(begins[begin]), int(lanes)
