"""Recompute cut: stages that are equally fast and fit, with little recomputation.

Rules of this file:
- A model is an embedding, equal blocks, and an output.
- A stage recomputes only as many blocks as its memory requires. A stage with more stashes recomputes more or has fewer
  blocks. A stage on slower devices has fewer blocks.
- Bytes are estimates; the simulator decides whether a layout fits.
Source: Narayanan's dissertation, sections 3.3.1 (recomputation), 3.3.3 (MEMORY) and 4.3.5 (number of recomputed
blocks).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import ceil, inf

import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.planning.mesh.block_costs import BlockFigures
from hocket.planning.mesh.bound_tables import PrefixTables, before, doubled, flying
from hocket.planning.mesh.bounds import WAITING
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace, Source
from hocket.planning.mesh.placement import StagePlacement
from hocket.planning.predict.stage_table import Least, StageRow, counts_of, rows_of
from hocket.profiling.profile import ModelProfile

SOME = "some"  # blocks have different recompute settings


class RecomputeCut(LayoutSpace):
    """Layouts of one tensor-parallel size; their blocks may differ in recomputation.

    Arguments:
        ways: one layout space for each recompute setting, the fastest setting first.
    """

    def __init__(self, ways: Sequence[LayoutSpace]) -> None:
        first = ways[0]
        super().__init__(replace(first.family, recompute=SOME), first.group, first.profile)
        self.ways = tuple(ways)
        self._figures: dict[int, BlockFigures] = {}
        self._woven: dict[tuple[str, ...], ModelProfile] = {}
        self._rows: dict[tuple[int, int, bytes], StageRow] = {}

    def fitted(self, mesh: ParallelLayout, excess_bytes: float | np.ndarray = 0.0) -> ParallelLayout | None:
        """Cut a layout into stages that fit, with little recomputation; None if none fit.

        Stage boundaries of an interleaved layout are kept if it has some. Otherwise they are chosen here.

        Arguments:
            excess_bytes: simulated bytes beyond the estimate of this class, by stage or for all stages.
        """
        found = self.cut_s(mesh, excess_bytes)
        return found and found[0]

    def cut_s(
        self, mesh: ParallelLayout, excess_bytes: float | np.ndarray = 0.0
    ) -> tuple[ParallelLayout, float] | None:
        """The layout of `fitted` with its lower bound in seconds; None if nothing fits."""
        if mesh.units:
            return self._units_cut(mesh, float(np.max(excess_bytes)))
        ground, figures = self._ground(mesh), self.figures(mesh.samples)
        turns = mesh.microbatches * mesh.width // ground.widths
        # Beside undelivered messages, a margin of `WAITING` messages covers bytes that are not modelled here.
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
        return self._marked(replace(mesh, ends=ends), again), seconds

    def _marked(self, mesh: ParallelLayout, again: Sequence[int]) -> ParallelLayout:
        """The layout with a recompute setting for each block.

        Arguments:
            again: number of the setting in `ways`, by block.
        """
        words = [way.recompute for way in self.ways]
        layers = (words[0], *(words[k] for k in again), words[0])
        return replace(mesh, recompute=words[again[0]] if len(set(again)) == 1 else SOME, again=layers)

    def _units_cut(self, mesh: ParallelLayout, excess_bytes: float) -> tuple[ParallelLayout, float] | None:
        """Choose the recomputed blocks of FSDP units: all are on each device, with one microbatch at a time.

        Two settings are combined. The first blocks have the setting with fewer saved activations, and are as many as
        the memory requires. The memory is fullest when the last forward ends, with the last two units gathered, or in
        the backward of the last block, with two blocks gathered and the gradients of two units. With several
        microbatches, all gradients are there at both times.
        """
        of, room = self.figures(mesh.samples), float(self.room_bytes.min()) - excess_bytes
        at_end = float(of.stash[0, 2] + of.weights[1:].sum())
        behind = float(2 * of.weights[1] + of.border)
        if mesh.microbatches > 1:
            at_end, behind = at_end + float(self._gradients[-1]), behind + float(self._gradients[-1])
        else:
            behind += float(of.gradients[1:].sum())
        rest = self._units_bytes(mesh) + float(of.stash[0, 0]) + max(at_end, behind)
        each_s, pairs = of.block_s.max(axis=1), combinations(range(len(self.ways)), 2)
        found: list[tuple[float, int, int, int]] = []
        for quick, thrifty in (*((k, k) for k in range(len(self.ways))), *pairs):
            working = float(max(of.working[quick, 1], of.working[0, 2]))
            beyond = rest + of.blocks * float(of.stash[quick, 1]) + working - room
            saved = float(of.stash[quick, 1] - of.stash[thrifty, 1])
            few = 0 if beyond <= 0 else ceil(beyond / saved) if saved > 0 else of.blocks + 1
            if few <= of.blocks:
                seconds = float(few * each_s[thrifty] + (of.blocks - few) * each_s[quick])
                found.append((seconds, few, quick, thrifty))
        if not found:
            return None
        seconds, few, quick, thrifty = min(found)
        again = [thrifty] * few + [quick] * (of.blocks - few)
        return self._marked(mesh, again), mesh.microbatches * (seconds + float(of.ends_s.sum(axis=1).max()))

    def _recut(
        self, of: BlockFigures, ground: StagePlacement, turns: np.ndarray, room: np.ndarray, mesh: ParallelLayout
    ) -> tuple[tuple[int, ...], list[int], float] | None:
        rows = self._rows_of(of, ground, turns, room, mesh)
        counts = counts_of(rows, of.blocks, mesh.chunks)
        if counts is None:
            return None
        again = list[int]()
        for row, many in zip(rows, counts.tolist(), strict=True):
            few = int(row.counts[many])
            again += [int(row.thrifty[many])] * few + [int(row.quick[many])] * (many - few)
        ends = np.cumsum(counts) + 1
        ends[-1] += 1
        # With a flush, a stage runs all its microbatches after the first one has reached it.
        own_s = np.array([row.exact_s[many] for row, many in zip(rows, counts, strict=True)])
        each_s = own_s / turns
        ways_s = 0.0 if mesh.stale else np.cumsum(each_s) - each_s
        return tuple(ends.tolist()), again, float((own_s + ways_s).max())

    def chunks_s(self, mesh: ParallelLayout) -> float:
        """Lower bound in seconds for all cuts of a layout and all numbers of chunks.

        It is computed for one chunk on each device: with more chunks, a device has at least as many saved activations.
        """
        mesh = replace(mesh, chunks=1)
        ground, figures = self._ground(mesh), self.figures(mesh.samples)
        turns, room = mesh.microbatches * mesh.width // ground.widths, ground.room_bytes - self._undivided(mesh, ground)
        rows = self._rows_of(figures, ground, turns, room, mesh)
        counts = counts_of(rows, figures.blocks, 1)
        return inf if counts is None else float(max(row.seconds[n] for row, n in zip(rows, counts, strict=True)))

    def _chunk_ends(
        self, of: BlockFigures, ground: StagePlacement, turns: np.ndarray, room: np.ndarray, mesh: ParallelLayout
    ) -> tuple[int, ...] | None:
        """Ends of a layout's chunks; None if memory is too small or a chunk is empty.

        The blocks of each device follow from its speed and memory. The chunks of a device take nearly equal time.
        """
        p, v, stage = mesh.depth, mesh.chunks, np.arange(mesh.depth)
        counts = counts_of(self._rows_of(of, ground, turns, room, mesh), of.blocks, v)
        if counts is None:
            return None
        block_s = ground.slowest(np.repeat(of.block_s[0][:, None], p, axis=1))
        # Time of the embedding before the first chunk's blocks and of the output after the last chunk's, in blocks.
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

    def _rows_of(
        self, of: BlockFigures, ground: StagePlacement, turns: np.ndarray, room: np.ndarray, mesh: ParallelLayout
    ) -> list[StageRow]:
        """Costs of every stage by its number of blocks (predict/stage_table.py); cached.

        Arguments:
            turns, room: number of microbatches that each device runs in a batch, and its bytes of memory; by stage.
        """
        p, stage = len(turns), np.arange(len(turns))
        most = of.blocks if p == 1 or len(self.types[0]) > 1 else min(of.blocks, 4 * -(-of.blocks // p) + 4)
        first, last = stage == 0, stage == p - 1
        block_s = [ground.slowest(np.repeat(own[:, None], p, axis=1)) for own in of.block_s]
        room = room + (self._twice(mesh) if p == 1 else 0.0)
        ahead, _, coming = flying(ground, mesh, turns)
        ahead = ahead.mean(axis=0)  # over chunks with equal numbers of blocks
        parts = np.broadcast_to(self._parts(mesh, ground.widths), p)
        twice = doubled(ground, mesh, bool(self._shared.any()))
        ends_s = ground.slowest(of.both_s(first, last))
        stages = np.column_stack((turns, ahead, coming, room, parts, *twice, first, last, ends_s, *block_s))
        keys = [(mesh.samples, most, row.tobytes()) for row in stages]
        new = {key: s for s, key in enumerate(keys) if key not in self._rows}
        if new:
            self._rows |= zip(new, rows_of(of, stages[list(new.values())], most), strict=True)
        return [self._rows[key] for key in keys]

    def _same_cut(
        self, of: BlockFigures, ground: StagePlacement, turns: np.ndarray, room: np.ndarray, mesh: ParallelLayout
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
        # Blocks in the order of their recomputation: first chunks first, since they hold the most stashes.
        behind = np.cumsum(many, axis=0)
        chunk = (behind[None] <= np.arange(int(n.max()))[:, None, None]).sum(axis=1)
        held = np.where(chunk < v, np.take_along_axis(counts, np.minimum(chunk, v - 1), axis=0), 0)
        saving = np.cumsum(held, axis=0)
        least = Least([ground.slowest(np.repeat(own[:, None], p, axis=1)) for own in of.block_s], n[:, None])
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

    def profile_of(self, mesh: ParallelLayout) -> ModelProfile:
        """Profile of a tensor-parallel group, with each block's recompute setting."""
        if mesh.again not in self._woven:
            by_word = {way.recompute: way.profile for way in self.ways}
            self._woven[mesh.again] = woven(by_word.__getitem__, mesh.again)
        return self._woven[mesh.again]

    def _tables_of(self, mesh: ParallelLayout) -> PrefixTables:
        figures = self.figures(mesh.samples)
        words = [way.recompute for way in self.ways]
        ways, layers = np.array([words.index(word) for word in mesh.again]), np.arange(len(mesh.again))
        forward_s, backward_s = (before(x[ways, :, layers].T) for x in figures.layers_s)
        return PrefixTables(forward_s, backward_s, before(figures.layers_bytes[ways, layers]))

    def figures(self, samples: int) -> BlockFigures:
        """Seconds and bytes of embedding, block and output at one microbatch size; cached."""
        if samples not in self._figures:
            self._figures[samples] = BlockFigures([way.columns for way in self.ways], samples)
        return self._figures[samples]


def layout_space_of(
    source: Source, cluster: Cluster, mesh: ParallelLayout, sizes: tuple[int, ...], slices: bool
) -> LayoutSpace:
    """Layout space that contains a given layout, on a cluster.

    Arguments:
        sizes: microbatch sizes.
        slices: True if each tensor-parallel rank sends only a slice of a message between stages (scatter/gather).
    """
    words = tuple(dict.fromkeys(mesh.again)) or (mesh.recompute,)
    family = LayoutFamily(mesh.tensor, "none", sizes, slices, mesh.sequence_parallel, (mesh.shard,))
    ways = [LayoutSpace.of(source, cluster, replace(family, recompute=word)) for word in words]
    return RecomputeCut(ways) if mesh.again else ways[0]


def woven(source: Callable[[str], ModelProfile], again: tuple[str, ...]) -> ModelProfile:
    """Profile with a recompute setting for each layer.

    Arguments:
        source: function from a recompute setting to the profile in which all layers have this setting.
    """
    layers = {word: source(word).layers for word in dict.fromkeys(again)}
    return replace(source(again[0]), layers=tuple(layers[word][k] for k, word in enumerate(again)))
