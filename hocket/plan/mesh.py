"""Meshes: a model on p x t x d devices, and how good each way to divide them can be at best.

Rules of this file: p stages (v chunks of them on each device), groups of t devices, d columns; m microbatches of b samples a
column. A bound is never above what the simulator says of the same choice.
Source: dissertation sections 4.2.2 (bubble), 4.3 (trade-offs, equation 4.1), 3.3.3 (closed forms).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Protocol

import numpy as np

from hocket.cost.compute import Columns, step_s
from hocket.cost.group import of_group
from hocket.cost.transfer import collective
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import Grouped, grouped
from hocket.passes.borders import StageCut
from hocket.passes.gradients import DEFAULT_BUCKET_BYTES, buckets_of
from hocket.plan.bound_chunks import interleaved_s
from hocket.plan.bound_units import Units, units_s
from hocket.plan.ground import Ground, Places
from hocket.profile.model import ModelProfile
from hocket.program.instruction import Kind
from hocket.strategies._balance import Balancer, Ends, runs
from hocket.strategies._choices import Choice, Situation

STRATEGIES = ("data_parallel", "fully_sharded", "flush", "interleaved")
WAITING = 6  # borders' messages of a chunk that can wait at either side of it
_STAGES: dict[str, list[str]] = {"none": [], "optimizer": ["z1"], "full": ["z3"]}  # of ZeRO
_MOST_PLACES = 512  # to cut a model at: blocks are alike, so that none may be left out


class Source(Protocol):
    """A job's profiles: on one of `tensor` devices, with what is made again inside of blocks, on slices of the sequence or not."""

    def __call__(
        self, tensor: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False
    ) -> ModelProfile: ...


@dataclass(frozen=True)
class Mesh:
    """One way to divide devices.

    Attributes:
        tensor, depth, width, chunks: t, p, d and v. samples, microbatches: b and m.
        recompute: inside of blocks (cost/analytic.py); "some" where not all of them do the same. ends: where each stage's layers
            end.
        again: of every layer, what is made again inside of it, where not all do the same (tailor.py).
        places: groups of each stage, where they do not stand side by side in columns. Where their numbers differ, `width` is 1
            and `microbatches` counts all.
        sequence_parallel: whether blocks work on slices of the sequence.
        shard: what columns divide of their state (docs/sharding.md): "none", "optimizer", or "full" of one stage, whose layers are
            units then.
    """

    tensor: int
    depth: int
    width: int
    chunks: int
    samples: int
    microbatches: int
    recompute: str
    ends: Ends
    again: tuple[str, ...] = ()
    places: Places = ()
    sequence_parallel: bool = False
    shard: str = "none"

    @property
    def batch_size(self) -> int:
        """Samples of an update."""
        return self.microbatches * self.samples * self.width

    @property
    def stands(self) -> Places:
        """Groups of the stages of the first round; chunks behind it stand on the same."""
        d = self.width
        return self.places or tuple(tuple(range(r * d, (r + 1) * d)) for r in range(self.depth))

    @property
    def sharded(self) -> bool:
        """Whether optimizer state and step are divided among columns."""
        return self.shard != "none"

    @property
    def units(self) -> bool:
        """Whether each layer is a unit of `fully_sharded`."""
        return self.shard == "full"

    @property
    def again_by_stage(self) -> tuple[dict[str, int], ...]:
        """How many layers of each stage are made again in each way, where not all do the same."""
        return tuple(dict(Counter(self.again[i] for i in run)) for run in runs(self.ends)) if self.again else ()

    @property
    def strategy(self) -> str:
        """The schedule's name."""
        if self.units:
            return "fully_sharded"
        return "data_parallel" if self.depth == 1 else "flush" if self.chunks == 1 else "interleaved"

    @property
    def config(self) -> str:
        """Stages, members of a group (s: on slices of the sequence), columns, chunks and z1 where columns divide optimizer state, z3 where
        they divide weights, too, such as "p8 t8s d2 v3 z1"; unlike numbers of columns "d2-2-4"."""
        widths = list(dict.fromkeys(len(place) for place in self.places)) if self.width == 1 else []
        columns = (
            "-".join(str(len(place)) for place in self.places) if len(widths) > 1 else max(widths, default=self.width)
        )
        members = f"t{self.tensor}{'s' if self.sequence_parallel else ''}"
        more = [f"v{self.chunks}"] * (self.chunks > 1) + _STAGES[self.shard]
        return " ".join((f"p{self.depth} {members} d{columns}", *more))

    def __str__(self) -> str:
        counts = Counter(word for word in self.again if word != "none")
        words = [f"{word} {count}" for word, count in sorted(counts.items())] or [self.recompute]
        again = f" recompute {', '.join(words)}" if words != ["none"] else ""
        return f"{self.config} b{self.samples}{again}"


