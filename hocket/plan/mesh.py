"""Meshes: a model on p x t x d devices, and how good each way to divide them can be at best.

Rules of this file: p stages (v chunks of them on each device), groups of t devices, d columns; m microbatches of b samples a
column. A bound is never above what the simulator says of the same choice.
Source: dissertation sections 4.2.2 (bubble), 4.3 (trade-offs, equation 4.1), 3.3.3 (closed forms).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Protocol

import numpy as np

from hocket.cost.compute import Columns, step_s
from hocket.cost.group import of_group
from hocket.cost.transfer import collective
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import grouped
from hocket.passes.borders import StageCut
from hocket.passes.gradients import DEFAULT_BUCKET_BYTES, buckets_of
from hocket.profile.model import ModelProfile
from hocket.program.instruction import Kind
from hocket.strategies._balance import Balancer, Ends, runs
from hocket.strategies._choices import Choice, Situation

_MOST_PLACES = 512  # to cut a model at: blocks are alike, so that none may be left out


class Source(Protocol):
    """A job's profiles: on one of `tensor` devices, with what is made again inside of blocks."""

    def __call__(self, tensor: int, recompute: str, sizes: tuple[int, ...]) -> ModelProfile: ...


@dataclass(frozen=True)
class Mesh:
    """One way to divide devices.

    Attributes:
        tensor, depth, width, chunks: t, p, d and v. samples, microbatches: b and m.
        recompute: inside of blocks (cost/analytic.py). ends: where each stage's layers end.
    """

    tensor: int
    depth: int
    width: int
    chunks: int
    samples: int
    microbatches: int
    recompute: str
    ends: Ends

    @property
    def strategy(self) -> str:
        """The schedule's name."""
        return "data_parallel" if self.depth == 1 else "flush" if self.chunks == 1 else "interleaved"

    @property
    def config(self) -> str:
        """Stages, members of a group, columns and chunks, such as "p8 t8 d2 v3"."""
        return f"p{self.depth} t{self.tensor} d{self.width}" + (f" v{self.chunks}" if self.chunks > 1 else "")

    def __str__(self) -> str:
        again = f" recompute {self.recompute}" if self.recompute != "none" else ""
        return f"{self.config} b{self.samples}{again}"


@dataclass(frozen=True)
class Bound:
    """What no simulation of a mesh is below: seconds of an iteration, bytes on its fullest device."""

    seconds: float
    bytes: float


