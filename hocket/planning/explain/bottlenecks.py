"""Where the time of an iteration goes for a mesh, and what stands in the way of quicker ones.

Rules of this file: seconds are the profile's, laid on the mesh; what no part explains is the pipeline's filling and draining, then the
rest.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from hocket.cost.compute import Columns
from hocket.planning.mesh.model_profiles import SizedSpace
from hocket.planning.mesh.simulated import SimulatedLayout
from hocket.profiling.profile import ModelProfile


@dataclass(frozen=True)
class Bottlenecks:
    """Time of an iteration by cause, as the mean over devices, and obstacles to faster layouts.

    Attributes:
        compute_s: forwards and backwards; recompute_s: what is made again for backwards; reductions_s: reductions among a
            tensor-parallel group; step_s: of the optimizer.
        bubble_s: filling and draining the pipeline; other_s: transfers, sums of gradients, and stages that wait for slower ones.
        memory_share: of the fullest device.
    """

    compute_s: float
    recompute_s: float
    reductions_s: float
    step_s: float
    bubble_s: float
    other_s: float
    memory_share: float

    def shares(self) -> dict[str, float]:
        """Parts of an iteration, by what takes them."""
        names = ("compute", "recompute", "reductions", "step", "bubble", "other")
        seconds = {name: float(getattr(self, f"{name}_s")) for name in names}
        whole = sum(seconds.values())
        return {name: value / whole for name, value in seconds.items()}


def limits_of(space: SizedSpace, found: SimulatedLayout) -> Bottlenecks:
    """Bottlenecks of a layout found in a search space."""
    mesh = found.mesh
    group, own = found.plane.profile_of(mesh), space.profile_of(found)
    plain = space.profile_with(found, "none")

    def busy_s(profile: ModelProfile) -> float:
        columns, stands = Columns(profile), mesh.stands
        kinds = [space.devices[kind].name for kind in found.plane.types[1].tolist()] if len(space.devices) > 1 else []
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