@dataclass(frozen=True)
class Bound:
    """What no simulation of a mesh is below: seconds of an iteration, bytes on the device that lacks most, and what it has."""

    seconds: float
    bytes: float
    room_bytes: float = float("inf")

    @property
    def fits(self) -> bool:
        """Whether it may fit."""
        return self.bytes <= self.room_bytes


class Plane:
    """Meshes of one tensor-parallel width and one way to recompute: what they share is worked out once.

    Arguments:
        shards: what columns may divide of their state; a single column divides nothing. strategies: of `STRATEGIES`, what meshes may be.
    """

    def __init__(
        self,
        source: Source,
        cluster: Cluster,
        tensor: int,
        recompute: str,
        sizes: tuple[int, ...],
        slices: bool = True,
        sequence_parallel: bool = False,
        shards: tuple[str, ...] = ("none",),
        strategies: tuple[str, ...] = STRATEGIES,
    ) -> None:
        slices = slices and not sequence_parallel  # or borders are slices already
        group = grouped(cluster, tensor, slices)
        profile = of_group(source(tensor, recompute, sizes, sequence_parallel), group)
        self._set(tensor, recompute, sizes, slices, sequence_parallel, group, profile, (shards, strategies))

    def _set(
        self,
        tensor: int,
        recompute: str,
        sizes: tuple[int, ...],
        slices: bool,
        sequence_parallel: bool,
        group: Grouped,
        profile: ModelProfile,
        open_: tuple[tuple[str, ...], tuple[str, ...]],
    ) -> None:
        self.shards, self.strategies = open_
        self.tensor, self.recompute, self.sizes, self.slices = tensor, recompute, sizes, slices
        self.sequence_parallel, self.group, self.profile = sequence_parallel, group, profile
        layers = self.profile.layers
        self._held = sums(x.weights_bytes + x.buffers_bytes for x in layers)
        self._optimizer = sums(x.optimizer_bytes for x in layers)
        self._weights = sums(x.weights_bytes for x in layers)
        self._gradients = sums(x.gradients_bytes for x in layers)
        self._tables: dict[int, Tables] = {}
        self._made: dict[int, np.ndarray] = {}
        self._grounds: dict[object, Ground] = {}
        self._whole_s: dict[int, float] = {}

    @cached_property
    def types(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Device types of the cluster, and the number of its type for every group."""
        names = [node.device_type for node in self.group.cluster.nodes] or [self.group.cluster.device_type]
        found = tuple(dict.fromkeys(names))
        counts = [node.devices for node in self.group.cluster.nodes] or [self.group.cluster.devices]
        return found, np.repeat([found.index(name) for name in names], counts)

    @cached_property
    def room_bytes(self) -> np.ndarray:
        """Memory of each group's members; shape (groups,)."""
        cluster = self.group.cluster
        counts = [node.devices for node in cluster.nodes] or [cluster.devices]
        firsts = np.cumsum([0, *counts[:-1]]).tolist()
        return np.repeat([cluster.capacity_bytes(first) for first in firsts], counts)

    @cached_property
    def _shared(self) -> np.ndarray:
        """Bytes that a stage of all layers has once, though two of them count them: of weights, gradients and optimizer state."""
        sizes = Columns(self.profile).parameters
        names = [name for layer in self.profile.layers for name in layer.parameters]
        found: np.ndarray = sum(
            ((names.count(name) - 1) * np.array(sizes[name]) for name in sorted(set(names))), np.zeros(3)
        )
        return found

    def _twice(self, mesh: Mesh) -> float:
        """These of a mesh of one stage."""
        weights, gradients, optimizer = self._shared.tolist()
        return float(weights + gradients + optimizer / self._parts(mesh, mesh.width))

    @staticmethod
    def _parts(mesh: Mesh, widths: Any) -> Any:
        """Into how many parts the optimizer state of stages with so many replicas is divided."""
        return widths if mesh.sharded else 1

    @cached_property
    def _balancer(self) -> Balancer:
        return Balancer(self.profile, self.sizes[0], _MOST_PLACES)

    @cached_property
    def ends(self) -> list[Ends]:
        """Balanced cuts into 1, 2, ... stages."""
        return self._balancer.cuts(len(self.profile.layers))

    def meshes(self, batch_size: int) -> Iterator[Mesh]:
        """All that divide devices, batch and layers."""
        for mesh, chunks in self.uncut(batch_size):
            yield from self.cut(mesh, chunks)

    def uncut(self, batch_size: int) -> Iterator[tuple[Mesh, tuple[int, ...]]]:
        """Meshes without layers, each with the numbers of chunks that it may have: these share their first bounds."""
        devices, most = self.group.cluster.devices, len(self._balancer.places) - 1
        for width, samples in product(_divisors(devices), self.sizes):
            microbatches, rest = divmod(batch_size, width * samples)
            depth = devices // width
            if rest or not microbatches or depth > most:
                continue
            whole_rounds = depth > 1 and microbatches % depth == 0
            several = range(2, most // depth + 1) if whole_rounds and "interleaved" in self.strategies else ()
            for shard in self.shards_of(width, depth):
                own = Mesh(
                    self.tensor,
                    depth,
                    width,
                    1,
                    samples,
                    microbatches,
                    self.recompute,
                    (),
                    sequence_parallel=self.sequence_parallel,
                    shard=shard,
                )
                if chunks := (1,) * (own.strategy in self.strategies) + tuple(several):
                    yield own, chunks

    def cut(self, mesh: Mesh, chunks: Iterable[int]) -> Iterator[Mesh]:
        """A mesh without layers, with balanced stages of each of these numbers of chunks."""
        for number in chunks:
            yield replace(mesh, chunks=number, ends=self.ends[mesh.depth * number - 1])

    def shards_of(self, width: int, depth: int) -> tuple[str, ...]:
        """What so many columns of so many stages may divide of their state."""
        if width == 1:
            return ("none",)
        # Units are those of one stage, and none has weights of another's.
        return tuple(shard for shard in self.shards if shard != "full" or (depth == 1 and not self._shared.any()))

    def least_bytes(self, mesh: Mesh) -> float:
        """State and gradients on the fullest device at least: quicker than `bound`, and never above its bytes."""
        if mesh.units:
            return self._units_bytes(mesh)
        optimizer = self._optimizer[-1] / self._parts(mesh, max(map(len, mesh.places), default=mesh.width))
        whole = float(self._held[-1] + self._gradients[-1] + optimizer)
        return whole / mesh.depth if mesh.depth > 1 else whole - self._twice(mesh)

    def least_s(self, mesh: Mesh) -> float:
        """Seconds of compute at least, as if stages could be equal: quicker than `bound`, and never above it."""
        if mesh.samples not in self._whole_s:
            tables = self._tables_of(mesh)
            self._whole_s[mesh.samples] = float((tables.forward_s[:, -1] + tables.backward_s[:, -1]).min())
        return mesh.microbatches * self._whole_s[mesh.samples] / mesh.depth

    def bound(self, mesh: Mesh) -> Bound:
        """Seconds and bytes, in closed form."""
        if mesh.units:
            return self._bound_of_units(mesh)
        tables, ground = self._tables_of(mesh), self._ground(mesh)
        cut = np.array((0, *mesh.ends))
        p, rank = mesh.depth, np.arange(len(cut) - 1) % mesh.depth
        turns = mesh.microbatches * mesh.width // ground.widths
        forward_s, backward_s = np.diff(tables.forward_s[:, cut]), np.diff(tables.backward_s[:, cut])
        both_s = forward_s + backward_s
        busy_s = turns * np.bincount(rank, ground.slowest(both_s))
        crossing = self._outputs(mesh.samples)[cut[1:-1] - 1]
        least_s, message_s = ground.quickest(both_s), ground.message_s(crossing)
        # Into a device lies the way of the first microbatch, out of it that of the last.
        ways = np.concatenate(([0.0], np.cumsum(least_s[:-1] + message_s)))
        spent_s = busy_s + ways[:p]
        counts, again, coming = flying(ground, mesh.chunks, turns)
        # Before the first backward lies the way to the end and back; behind the last forward lies it once more.
        beyond_s = ways[-1] + least_s[-1] - ways[-p:] - least_s[-p:]
        between_s = ((turns - counts) * ground.slowest(both_s).reshape(counts.shape)).sum(axis=0)
        spent_s = np.maximum(spent_s, again * (ways[-1] + least_s[-1] + beyond_s + between_s))
        first, last_s = range(mesh.ends[0]), float(ground.slowest(backward_s)[0])
        seconds = float(spent_s.max()) + max(0.0, self._summed_s(mesh, ground, first) - last_s)
        seconds += self._step_s(mesh, ground, first) + self._gathered_s(mesh, ground)
        if ground.shared_s.any():
            seconds = max(seconds, self._busiest_s(mesh, ground, rank, crossing))
        held, kept = np.diff(self._held[cut]), np.diff(tables.stash_bytes[cut])
        # What crosses a border is kept where it was received, as long as the stash there.
        kept[1:] += crossing
        kept[:-1] -= crossing
        stages = (
            np.bincount(rank, size) for size in (held, np.diff(self._gradients[cut]), np.diff(self._optimizer[cut]))
        )
        state, own_gradients, optimizer = stages
        state += optimizer / self._parts(mesh, ground.widths)
        stashes = (counts * kept.reshape(counts.shape)).sum(axis=0)
        # Gradients of all chunks are there beside these stashes where they come again, a round of microbatches later.
        most: np.ndarray = state + np.where(coming, stashes + own_gradients, np.maximum(stashes, own_gradients))
        if len(cut) == 2:
            most -= self._twice(mesh)
        lacks = int((most - ground.room_bytes).argmax())
        return Bound(seconds, float(most[lacks]), float(ground.room_bytes[lacks]))

    def _busiest_s(self, mesh: Mesh, ground: Ground, rank: np.ndarray, crossing: np.ndarray) -> float:
        cut = np.array((0, *mesh.ends))
        weights, summed = (np.bincount(rank, np.diff(sizes[cut])) for sizes in (self._weights, self._gradients))
        for sizes, shared in zip((weights, summed), self._shared.tolist(), strict=False):
            sizes[[0, -1]] = np.maximum(0.0, sizes[[0, -1]] - shared)
        carried = (weights + summed) / 2 if mesh.sharded else summed  # half of a ring's way scatters, half gathers
        return ground.busiest_s(crossing, carried, mesh.microbatches)

    def _bound_of_units(self, mesh: Mesh) -> Bound:
        tables, ground = self._tables_of(mesh), self._ground(mesh)
        whole_s = tables.forward_s + tables.backward_s
        slowest = int(whole_s[:, -1].argmax())  # of the types, whose replicas all others wait for
        units = Units(
            np.diff(self._weights),
            np.diff(self._gradients),
            np.diff(whole_s[slowest]),
            np.diff(tables.backward_s).max(axis=0),
            [self._step_s(mesh, ground, range(k, k + 1)) for k in range(len(self.profile.layers))],
        )
        seconds = units_s(units, self.group.cluster, mesh.stands[0], mesh.microbatches)
        # Of several microbatches gradients are whole until the last.
        more = float(tables.stash_bytes[-1] + (self._gradients[-1] if mesh.microbatches > 1 else 0.0))
        return Bound(seconds, self._units_bytes(mesh) + more, float(ground.room_bytes.min()))

    def _units_bytes(self, mesh: Mesh) -> float:
        """State of a replica, which has a part of all weights."""
        whole, divided = self._held[-1] - self._weights[-1], self._weights[-1] + self._optimizer[-1]
        return float(whole + divided / mesh.width)

    def closer_s(self, mesh: Mesh) -> float:
        """Seconds that no simulation of a mesh with chunks is below: as `bound`, and chunks need not be alike."""
        tables, ground = self._tables_of(mesh), self._ground(mesh)
        cut, shape = np.array((0, *mesh.ends)), (mesh.chunks, mesh.depth)
        forward_s, backward_s = np.diff(tables.forward_s[:, cut]), np.diff(tables.backward_s[:, cut])
        forth_s, back_s = (ground.quickest(seconds).reshape(shape) for seconds in (forward_s, backward_s))
        message_s = ground.message_s(self._outputs(mesh.samples)[cut[1:-1] - 1]) / 2
        ends_s = interleaved_s(forth_s, back_s, message_s, mesh.microbatches)
        # The first device's sums begin with a chunk's last backward, one after the other, and then all its steps.
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

    def _summed_s(self, mesh: Mesh, ground: Ground, layers: range) -> float:
        """Of the gradients of some of the first device's layers."""
        gradients = float(self._gradients[layers.stop] - self._gradients[layers.start])
        if layers.start == 0:  # what stages share is summed once, or beside the rest by all that have it
            gradients = max(0.0, gradients - float(self._shared[1]))
        kind = Kind.REDUCE_SCATTER if mesh.sharded else Kind.ALL_REDUCE
        return sum(collective(self.group.cluster, kind, mesh.stands[0], gradients)) if ground.widths[0] > 1 else 0.0

    def _gathered_s(self, mesh: Mesh, ground: Ground) -> float:
        """Of the first stage's new weights, of which each replica has a part."""
        weights = max(0.0, float(self._weights[mesh.ends[0]] - self._shared[0]))
        return sum(collective(self.group.cluster, Kind.ALL_GATHER, mesh.stands[0], weights)) if mesh.sharded else 0.0

    def choice(self, mesh: Mesh, batch_size: int) -> tuple[Situation, Choice]:
        """A mesh as the planner's choice."""
        gradients = [layer.gradients_bytes for layer in self.profile.layers]
        cuts, stands = [], mesh.stands
        for s, layers in enumerate(runs(mesh.ends) if not mesh.units else [(k,) for k in range(mesh.ends[-1])]):
            place = stands[s % mesh.depth]
            buckets: tuple[tuple[int, ...], ...] = ()
            if len(place) > 1:
                found = buckets_of([gradients[i] for i in layers], DEFAULT_BUCKET_BYTES)
                buckets = tuple(tuple(layers[i] for i in bucket) for bucket in found)
            cuts.append(StageCut(layers, place, False, buckets, shard=mesh.shard))
        situation = Situation(self.profile_of(mesh), self.group.cluster, batch_size, (mesh.samples,))
        return situation, Choice(tuple(cuts), mesh.samples, batch_size // mesh.samples)

    def waiting_bytes(self, mesh: Mesh) -> np.ndarray:
        """By stage of a column, about the most that its device holds of messages which others are late to take.

        What the last chunk makes can wait until its first gradient comes back (program/over.py): as many as are forward by then.
        """
        counts, _, _ = flying(
            self._ground(mesh), mesh.chunks, mesh.microbatches * mesh.width // self._ground(mesh).widths
        )
        waiting: np.ndarray = (counts[-1] + WAITING * mesh.chunks) * self.border_bytes(mesh.samples)
        return waiting

    def border_bytes(self, samples: int) -> float:
        """The most that one layer hands to the next."""
        return float(self._outputs(samples).max())

    def _outputs(self, samples: int) -> np.ndarray:
        """Bytes that leave each layer and are kept by the layer behind it."""
        if samples not in self._made:
            made = np.zeros(len(self.profile.layers))
            for tensor, size in zip(self.profile.tensors, self.profile.tensor_bytes(samples), strict=True):
                if tensor.source >= 0 and tensor.source + 1 in tensor.kept_by:
                    made[tensor.source] += size
            self._made[samples] = made
        return self._made[samples]

    def profile_of(self, mesh: Mesh) -> ModelProfile:
        """The profile of a mesh's groups."""
        return self.profile

    def _tables_of(self, mesh: Mesh) -> "Tables":
        if mesh.samples not in self._tables:
            self._tables[mesh.samples] = Tables.of(self.profile, self.types[0], mesh.samples)
        return self._tables[mesh.samples]

    def _ground(self, mesh: Mesh) -> Ground:
        """Where a mesh's stages stand; many meshes stand on the same."""
        key = mesh.places or (mesh.depth, mesh.width)
        if key not in self._grounds:
            self._grounds[key] = Ground.of(self.group.cluster, mesh.stands, self.types[1], self.room_bytes)
        return self._grounds[key]

    def _step_s(self, mesh: Mesh, ground: Ground, layers: range) -> float:
        """Of some layers on the first stage's quickest replica."""
        on = zip(self._on, ground.has[:, 0], strict=True)
        share = 1 / self._parts(mesh, int(ground.widths[0]))
        return min(step_s(one, layers, share=share) for one, has in on if has)

    @cached_property
    def _on(self) -> list[ModelProfile]:
        """The profile on each type."""
        return [self.profile.on(name) if name in self.profile.elsewhere else self.profile for name in self.types[0]]


@dataclass(frozen=True)
class Tables:
    """Figures of the layers before each layer, and of all; shapes (types, layers + 1) and (layers + 1,)."""

    forward_s: np.ndarray
    backward_s: np.ndarray
    stash_bytes: np.ndarray

    @classmethod
    def of(cls, profile: ModelProfile, types: tuple[str, ...], samples: int) -> "Tables":
        """Of a profile that knows these types, at one microbatch size."""
        columns = Columns(profile)
        each = [columns.on(name) or columns for name in types]
        forward_s, backward_s = (
            np.array([sums(getattr(one.at(samples), name)) for one in each]) for name in ("forward_s", "backward_s")
        )
        return cls(forward_s, backward_s, sums(columns.at(samples).stash_bytes))


def flying(ground: Ground, chunks: int, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Microbatches that each device has forward before its first backward (strategies/flush.py, interleaved.py), by chunk.

    Arguments:
        turns: microbatches of each device.

    Returns:
        shape (chunks, stages); whether forwards come behind that backward; whether as many are there again when the device has
        gradients of all its chunks.
    """
    if chunks == 1:
        ahead = ground.flying(turns)
        return ahead[None, :], ahead < turns, ahead < turns
    depth, virtual, round_ = len(turns), turns * chunks, len(turns) * chunks
    ahead = np.minimum(virtual, 2 * (depth - np.arange(depth) - 1) + (chunks - 1) * depth + 1)
    whole, rest = np.divmod(ahead, round_)
    counts = whole * depth + np.clip(rest - np.arange(chunks)[:, None] * depth, 0, depth)
    return counts, ahead < virtual, ahead + round_ <= virtual


def planes(
    source: Source,
    cluster: Cluster,
    tensors: Iterable[int],
    recomputes: Iterable[str],
    sizes: tuple[int, ...],
    sequence_parallel: Iterable[bool] = (False, True),
    shards: tuple[str, ...] = ("none",),
    strategies: tuple[str, ...] = STRATEGIES,
) -> Iterator[Plane]:
    """One for every width that fits model and cluster, on slices of the sequence and not, as far as that divides."""
    for tensor, recompute, along in product(tensors, recomputes, sequence_parallel):
        try:
            yield Plane(
                source,
                cluster,
                tensor,
                recompute,
                sizes,
                sequence_parallel=along,
                shards=shards,
                strategies=strategies,
            )
        except InputError:
            continue


def sums(values: Iterable[float]) -> np.ndarray:
    """What is before each, and all together."""
    return np.concatenate(([0.0], np.cumsum(np.fromiter(values, dtype=float))))


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]
