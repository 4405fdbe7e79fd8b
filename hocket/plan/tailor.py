"""Tailor: stages cut to measure, so that the slowest is as quick as it can be and all of them fit.

Rules of this file: a model is an embedding, blocks alike, and an output. A stage makes no more again than its memory asks for:
who holds more stashes makes more again, or has fewer blocks; who stands on slower devices has fewer. Bytes are close to what the
simulator says, which decides.
Source: dissertation sections 3.3.1 (recomputation), 3.3.3 (MEMORY) and 4.3.5 (how many blocks are made again).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from hocket.cost.compute import Columns
from hocket.hardware.cluster import Cluster
from hocket.plan.ground import Ground
from hocket.plan.mesh import Mesh
from hocket.plan.mesh_bounds import WAITING
from hocket.plan.mesh_figures import Tables, doubled, flying, sums
from hocket.plan.plane import Plane, Source
from hocket.profile.model import ModelProfile

SOME = "some"  # blocks are made again, in ways that differ


class Tailor(Plane):
    """Meshes of one tensor-parallel width, whose blocks may be made again in different ways.

    Arguments:
        ways: one plane for each way, the quickest first.
    """

    def __init__(self, ways: Sequence[Plane]) -> None:
        first = ways[0]
        kind = first.tensor, SOME, first.sizes, first.slices, first.sequence_parallel
        self._set(*kind, first.group, first.profile, (first.shards, first.strategies))
        self.ways = tuple(ways)
        self._figures: dict[int, _Figures] = {}
        self._woven: dict[tuple[str, ...], ModelProfile] = {}

    def fitted(self, mesh: Mesh, excess_bytes: float | np.ndarray = 0.0) -> Mesh | None:
        """The mesh with as little made again as fits, and without chunks other borders; None where nothing fits.

        Arguments:
            excess_bytes: by device, what was simulated more than was thought here.
        """
        if mesh.units:
            return None  # which hold one microbatch: what all blocks make again is what there is
        ground, figures = self._ground(mesh), self._of(mesh.samples)
        turns = mesh.microbatches * mesh.width // ground.widths
        # A little more than that waits is not thought of here.
        room = ground.room_bytes - self.waiting_bytes(mesh) - WAITING * figures.border - excess_bytes
        if mesh.chunks == 1:
            found = self._recut(figures, ground, turns, room, mesh)
        else:
            found = self._same_cut(figures, ground, turns, room, mesh)
        if found is None:
            return None
        ends, again = found
        words = [way.recompute for way in self.ways]
        layers = (words[0], *(words[k] for k in again), words[0])
        same = len(set(again)) == 1
        return replace(mesh, ends=ends, recompute=words[again[0]] if same else SOME, again=layers)

    def floor_s(self, mesh: Mesh) -> float:
        """Seconds that no cut into the mesh's stages is below: all that they compute, in blocks as they are, with nothing made again."""
        ground, figures = self._ground(mesh), self._of(mesh.samples)
        p, turns = mesh.depth, mesh.microbatches * mesh.width // ground.widths
        each_s = ground.slowest(np.repeat(figures.block_s[0][:, None], p, axis=1)) * turns
        stage = np.arange(p)
        ends_s = ground.slowest(figures.ends_s(stage == 0, stage == p - 1)) * turns
        low_s = float((figures.blocks + (ends_s / each_s).sum()) / (1 / each_s).sum())
        high_s = low_s + float(each_s.max())
        for _ in range(12):
            middle_s = (low_s + high_s) / 2
            if np.floor((middle_s - ends_s) / each_s).sum() < figures.blocks:
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s

    def _recut(
        self, of: "_Figures", ground: Ground, turns: np.ndarray, room: np.ndarray, mesh: Mesh
    ) -> tuple[tuple[int, ...], list[int]] | None:
        p, blocks = len(turns), of.blocks
        most = blocks if p == 1 or len(self.types[0]) > 1 else min(blocks, 4 * -(-blocks // p) + 4)
        n = np.arange(most + 1)
        first, last = (np.arange(p) == 0)[:, None], (np.arange(p) == p - 1)[:, None]
        ahead, _, coming = (one.reshape(p, 1) for one in flying(ground, mesh, turns))
        gradients = of.gradients[1] * n + of.gradients[0] * first + of.gradients[2] * last
        each_of = self._state_of(of, mesh, ground)[:, :, None]  # by layer and stage
        state = each_of[1] * n + each_of[0] * first + each_of[2] * last - (self._twice(mesh) if p == 1 else 0.0)
        besides = of.stash[0, 0] * first + of.stash[0, 2] * last + of.border * (1.0 * ~first - ~last)
        working = np.where(last, of.working[0, 2], 0.0)
        least = _Least(of, ground, n[None, :])
        for quick, thrifty in (*((k, k) for k in range(len(self.ways))), *combinations(range(len(self.ways)), 2)):
            each = of.stash[quick, 1]
            stash = each * n + besides
            load = ahead * stash + np.where(coming, gradients, np.maximum(0.0, gradients - stash))
            beyond = state + load - room[:, None]
            saved = ahead * (each - of.stash[thrifty, 1])
            count = least.count(beyond + np.maximum(working, of.working[quick, 1]), saved)
            # The first blocks of a stage are made again: what the others hold is gone by then.
            again = np.maximum(of.working[quick, 1], of.working[thrifty, 1] - (n - count) * each)
            least.offer(quick, thrifty, least.count(beyond + np.maximum(working, again), saved))
        seconds = least.seconds + ground.slowest(of.ends_s(first[:, 0], last[:, 0]))[:, None]
        counts = _shared(seconds * turns[:, None], blocks, np.where(first | last, 0, 1)[:, 0] if p > 1 else [blocks])
        if counts is None:
            return None
        at = (np.arange(p), counts)
        again_ = []
        for many, quick, thrifty, few in zip(
            counts.tolist(), *(x[at].tolist() for x in (least.quick, least.thrifty, least.counts)), strict=True
        ):
            again_ += [thrifty] * few + [quick] * (many - few)
        ends = np.cumsum(counts) + 1
        ends[-1] += 1
        return tuple(ends.tolist()), again_

    def _same_cut(
        self, of: "_Figures", ground: Ground, turns: np.ndarray, room: np.ndarray, mesh: Mesh
    ) -> tuple[tuple[int, ...], list[int]] | None:
        p, v, total = mesh.depth, mesh.chunks, of.blocks
        cut = np.array((0, *mesh.ends))
        many = np.clip(np.minimum(cut[1:], total + 1) - np.maximum(cut[:-1], 1), 0, None).reshape(v, p)
        counts, _, coming = flying(ground, mesh, turns)
        first, last = np.zeros((v, p)), np.zeros((v, p))
        first[0, 0] = last[-1, -1] = 1
        n = many.sum(axis=0)
        gradients, state = (
            x[1] * n + x[0] * first.sum(axis=0) + x[2] * last.sum(axis=0)
            for x in (of.gradients, self._state_of(of, mesh, ground))
        )
        besides = of.stash[0, 0] * first + of.stash[0, 2] * last + of.border * (last - first)
        # Blocks in the order in which they are made again: those of the first chunks, of which most are held.
        behind = np.cumsum(many, axis=0)
        chunk = (behind[None] <= np.arange(int(n.max()))[:, None, None]).sum(axis=1)
        held = np.where(chunk < v, np.take_along_axis(counts, np.minimum(chunk, v - 1), axis=0), 0)
        saving = np.cumsum(held, axis=0)
        least = _Least(of, ground, n[:, None])
        for quick, thrifty in (*((k, k) for k in range(len(self.ways))), *combinations(range(len(self.ways)), 2)):
            stashes = (counts * (of.stash[quick, 1] * many + besides)).sum(axis=0)
            load = np.where(coming, stashes + gradients, np.maximum(stashes, gradients))
            working = max(of.working[quick, 1], of.working[thrifty, 1])
            beyond = state + load + np.maximum(working, last.any(axis=0) * of.working[0, 2]) - room
            saved = saving * (of.stash[quick, 1] - of.stash[thrifty, 1])
            count = np.where(beyond > 0, (saved < beyond).sum(axis=0) + 1, 0)
            least.offer(quick, thrifty, np.where(count <= n * (thrifty > quick), count, np.inf)[:, None])
        if not np.isfinite(least.seconds).all():
            return None
        again = np.zeros((v, p), dtype=object)
        left = least.counts[:, 0].copy()
        for c in range(v):
            for r in range(p):
                few = min(int(left[r]), int(many[c, r]))
                left[r] -= few
                again[c, r] = [int(least.thrifty[r, 0])] * few + [int(least.quick[r, 0])] * (int(many[c, r]) - few)
        return mesh.ends, [way for row in again.ravel() for way in row]

    def _state_of(self, of: "_Figures", mesh: Mesh, ground: Ground) -> np.ndarray:
        """Bytes of state, and of what is there twice; shape (3, stages), or (3, 1) where that is the same for all."""
        state = of.kept[:, None] + of.optimizer[:, None] / np.atleast_1d(self._parts(mesh, ground.widths))
        if mesh.stale:
            more, summed = doubled(ground, mesh, bool(self._shared.any()))
            state = state + of.weights[:, None] * more + of.gradients[:, None] * summed
        return state

    def profile_of(self, mesh: Mesh) -> ModelProfile:
        """The profile of a mesh's groups, each block made again in its way."""
        if mesh.again not in self._woven:
            by_word = {way.recompute: way.profile for way in self.ways}
            self._woven[mesh.again] = woven(by_word.__getitem__, mesh.again)
        return self._woven[mesh.again]

    def _tables_of(self, mesh: Mesh) -> Tables:
        figures = self._of(mesh.samples)
        words = [way.recompute for way in self.ways]
        ways, layers = np.array([words.index(word) for word in mesh.again]), np.arange(len(mesh.again))
        forward_s, backward_s = (np.array([sums(row) for row in x[ways, :, layers].T]) for x in figures.layers_s)
        return Tables(forward_s, backward_s, sums(figures.layers_bytes[ways, layers]))

    def _of(self, samples: int) -> "_Figures":
        if samples not in self._figures:
            self._figures[samples] = _Figures([way.profile for way in self.ways], samples, self.types[0])
        return self._figures[samples]


def plane_of(source: Source, cluster: Cluster, mesh: Mesh, sizes: tuple[int, ...], slices: bool) -> Plane:
    """The plane that a mesh is one of, on a cluster.

    Arguments:
        sizes: of microbatches; slices: as in plans.
    """
    words = tuple(dict.fromkeys(mesh.again)) or (mesh.recompute,)
    ways = [
        Plane(source, cluster, mesh.tensor, word, sizes, slices, mesh.sequence_parallel, (mesh.shard,))
        for word in words
    ]
    return Tailor(ways) if mesh.again else ways[0]


def woven(source: Callable[[str], ModelProfile], again: tuple[str, ...]) -> ModelProfile:
    """One profile of layers that make what is inside of them again in their own ways.

    Arguments:
        source: the profile in which all layers do as a word says.
    """
    layers = {word: source(word).layers for word in dict.fromkeys(again)}
    return replace(source(again[0]), layers=tuple(layers[word][k] for k, word in enumerate(again)))


class _Figures:
    """A model's layers at one microbatch size, by way: of embedding, block and output where nothing else is said.

    Attributes:
        layers_s: forward and backward of all layers, each of shape (ways, types, layers); layers_bytes: stashes, (ways, layers).
        block_s: forward and backward of a block; shape (ways, types). stash, working: bytes; shape (ways, 3).
        kept, weights, optimizer, gradients: bytes of weights and buffers, weights alone, optimizer state and gradients; shape (3,).
            border: bytes from one block to the next.
    """

    def __init__(self, profiles: Sequence[ModelProfile], samples: int, types: tuple[str, ...]) -> None:
        columns = [Columns(one) for one in profiles]
        on = [[own.on(name) or own for name in types] for own in columns]
        self.layers_s = tuple(
            np.array([[getattr(one.at(samples), name) for one in own] for own in on])
            for name in ("forward_s", "backward_s")
        )
        self.layers_bytes = np.array([own.at(samples).stash_bytes for own in columns])
        whole = self.layers_s[0] + self.layers_s[1]
        self.block_s, self._ends = whole[:, :, 1], whole[0][:, [0, -1]]
        three = [0, 1, -1]
        self.stash = self.layers_bytes[:, three]
        self.working = np.array([own.at(samples).working_bytes[three] for own in columns])
        layers = [profiles[0].layers[k] for k in three]
        self.kept = np.array([x.weights_bytes + x.buffers_bytes for x in layers])
        self.weights = np.array([x.weights_bytes for x in layers])
        self.optimizer = np.array([x.optimizer_bytes for x in layers])
        self.gradients = np.array([x.gradients_bytes for x in layers])
        self.border = float(columns[0].at(samples).tensor_bytes[-1])
        self.blocks = len(profiles[0].layers) - 2

    def ends_s(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Seconds of embedding and output where they are; shape (types, stages)."""
        return self._ends[:, :1] * first + self._ends[:, 1:] * last


class _Least:
    """The least seconds of stages with n blocks, and the two ways and the number of the thrifty ones that give it."""

    def __init__(self, of: _Figures, ground: Ground, n: np.ndarray) -> None:
        self._n, shape = n, np.broadcast_shapes(n.shape, (len(ground.widths), 1))
        each = [np.repeat(own[:, None], shape[0], axis=1) for own in of.block_s]
        self._block_s = [ground.slowest(own)[:, None] for own in each]
        self.seconds = np.full(shape, np.inf)
        self.quick, self.thrifty, self.counts = (np.zeros(shape, dtype=int) for _ in range(3))

    def count(self, beyond: np.ndarray, saved: np.ndarray) -> np.ndarray:
        """Blocks to make again in the thrifty way, for bytes that are lacking and that each saves; infinite where all do not do."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(beyond > 0, np.ceil(beyond / saved), 0.0)
        return np.where(found <= self._n, found, np.inf)

    def offer(self, quick: int, thrifty: int, count: np.ndarray) -> None:
        """So many blocks in the thrifty way, the others in the quick one."""
        with np.errstate(invalid="ignore"):
            seconds = self._n * self._block_s[quick] + count * (self._block_s[thrifty] - self._block_s[quick])
        better = np.isfinite(count) & (seconds < self.seconds)
        self.seconds = np.where(better, seconds, self.seconds)
        self.quick[better], self.thrifty[better], self.counts[better] = quick, thrifty, count[better].astype(int)


def _shared(seconds: np.ndarray, blocks: int, least: Sequence[int] | np.ndarray) -> np.ndarray | None:
    """How many blocks each stage has, so that the slowest is as quick as it can be; None where they have no room.

    Arguments:
        seconds: of a stage with 0, 1, ... blocks, infinite where they do not fit; shape (stages, ...). least: of each stage.
    """
    rows = np.arange(len(seconds))
    seconds = np.maximum.accumulate(seconds, axis=1)
    limits = np.unique(seconds[np.isfinite(seconds)])
    floor = seconds[rows, least].max()
    low, high = int(np.searchsorted(limits, floor)), len(limits) - 1
    if not np.isfinite(floor) or (seconds <= limits[high]).sum() - len(rows) < blocks:
        return None
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
