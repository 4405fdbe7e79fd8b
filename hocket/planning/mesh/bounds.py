"""Lower bounds on time and memory of parallel layouts, in closed form.

Rules of this file: a bound is never above the simulated value of the same candidate.
Source: Narayanan's dissertation, sections 4.2.2 (bubble), 4.3 (trade-offs, equation 4.1) and 3.3.3 (closed forms).
"""

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hocket.cost.compute import Columns
from hocket.cost.transfer import TransferTime, collective
from hocket.hardware.groups import Grouped
from hocket.planning.mesh.bound_tables import Bound, PrefixTables, before, doubled, flying, sums
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.placement import Between, StagePlacement
from hocket.planning.search.bounds.fully_sharded import Units, units_s
from hocket.planning.search.bounds.interleaved import interleaved_s
from hocket.planning.search.bounds.steady_state import steady_s
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind

WAITING = 6  # number of undelivered messages of a chunk, at both of its stage boundaries together


class MeshBounds:
    """Lower bounds for layouts of one profile on a cluster of tensor-parallel groups.

    Tables that layouts share are computed once.
    """

    def __init__(self, group: Grouped, profile: ModelProfile) -> None:
        """Prepare bounds for the profile of one tensor-parallel rank."""
        self.group, self.profile = group, profile
        layers = self.profile.layers
        self._held = sums(x.weights_bytes + x.buffers_bytes for x in layers)
        self._optimizer = sums(x.optimizer_bytes for x in layers)
        self._weights = sums(x.weights_bytes for x in layers)
        self._gradients = sums(x.gradients_bytes for x in layers)
        self._tables: dict[int, PrefixTables] = {}
        self._made: dict[int, np.ndarray] = {}
        self._grounds: dict[object, StagePlacement] = {}
        self._between: Between = {}
        self._rings: dict[tuple[Kind, tuple[int, ...]], TransferTime] = {}
        self._whole_s: dict[int, np.ndarray] = {}

    @cached_property
    def types(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Device types of the cluster, and the type's index of each tensor-parallel group."""
        names = [node.device_type for node in self.group.cluster.nodes] or [self.group.cluster.device_type]
        found = tuple(dict.fromkeys(names))
        counts = [node.devices for node in self.group.cluster.nodes] or [self.group.cluster.devices]
        return found, np.repeat([found.index(name) for name in names], counts)

    @cached_property
    def room_bytes(self) -> np.ndarray:
        """Memory in bytes of one device of each group, shape (groups,)."""
        cluster = self.group.cluster
        counts = [node.devices for node in cluster.nodes] or [cluster.devices]
        firsts = np.cumsum([0, *counts[:-1]]).tolist()
        return np.repeat([cluster.capacity_bytes(first) for first in firsts], counts)

    def least_bytes(self, mesh: ParallelLayout) -> float:
        """Lower bound of weights, optimizer state and gradients on the fullest device.

        The result is in bytes. It is quicker to compute than `bound` and never above the bytes of `bound`.
        """
        if mesh.units:
            return self._units_bytes(mesh)
        optimizer = self._optimizer[-1] / self._parts(mesh, max(map(len, mesh.places), default=mesh.width))
        whole = float(self._held[-1] + self._gradients[-1] + optimizer)
        if mesh.stale:  # there is a second copy of weights, gradients or both
            whole += float(np.minimum(np.diff(self._weights), np.diff(self._gradients)).sum())
        return whole / mesh.depth if mesh.depth > 1 else whole - self._twice(mesh)

    def least_s(self, mesh: ParallelLayout) -> float:
        """Lower bound of an iteration's seconds: computation in equally fast stages.

        It is quicker to compute than `bound` and never above the seconds of `bound`.
        """
        if mesh.samples not in self._whole_s:
            tables = self._tables_of(mesh)
            self._whole_s[mesh.samples] = tables.forward_s[:, -1] + tables.backward_s[:, -1]
        whole_s = self._whole_s[mesh.samples]
        if len(whole_s) == 1:
            return mesh.microbatches * float(whole_s[0]) / mesh.depth
        each_s = self._ground(mesh).slowest(np.repeat(whole_s[:, None], mesh.depth, axis=1))
        return mesh.microbatches / float((1 / each_s).sum())

    def bound(self, mesh: ParallelLayout) -> Bound:
        """Lower bound of a layout's iteration time and peak memory."""
        if mesh.units:
            return self._bound_of_units(mesh)
        tables, ground = self._tables_of(mesh), self._ground(mesh)
        cut = np.array((0, *mesh.ends))
        p, rank = mesh.depth, np.arange(len(cut) - 1) % mesh.depth
        turns = mesh.microbatches * mesh.width // ground.widths
        forward_s, backward_s = np.diff(tables.forward_s[:, cut]), np.diff(tables.backward_s[:, cut])
        both_s = forward_s + backward_s
        crossing = self._outputs(mesh.samples)[cut[1:-1] - 1]
        busy_s = turns * np.bincount(rank, ground.slowest(both_s))
        least_s, message_s = ground.quickest(both_s), ground.message_s(crossing)
        counts, again, coming = flying(ground, mesh, turns)
        twice = doubled(ground, mesh, bool(self._shared.any())) if mesh.stale else None
        if twice is not None:
            steps = ((range(*own), s, bool(twice[0][s])) for s, own in enumerate(pairwise(cut.tolist())))
            batch_s = busy_s + [self._step_s(mesh, ground, *step) for step in steps]
            rings_s = np.max(self._rings_s(mesh, ground, cut))  # one batch's collectives follow the previous batch's
            seconds = max(steady_s(batch_s, least_s, message_s, turns, counts[0]), float(rings_s))
        else:
            # A device waits for the first microbatch's forwards on earlier stages. After its last backward, the last
            # microbatch's backwards on earlier stages follow.
            ways = np.concatenate(([0.0], np.cumsum(least_s[:-1] + message_s)))
            if mesh.chunks == 1:  # a device has at most `counts` microbatches on the path to the last stage and back
                around_s = ways[-1] - ways + least_s[-1]
                busy_s = np.maximum(busy_s, turns * around_s / counts[0])
            spent_s = busy_s + ways[:p]
            # The path to the last stage and back lies before the first backward, and again after the last forward.
            beyond_s = ways[-1] + least_s[-1] - ways[-p:] - least_s[-p:]
            between_s = ((turns - counts) * ground.slowest(both_s).reshape(counts.shape)).sum(axis=0)
            spent_s = np.maximum(spent_s, again * (ways[-1] + least_s[-1] + beyond_s + between_s))
            first, last_s = range(mesh.ends[0]), float(ground.slowest(backward_s)[0])
            seconds = float(spent_s.max()) + max(0.0, self._summed_s(mesh, ground, first) - last_s)
            seconds += self._step_s(mesh, ground, first) + self._gathered_s(mesh, ground)
            if mesh.chunks == 1 and p > 1:
                seconds = max(seconds, float((busy_s + self._updates_s(mesh, ground, cut, backward_s)).max()))
        if ground.shared_s.any():
            seconds = max(seconds, self._busiest_s(mesh, ground, rank, crossing))
        held, kept = np.diff(self._held[cut]), np.diff(tables.stash_bytes[cut])
        # A message is kept by its receiver, as long as the stash there.
        kept[1:] += crossing
        kept[:-1] -= crossing
        stages = (
            np.bincount(rank, size) for size in (held, np.diff(self._gradients[cut]), np.diff(self._optimizer[cut]))
        )
        state, own_gradients, optimizer = stages
        state += optimizer / self._parts(mesh, ground.widths) + self._undivided(mesh, ground)
        if twice is not None:
            state += twice[0] * np.diff(self._weights[cut]) + twice[1] * own_gradients
        stashes = (counts * kept.reshape(counts.shape)).sum(axis=0)
        # Where as many microbatches are in flight once more, their stashes coexist with the gradients of all chunks.
        most: np.ndarray = state + np.where(coming, stashes + own_gradients, np.maximum(stashes, own_gradients))
        if len(cut) == 2:
            most -= self._twice(mesh)
        lacks = int((most - ground.room_bytes).argmax())
        return Bound(seconds, float(most[lacks]), float(ground.room_bytes[lacks]))

    def _bound_of_units(self, mesh: ParallelLayout) -> Bound:
        tables, ground = self._tables_of(mesh), self._ground(mesh)
        whole_s = tables.forward_s + tables.backward_s
        slowest = int(whole_s[:, -1].argmax())  # all replicas wait for the replicas of the slowest type
        units = Units(
            np.diff(self._weights),
            np.diff(self._gradients),
            np.diff(whole_s[slowest]),
            np.diff(tables.backward_s).max(axis=0),
            [self._step_s(mesh, ground, range(k, k + 1)) for k in range(len(self.profile.layers))],
        )
        seconds = units_s(units, self.group.cluster, mesh.stands[0], mesh.microbatches)
        # With several microbatches, gradients are whole until the last one.
        more = float(tables.stash_bytes[-1] + (self._gradients[-1] if mesh.microbatches > 1 else 0.0))
        return Bound(seconds, self._units_bytes(mesh) + more, float(ground.room_bytes.min()))

    def _units_bytes(self, mesh: ParallelLayout) -> float:
        """Bytes of all buffers, and of one shard of all weights and optimizer state."""
        whole, divided = self._held[-1] - self._weights[-1], self._weights[-1] + self._optimizer[-1]
        return float(whole + divided / mesh.width)

    def closer_s(self, mesh: ParallelLayout) -> float:
        """Closer lower bound in seconds for an interleaved layout: its longest path.

        Unlike `bound`, it takes into account that chunks are unequal.
        """
        tables, ground = self._tables_of(mesh), self._ground(mesh)
        cut, shape = np.array((0, *mesh.ends)), (mesh.chunks, mesh.depth)
        forward_s, backward_s = np.diff(tables.forward_s[:, cut]), np.diff(tables.backward_s[:, cut])
        forth_s, back_s = (ground.quickest(seconds).reshape(shape) for seconds in (forward_s, backward_s))
        message_s = ground.message_s(self._outputs(mesh.samples)[cut[1:-1] - 1]) / 2
        ends_s = interleaved_s(forth_s, back_s, message_s, mesh.microbatches)
        # On the first device, each chunk's gradient sum follows its last backward, one sum at a time.
        # Then all optimizer steps follow.
        slowest_s = ground.slowest(backward_s)
        summed_s, steps_s = 0.0, 0.0
        for c in reversed(range(mesh.chunks)):
            layers = range(cut[c * mesh.depth], cut[c * mesh.depth + 1])
            summed_s = max(summed_s, float(ends_s[c] - slowest_s[c * mesh.depth])) + self._summed_s(
                mesh, ground, layers
            )
            steps_s += self._step_s(mesh, ground, layers)
        return max(float(ends_s[0]), summed_s) + max(
            steps_s, self._step_s(mesh, ground, layers) + self._gathered_s(mesh, ground)
        )

    def waiting_bytes(self, mesh: ParallelLayout) -> np.ndarray:
        """Approximate peak of undelivered messages on each stage of a pipeline, in bytes.

        There are WAITING messages for each chunk. In addition, outputs of the last chunk can wait until its first
        gradient returns (program/memory_bound/send_completion.py): one output for each forward before this gradient.
        Each message counts as much as the largest one (`border_bytes`).
        """
        counts, _, _ = flying(self._ground(mesh), mesh, mesh.microbatches * mesh.width // self._ground(mesh).widths)
        waiting: np.ndarray = (counts[-1] + WAITING * mesh.chunks) * self.border_bytes(mesh.samples)
        return waiting

    def border_bytes(self, samples: int) -> float:
        """Largest message between two neighbouring layers, in bytes."""
        return float(self._outputs(samples).max())

    @cached_property
    def _shared(self) -> np.ndarray:
        """Bytes that a sum over all layers counts twice because of tied weights.

        Returns:
            Bytes of weights, gradients and optimizer state, shape (3,).
        """
        sizes = Columns(self.profile).parameters
        names = [name for layer in self.profile.layers for name in layer.parameters]
        found: np.ndarray = sum(
            ((names.count(name) - 1) * np.array(sizes[name]) for name in sorted(set(names))), np.zeros(3)
        )
        return found

    def _twice(self, mesh: ParallelLayout) -> float:
        """Bytes that a sum over a device's layers counts twice if there is one stage.

        They are weights, gradients and optimizer state of tied weights.
        """
        weights, gradients, optimizer = self._shared.tolist()
        return float(weights + gradients + optimizer / self._parts(mesh, mesh.width))

    def _undivided(self, mesh: ParallelLayout, ground: StagePlacement) -> np.ndarray:
        """Bytes of optimizer state of tied weights that are not yet counted, by stage.

        Tied weights are used by the first and the last stage. Their optimizer state is never sharded among the replicas
        of a stage. A sum over all weights has counted one shard of this state. The other shards are added here.

        Returns:
            Bytes of shape (stages,). They are 0 for all stages except the first and the last, with a single stage, and
                if no optimizer state is sharded.
        """
        found = np.zeros(mesh.depth)
        if mesh.depth > 1:
            found[[0, -1]] = float(self._shared[2])
        found *= 1 - 1 / np.broadcast_to(self._parts(mesh, ground.widths), mesh.depth)
        return found

    @staticmethod
    def _parts(mesh: ParallelLayout, widths: Any) -> Any:
        """Number of shards of the optimizer state on stages with `widths` replicas."""
        return widths if mesh.sharded else 1

    def _busiest_s(self, mesh: ParallelLayout, ground: StagePlacement, rank: np.ndarray, crossing: np.ndarray) -> float:
        cut = np.array((0, *mesh.ends))
        weights, summed = (np.bincount(rank, np.diff(sizes[cut])) for sizes in (self._weights, self._gradients))
        for sizes, shared in zip((weights, summed), self._shared.tolist(), strict=False):
            sizes[[0, -1]] = np.maximum(0.0, sizes[[0, -1]] - shared)
        none = np.zeros(mesh.depth)
        carried = (none, summed, weights) if mesh.sharded else (summed, none, none)
        return ground.busiest_s(crossing, np.array(carried), mesh.microbatches)

    def _summed_s(self, mesh: ParallelLayout, ground: StagePlacement, layers: range) -> float:
        """Seconds to sum the gradients of some layers over the first stage's replicas."""
        gradients = float(self._gradients[layers.stop] - self._gradients[layers.start])
        if layers.start == 0:  # gradients of shared weights are summed once, or by all their stages at the same time
            gradients = max(0.0, gradients - float(self._shared[1]))
        kind = Kind.REDUCE_SCATTER if mesh.sharded else Kind.ALL_REDUCE
        return sum(collective(self.group.cluster, kind, mesh.stands[0], gradients)) if ground.widths[0] > 1 else 0.0

    def _updates_s(
        self, mesh: ParallelLayout, ground: StagePlacement, cut: np.ndarray, backward_s: np.ndarray
    ) -> np.ndarray:
        """Seconds from each stage's last backward to its updated weights."""
        summed_s, gathered_s = self._rings_s(mesh, ground, cut)
        steps_s = ground.quickest(np.diff(self._steps_s[:, cut])) / self._parts(mesh, ground.widths)
        found: np.ndarray = np.maximum(0.0, summed_s - ground.slowest(backward_s)) + steps_s + gathered_s
        return found

    def _rings_s(self, mesh: ParallelLayout, ground: StagePlacement, cut: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of each stage's gradient sum, and of its all-gather of new weights."""
        gradients, weights = np.diff(self._gradients[cut]), np.diff(self._weights[cut])
        for sizes, shared in ((gradients, self._shared[1]), (weights, self._shared[0])):
            sizes[[0, -1]] = np.maximum(0.0, sizes[[0, -1]] - shared)
        gathers = mesh.sharded * (ground.widths > 1)
        kind = Kind.REDUCE_SCATTER if mesh.sharded else Kind.ALL_REDUCE
        return self._ring_s(kind, mesh, gradients), gathers * self._ring_s(Kind.ALL_GATHER, mesh, weights)

    def _ring_s(self, kind: Kind, mesh: ParallelLayout, sizes_bytes: np.ndarray) -> np.ndarray:
        """Seconds of a collective among the replicas of each stage.

        Arguments:
            sizes_bytes: bytes of the collective, by stage.
        """
        for place in mesh.stands:
            if (kind, place) not in self._rings:
                self._rings[kind, place] = collective(self.group.cluster, kind, place, 1.0)
        latency_s, byte_s = np.array([self._rings[kind, place] for place in mesh.stands]).T
        found: np.ndarray = latency_s + byte_s * sizes_bytes
        return found

    @cached_property
    def _steps_s(self) -> np.ndarray:
        """Prefix sums of optimizer step seconds, shape (types, layers + 1)."""
        return before(np.array([[layer.step_s for layer in one.profile.layers] for one in self.columns]))

    def _gathered_s(self, mesh: ParallelLayout, ground: StagePlacement) -> float:
        """Seconds of the all-gather of the first stage's new weights; 0 if not sharded."""
        weights = max(0.0, float(self._weights[mesh.ends[0]] - self._shared[0]))
        return sum(collective(self.group.cluster, Kind.ALL_GATHER, mesh.stands[0], weights)) if mesh.sharded else 0.0

    def _step_s(
        self, mesh: ParallelLayout, ground: StagePlacement, layers: range, stage: int = 0, copies: bool = False
    ) -> float:
        """Seconds of some layers' optimizer step on the fastest replica of their stage.

        Arguments:
            stage: number of the stage.
            copies: True if the step keeps the old weights.
        """
        on = zip(self.columns, ground.has[:, stage], strict=True)
        share = 1 / self._parts(mesh, int(ground.widths[stage]))
        return min(one.step_s(layers, copies, share) for one, has in on if has)

    @cached_property
    def columns(self) -> list[Columns]:
        """Figures of the profile on each device type."""
        own = Columns(self.profile)
        return [own.on(name) or own for name in self.types[0]]

    def _outputs(self, samples: int) -> np.ndarray:
        """Bytes of each layer's output that the next layer saves for its backward."""
        if samples not in self._made:
            made = np.zeros(len(self.profile.layers))
            for tensor, size in zip(self.profile.tensors, self.profile.tensor_bytes(samples), strict=True):
                if tensor.source >= 0 and tensor.source + 1 in tensor.kept_by:
                    made[tensor.source] += size
            self._made[samples] = made
        return self._made[samples]

    def _tables_of(self, mesh: ParallelLayout) -> "PrefixTables":
        if mesh.samples not in self._tables:
            self._tables[mesh.samples] = PrefixTables.of(self.columns, mesh.samples)
        return self._tables[mesh.samples]

    def _ground(self, mesh: ParallelLayout) -> StagePlacement:
        """Placement of a layout's stages; many layouts share one."""
        key = mesh.places or (mesh.depth, mesh.width)
        if key not in self._grounds:
            cluster = self.group.cluster
            self._grounds[key] = StagePlacement.of(cluster, mesh.stands, self.types[1], self.room_bytes, self._between)
        return self._grounds[key]
