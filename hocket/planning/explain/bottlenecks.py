"""Bottlenecks of a parallel layout: the time of an iteration by cause.

Rules of this file: seconds of computation come from the profile. The time that they leave unexplained counts as fill
and drain of the pipeline, up to the closed form of these; the rest has other causes.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from hocket.cost.compute import Columns
from hocket.planning.mesh.model_profiles import SizedSpace
from hocket.planning.mesh.search.simulated import SimulatedLayout
from hocket.profiling.profile import ModelProfile


@dataclass(frozen=True)
class Bottlenecks:
    """Time of an iteration by cause, as the mean over devices.

    Attributes:
        compute_s: forwards and backwards.
        recompute_s: recomputation before backwards.
        reductions_s: collectives within tensor-parallel groups.
        step_s: optimizer steps.
        bubble_s: fill and drain of the pipeline.
        other_s: transfers, gradient sums, and waiting for slower stages.
        memory_share: used share of the memory of the fullest device.
    """

    compute_s: float
    recompute_s: float
    reductions_s: float
    step_s: float
    bubble_s: float
    other_s: float
    memory_share: float

    def shares(self) -> dict[str, float]:
        """Shares of an iteration by cause; they add up to 1."""
        names = ("compute", "recompute", "reductions", "step", "bubble", "other")
        seconds = {name: float(getattr(self, f"{name}_s")) for name in names}
        whole = sum(seconds.values())
        return {name: value / whole for name, value in seconds.items()}


def limits_of(space: SizedSpace, found: SimulatedLayout) -> Bottlenecks:
    """Bottlenecks of a simulated layout.

    Arguments:
        space: space in which the layout was found.
    """
    mesh = found.mesh
    group, own = found.space.profile_of(mesh), space.profile_of(found)
    plain = space.profile_with(found, "none")

    def busy_s(profile: ModelProfile) -> float:
        columns, stands = Columns(profile), mesh.stands
        kinds = [space.devices[kind].name for kind in found.space.types[1].tolist()] if len(space.devices) > 1 else []
        busy_s = 0.0
        for s, (begin, end) in enumerate(pairwise((0, *mesh.ends))):
            place = stands[s % mesh.depth]
            turns = mesh.microbatches * mesh.width / len(place)
            for name, count in (
                Counter(kinds[g] for g in place).items() if kinds else ((space.device.name, len(place)),)
            ):
                figures = (columns.on(name) or columns).at(mesh.samples)
                both_s = figures.forward_s[begin:end].sum() + figures.backward_s[begin:end].sum()
                busy_s += float(both_s) * turns * count
        return busy_s / sum(map(len, stands))

    whole_s, alone_s, compute_s = busy_s(group), busy_s(own), busy_s(plain)
    step_s = sum(layer.step_s for layer in own.layers) / mesh.depth / (mesh.width if mesh.sharded else 1)
    bubble_s = 0.0 if mesh.stale else whole_s * (mesh.depth - 1) / (mesh.microbatches * mesh.chunks)
    rest_s = max(0.0, found.iteration_s - whole_s - step_s)
    bubble_s = min(bubble_s, rest_s)
    return Bottlenecks(
        compute_s,
        alone_s - compute_s,
        whole_s - alone_s,
        step_s,
        bubble_s,
        rest_s - bubble_s,
        found.bytes / found.room_bytes,
    )
