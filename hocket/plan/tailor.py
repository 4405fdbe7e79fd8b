"""Tailor: stages cut to measure, so that the slowest is as quick as it can be and all of them fit.

Rules of this file: a model is an embedding, blocks alike, and an output. A stage makes no more again than its memory asks for:
who holds more stashes makes more again, or has fewer blocks; who stands on slower devices has fewer. Bytes are close to what the
simulator says, which decides.
Source: dissertation sections 3.3.1 (recomputation), 3.3.3 (MEMORY) and 4.3.5 (how many blocks are made again).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf
from typing import NamedTuple

import numpy as np

from hocket.cost.compute import Columns
from hocket.hardware.cluster import Cluster
from hocket.plan.ground import Ground
from hocket.plan.mesh import Mesh
from hocket.plan.mesh_bounds import WAITING
from hocket.plan.mesh_figures import Tables, before, doubled, flying
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
        self._figures: dict[int, Figures] = {}
        self._woven: dict[tuple[str, ...], ModelProfile] = {}
        self._rows: dict[tuple[int, int, bytes], _Row] = {}

    def fitted(self, mesh: Mesh, excess_bytes: float | np.ndarray = 0.0) -> Mesh | None:
        """The mesh with as little made again as fits, and without chunks other borders; None where nothing fits.

        Arguments:
            excess_bytes: by device, what was simulated more than was thought here.
        """
        found = self.cut_s(mesh, excess_bytes)
        return found and found[0]

    def cut_s(self, mesh: Mesh, excess_bytes: float | np.ndarray = 0.0) -> tuple[Mesh, float] | None:
        """As `fitted`, and seconds that its bound is not below."""
        if mesh.units:
            return None  # which hold one microbatch: what all blocks make again is what there is
        ground, figures = self._ground(mesh), self.figures(mesh.samples)
        turns = mesh.microbatches * mesh.width // ground.widths
        # A little more than that waits is not thought of here.
        room = ground.room_bytes - self.waiting_bytes(mesh) - WAITING * figures.border - excess_bytes
        room -= self._undivided(mesh, ground)
        if mesh.chunks > 1 and not mesh.ends:
            ends = self._chunk_ends(figures, ground, turns, room, mesh)
            if ends is None:
                return None
            mesh = replace(mesh, ends=ends)
        if mesh.chunks == 1:
            found = self._recut(figures, ground, turns, room, mesh)
        else:
            found = self._same_cut(figures, ground, turns, room, mesh)
        if found is None:
            return None
        ends, again, seconds = found
        words = [way.recompute for way in self.ways]
        layers = (words[0], *(words[k] for k in again), words[0])
        same = len(set(again)) == 1
        return replace(mesh, ends=ends, recompute=words[again[0]] if same else SOME, again=layers), seconds

    def _recut(
        self, of: "Figures", ground: Ground, turns: np.ndarray, room: np.ndarray, mesh: Mesh
    ) -> tuple[tuple[int, ...], list[int], float] | None:
        rows = self._rows_of(of, ground, turns, room, mesh)
        counts = _counts(rows, of.blocks, mesh.chunks)
        if counts is None:
            return None
        again = list[int]()
        for row, many in zip(rows, counts.tolist(), strict=True):
            few = int(row.counts[many])
            again += [int(row.thrifty[many])] * few + [int(row.quick[many])] * (many - few)
        ends = np.cumsum(counts) + 1
        ends[-1] += 1
        # Behind what the first microbatch needs to come to a stage lie all of its own there, where there is a flush.
        own_s = np.array([row.exact_s[many] for row, many in zip(rows, counts, strict=True)])
        each_s = own_s / turns
        ways_s = 0.0 if mesh.stale else np.cumsum(each_s) - each_s
        return tuple(ends.tolist()), again, float((own_s + ways_s).max())

    def chunks_s(self, mesh: Mesh) -> float:
        """Seconds that no cut of a mesh is below, in whatever number of chunks: these hold no fewer stashes than stages do."""
        mesh = replace(mesh, chunks=1)
        ground, figures = self._ground(mesh), self.figures(mesh.samples)
        turns, room = mesh.microbatches * mesh.width // ground.widths, ground.room_bytes - self._undivided(mesh, ground)
        rows = self._rows_of(figures, ground, turns, room, mesh)
        counts = _counts(rows, figures.blocks, 1)
        return inf if counts is None else float(max(row.seconds[n] for row, n in zip(rows, counts, strict=True)))

    def _chunk_ends(
        self, of: "Figures", ground: Ground, turns: np.ndarray, room: np.ndarray, mesh: Mesh
    ) -> tuple[int, ...] | None:
        """Borders of a mesh's chunks: each device has as many blocks as it is quick, and its chunks take as long as each other."""
        p, v, stage = mesh.depth, mesh.chunks, np.arange(mesh.depth)
        counts = _counts(self._rows_of(of, ground, turns, room, mesh), of.blocks, v)
        if counts is None:
            return None
        block_s = ground.slowest(np.repeat(of.block_s[0][:, None], p, axis=1))
        # In blocks, what the embedding takes before the first chunk's and the output behind the last one's.
        before_, behind = (
            ground.slowest(of.both_s(*ends)) / block_s
            for ends in ((stage == 0, 0 * stage), (0 * stage, stage == p - 1))
        )
        shares = np.arange(1, v + 1)[:, None] / v
        filled = np.clip(np.rint(shares * (before_ + counts + behind) - before_), 0, counts)
        filled[-1] = counts
        many = np.diff(filled, axis=0, prepend=0.0)
        many[0, 0], many[-1, -1] = many[0, 0] + 1, many[-1, -1] + 1
        ends: list[int] = np.cumsum(many.ravel()).astype(int).tolist()
        return tuple(ends) if many.min() >= 1 else None

    def _rows_of(self, of: "Figures", ground: Ground, turns: np.ndarray, room: np.ndarray, mesh: Mesh) -> list["_Row"]:
        """Of every stage; many meshes have stages that are alike."""
        p, stage = len(turns), np.arange(len(turns))
        most = of.blocks if p == 1 or len(self.types[0]) > 1 else min(of.blocks, 4 * -(-of.blocks // p) + 4)
        first, last = stage == 0, stage == p - 1
        block_s = [ground.slowest(np.repeat(own[:, None], p, axis=1)) for own in of.block_s]
        room = room + (self._twice(mesh) if p == 1 else 0.0)
        ahead, _, coming = flying(ground, mesh, turns)
        ahead = ahead.mean(axis=0)  # of chunks, which have as many blocks
        parts = np.broadcast_to(self._parts(mesh, ground.widths), p)
        twice = doubled(ground, mesh, bool(self._shared.any()))
        ends_s = ground.slowest(of.both_s(first, last))
        stages = np.column_stack((turns, ahead, coming, room, parts, *twice, first, last, ends_s, *block_s))
        keys = [(mesh.samples, most, row.tobytes()) for row in stages]
        new = {key: s for s, key in enumerate(keys) if key not in self._rows}
        if new:
            self._rows |= zip(new, _rows(of, stages[list(new.values())], most), strict=True)
        return [self._rows[key] for key in keys]

    def _same_cut(
        self, of: "Figures", ground: Ground, turns: np.ndarray, room: np.ndarray, mesh: Mesh
    ) -> tuple[tuple[int, ...], list[int], float] | None:
        p, v, total = mesh.depth, mesh.chunks, of.blocks
        cut = np.array((0, *mesh.ends))
        many = np.clip(np.minimum(cut[1:], total + 1) - np.maximum(cut[:-1], 1), 0, None).reshape(v, p)
        counts, _, coming = flying(ground, mesh, turns)
        first, last = np.zeros((v, p)), np.zeros((v, p))
        first[0, 0] = last[-1, -1] = 1
        n = many.sum(axis=0)
        gradients, state = (
            x[1] * n + x[0] * first.sum(axis=0) + x[2] * last.sum(axis=0)
            for x in (of.gradients, of.state_of(self._parts(mesh, ground.widths)))
        )
        besides = of.stash[0, 0] * first + of.stash[0, 2] * last + of.border * (last - first)
        # Blocks in the order in which they are made again: those of the first chunks, of which most are held.
        behind = np.cumsum(many, axis=0)
        chunk = (behind[None] <= np.arange(int(n.max()))[:, None, None]).sum(axis=1)
        held = np.where(chunk < v, np.take_along_axis(counts, np.minimum(chunk, v - 1), axis=0), 0)
        saving = np.cumsum(held, axis=0)
        least = _Least([ground.slowest(np.repeat(own[:, None], p, axis=1)) for own in of.block_s], n[:, None])
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
        return mesh.ends, [way for row in again.ravel() for way in row], float((least.seconds[:, 0] * turns).max())

    def profile_of(self, mesh: Mesh) -> ModelProfile:
        """The profile of a mesh's groups, each block made again in its way."""
        if mesh.again not in self._woven:
            by_word = {way.recompute: way.profile for way in self.ways}
            self._woven[mesh.again] = woven(by_word.__getitem__, mesh.again)
        return self._woven[mesh.again]

    def _tables_of(self, mesh: Mesh) -> Tables:
        figures = self.figures(mesh.samples)
        words = [way.recompute for way in self.ways]
        ways, layers = np.array([words.index(word) for word in mesh.again]), np.arange(len(mesh.again))
        forward_s, backward_s = (before(x[ways, :, layers].T) for x in figures.layers_s)
        return Tables(forward_s, backward_s, before(figures.layers_bytes[ways, layers]))

    def figures(self, samples: int) -> "Figures":
        """Of embedding, block and output at one microbatch size."""
        if samples not in self._figures:
            self._figures[samples] = Figures([way.columns for way in self.ways], samples)
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


class Figures:
    """A model's layers at one microbatch size, by way: of embedding, block and output where nothing else is said.

    Attributes:
        layers_s: forward and backward of all layers, each of shape (ways, types, layers); layers_bytes: stashes, (ways, layers).
        block_s: forward and backward of a block, shape (ways, types); ends_s: of embedding and output, (types, 2). stash, working:
            bytes; shape (ways, 3).
        kept, weights, optimizer, gradients: bytes of weights and buffers, weights alone, optimizer state and gradients; shape (3,).
            border: bytes from one block to the next.
    """

    def __init__(self, on: Sequence[Sequence[Columns]], samples: int) -> None:
        """Of figures by way and type."""
        columns = [own[0] for own in on]
        self.layers_s = tuple(
            np.array([[getattr(one.at(samples), name) for one in own] for own in on])
            for name in ("forward_s", "backward_s")
        )
        self.layers_bytes = np.array([own.at(samples).stash_bytes for own in columns])
        whole = self.layers_s[0] + self.layers_s[1]
        self.block_s, self.ends_s = whole[:, :, 1], whole[0][:, [0, -1]]
        three = [0, 1, -1]
        self.stash = self.layers_bytes[:, three]
        self.working = np.array([own.at(samples).working_bytes[three] for own in columns])
        profile = columns[0].profile
        layers = [profile.layers[k] for k in three]
        self.kept = np.array([x.weights_bytes + x.buffers_bytes for x in layers])
        self.weights = np.array([x.weights_bytes for x in layers])
        self.optimizer = np.array([x.optimizer_bytes for x in layers])
        self.gradients = np.array([x.gradients_bytes for x in layers])
        self.border = float(columns[0].at(samples).tensor_bytes[-1])
        self.blocks = len(profile.layers) - 2

    def state_of(
        self, parts: int | np.ndarray, more: float | np.ndarray = 0.0, summed: float | np.ndarray = 0.0
    ) -> np.ndarray:
        """Bytes of state where that of the optimizer is in so many parts, and of what is there twice of weights and of gradients; shape
        (3, stages), or (3, 1) of one number."""
        divided = self.kept[:, None] + self.optimizer[:, None] / np.atleast_1d(parts)
        return divided + self.weights[:, None] * more + self.gradients[:, None] * summed

    def both_s(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Seconds of embedding and output where they are; shape (types, stages)."""
        return self.ends_s[:, :1] * first + self.ends_s[:, 1:] * last


class _Least:
    """The least seconds of stages with n blocks, and the two ways and the number of the thrifty ones that give it.

    Arguments:
        block_s: of a block on each stage, by way.
    """

    def __init__(self, block_s: Sequence[np.ndarray], n: np.ndarray) -> None:
        self._n, shape = n, np.broadcast_shapes(n.shape, (len(block_s[0]), 1))
        self._block_s = [own[:, None] for own in block_s]
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


class _Row(NamedTuple):
    """Of a stage with 0, 1, ... blocks: least seconds of a batch, and no less than with fewer; the rest as `_Least`."""

    exact_s: np.ndarray
    seconds: np.ndarray
    quick: np.ndarray
    thrifty: np.ndarray
    counts: np.ndarray


def _rows(of: Figures, stages: np.ndarray, most: int) -> list[_Row]:
    """Of stages with up to so many blocks.

    Arguments:
        stages: of each its turns, microbatches in flight and whether more come behind these, bytes of room, parts of optimizer state,
            whether weights and sums of gradients are there twice, whether it is the first and the last, seconds of embedding and
            output, and of a block in each way.
    """
    turns, ahead, coming, room, parts, more, summed, first, last, ends_s = (one[:, None] for one in stages[:, :10].T)
    ways, n = len(of.block_s), np.arange(most + 1)
    gradients = of.gradients[1] * n + of.gradients[0] * first + of.gradients[2] * last
    each_of = of.state_of(*(one[:, 0] for one in (parts, more, summed)))[:, :, None]  # by layer and stage
    state = each_of[1] * n + each_of[0] * first + each_of[2] * last
    besides = of.stash[0, 0] * first + of.stash[0, 2] * last + of.border * (last - first)
    working = np.where(last > 0, of.working[0, 2], 0.0)
    least = _Least(list(stages[:, 10:].T), n[None, :])
    for quick, thrifty in (*((k, k) for k in range(ways)), *combinations(range(ways), 2)):
        each = of.stash[quick, 1]
        stash = each * n + besides
        load = ahead * stash + np.where(coming > 0, gradients, np.maximum(0.0, gradients - stash))
        beyond = state + load - room
        saved = ahead * (each - of.stash[thrifty, 1])
        count = least.count(beyond + np.maximum(working, of.working[quick, 1]), saved)
        # The first blocks of a stage are made again: what the others hold is gone by then.
        again = np.maximum(of.working[quick, 1], of.working[thrifty, 1] - (n - count) * each)
        least.offer(quick, thrifty, least.count(beyond + np.maximum(working, again), saved))
    exact_s = (least.seconds + ends_s) * turns
    seconds = np.maximum.accumulate(exact_s, axis=1)
    return [_Row(*row) for row in zip(exact_s, seconds, least.quick, least.thrifty, least.counts, strict=True)]


def _counts(rows: Sequence[_Row], blocks: int, chunks: int) -> np.ndarray | None:
    """How many blocks each device has, one in every chunk at least, but where embedding or output are; as `_shared`."""
    least = np.full(len(rows), chunks)
    least[[0, -1]] -= 1
    return _shared(np.stack([row.seconds for row in rows]), blocks, least if len(rows) > 1 else np.array([blocks]))


def _shared(seconds: np.ndarray, blocks: int, least: np.ndarray) -> np.ndarray | None:
    """How many blocks each stage has, so that the slowest is as quick as it can be; None where they have no room.

    Arguments:
        seconds: of a stage with 0, 1, ... blocks, never less with more, infinite where they do not fit; shape (stages, ...).
        least: of each stage.
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