class Plane:
    """Meshes of one tensor-parallel width and one way to recompute: what they share is worked out once."""

    def __init__(
        self,
        source: Source,
        cluster: Cluster,
        tensor: int,
        recompute: str,
        sizes: tuple[int, ...],
        slices: bool = True,
    ) -> None:
        self.tensor, self.recompute, self.sizes, self.slices = tensor, recompute, sizes, slices
        self.group = grouped(cluster, tensor, slices)
        self.profile = of_group(source(tensor, recompute, sizes), self.group)
        layers = self.profile.layers
        self._held = _sums(x.weights_bytes + x.optimizer_bytes + x.buffers_bytes for x in layers)
        self._gradients = _sums(x.gradients_bytes for x in layers)
        self._tables: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._made: dict[int, np.ndarray] = {}

    @cached_property
    def _twice(self) -> float:
        """Bytes that a stage of all layers has once, though two of them count them."""
        sizes = Columns(self.profile).parameters
        names = [name for layer in self.profile.layers for name in layer.parameters]
        return sum((names.count(name) - 1) * sum(sizes[name]) for name in set(names) if names.count(name) > 1)

    @cached_property
    def ends(self) -> list[Ends]:
        """Balanced cuts into 1, 2, ... stages."""
        return Balancer(self.profile, self.sizes[0], _MOST_PLACES).cuts(len(self.profile.layers))

    def meshes(self, batch_size: int) -> Iterator[Mesh]:
        """All that divide devices, batch and layers."""
        devices = self.group.cluster.devices
        for width, samples in product(_divisors(devices), self.sizes):
            microbatches, rest = divmod(batch_size, width * samples)
            depth = devices // width
            if rest or not microbatches or depth > len(self.ends):
                continue
            for chunks in range(1, len(self.ends) // depth + 1):
                if chunks == 1 or (depth > 1 and microbatches % depth == 0):
                    yield Mesh(
                        self.tensor,
                        depth,
                        width,
                        chunks,
                        samples,
                        microbatches,
                        self.recompute,
                        self.ends[depth * chunks - 1],
                    )

    def least_bytes(self, mesh: Mesh) -> float:
        """State and gradients on the fullest device at least: quicker than `bound`, and never above its bytes."""
        whole = float(self._held[-1] + self._gradients[-1])
        return whole / mesh.depth if mesh.depth > 1 else whole - self._twice

    def bound(self, mesh: Mesh) -> Bound:
        """Seconds and bytes, in closed form."""
        forward, backward, stash = self._figures(mesh.samples)
        cut = np.array((0, *mesh.ends))
        forward_s, backward_s = np.diff(forward[cut]), np.diff(backward[cut])
        held, kept = np.diff(self._held[cut]), np.diff(stash[cut])
        p, m, rank = mesh.depth, mesh.microbatches, np.arange(len(cut) - 1) % mesh.depth
        busy_s = m * np.bincount(rank, forward_s + backward_s)
        # Into a device lies the way of the first microbatch, out of it that of the last.
        ways = np.concatenate(([0.0], np.cumsum((forward_s + backward_s)[: p - 1])))
        reduced_s = 0.0
        if mesh.width > 1:
            size = float(np.diff(self._gradients[cut])[0])
            ring = collective(self.group.cluster, Kind.ALL_REDUCE, tuple(range(mesh.width)), size)
            reduced_s = max(0.0, sum(ring) - backward_s[0])
        seconds = float((busy_s + ways).max()) + step_s(self.profile, range(mesh.ends[0])) + reduced_s
        # What crosses a border is kept where it was received, as long as the stash there.
        crossing = self._outputs(mesh.samples)[cut[1:-1] - 1]
        kept[1:] += crossing
        kept[:-1] -= crossing
        state, gradients = np.bincount(rank, held), np.bincount(rank, np.diff(self._gradients[cut]))
        stashes, again = _in_flight(p, mesh.chunks, m, kept)
        # Gradients of all chunks are there beside these stashes where they come again, a round of microbatches later.
        most: np.ndarray = state + np.where(again, stashes + gradients, np.maximum(stashes, gradients))
        if len(cut) == 2:
            most -= self._twice
        return Bound(seconds, float(most.max()))

    def choice(self, mesh: Mesh, batch_size: int) -> tuple[Situation, Choice]:
        """A mesh as the planner's choice: the replicas of a stage stand side by side."""
        p, d = mesh.depth, mesh.width
        gradients = [layer.gradients_bytes for layer in self.profile.layers]
        cuts = []
        for s, layers in enumerate(runs(mesh.ends)):
            first = s % p * d
            buckets: tuple[tuple[int, ...], ...] = ()
            if d > 1:
                found = buckets_of([gradients[i] for i in layers], DEFAULT_BUCKET_BYTES)
                buckets = tuple(tuple(layers[i] for i in bucket) for bucket in found)
            cuts.append(StageCut(layers, tuple(range(first, first + d)), False, buckets))
        situation = Situation(self.profile, self.group.cluster, batch_size, (mesh.samples,))
        return situation, Choice(tuple(cuts), mesh.samples, batch_size // mesh.samples)

    def _outputs(self, samples: int) -> np.ndarray:
        """Bytes that leave each layer and are kept by the layer behind it."""
        if samples not in self._made:
            made = np.zeros(len(self.profile.layers))
            for tensor, size in zip(self.profile.tensors, self.profile.tensor_bytes(samples), strict=True):
                if tensor.source >= 0 and tensor.source + 1 in tensor.kept_by:
                    made[tensor.source] += size
            self._made[samples] = made
        return self._made[samples]

    def _figures(self, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if samples not in self._tables:
            names = ("forward_s", "backward_s", "stash_bytes")
            first, second, third = (_sums(self.profile.column(name, samples)) for name in names)
            self._tables[samples] = first, second, third
        return self._tables[samples]


def _in_flight(depth: int, chunks: int, microbatches: int, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the stashes that each device has in its order (strategies/flush.py, interleaved.py) before its first backward.

    Arguments:
        kept: of each stage's stash, for one microbatch.

    Returns:
        Bytes; whether the device comes to hold as many again when it has gradients of all its chunks.
    """
    ranks, virtual, round_ = np.arange(depth), microbatches * chunks, depth * chunks
    if chunks == 1:
        ahead, round_ = np.minimum(virtual, depth - ranks), 1
    else:
        ahead = np.minimum(virtual, 2 * (depth - ranks - 1) + (chunks - 1) * depth + 1)
    whole, rest = np.divmod(ahead, depth * chunks)
    if chunks == 1:
        counts = ahead[None, :]
    else:
        counts = whole * depth + np.clip(rest - np.arange(chunks)[:, None] * depth, 0, depth)
    return (counts * kept.reshape(chunks, depth)).sum(axis=0), ahead + round_ <= virtual


def planes(
    source: Source, cluster: Cluster, tensors: Iterable[int], recomputes: Iterable[str], sizes: tuple[int, ...]
) -> Iterator[Plane]:
    """One for every width that fits model and cluster."""
    for tensor, recompute in product(tensors, recomputes):
        try:
            yield Plane(source, cluster, tensor, recompute, sizes)
        except InputError:
            continue


def _sums(values: Iterable[float]) -> np.ndarray:
    return np.concatenate(([0.0], np.cumsum(np.fromiter(values, dtype=float))))


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]
