"""Estimated profiles of an analytic model for a cluster, and its layout spaces.

Rules of this file: no search, measurement or allocation; each profile is computed once.
"""

from collections.abc import Iterator
from dataclasses import replace

from hocket.cost.analytic.calibration import Calibration
from hocket.cost.analytic.transformer import RECOMPUTE, BlockExecution, analytic
from hocket.hardware.cluster import Cluster
from hocket.hardware.device_type import DeviceType
from hocket.planning.mesh.layout import STALE, STRATEGIES, USUAL
from hocket.planning.mesh.layout_space import LayoutSpace, spaces
from hocket.planning.mesh.recompute_cut import woven
from hocket.planning.mesh.search.simulated import SimulatedLayout
from hocket.planning.predict.update_semantics import considered
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile

SIZES = (1, 2, 4, 8, 16)  # default microbatch sizes


class SizedSpace:
    """Model, cluster and request of a search.

    Attributes:
        model, cluster, request: as given.
        devices: device types of the cluster.
        device: the first of these.
    """

    def __init__(self, model: Transformer, cluster: Cluster, request: PlanRequest) -> None:
        self.model, self.cluster, self.request = model, cluster, request
        self.devices = _types_of(cluster)
        self.device = self.devices[0]
        self._profiles: dict[tuple[int, str, tuple[int, ...], bool], ModelProfile] = {}

    @property
    def batch_size(self) -> int:
        """Samples of one update."""
        return self.request.batch_size

    def profile(
        self, tensor: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False
    ) -> ModelProfile:
        """Profile of one tensor-parallel rank; cached.

        Arguments:
            recompute: recompute setting of all blocks.
            sizes: microbatch sizes.
        """
        key = (tensor, recompute, sizes, sequence_parallel)
        if key not in self._profiles:
            first, *others = (
                analytic(
                    self.model,
                    device,
                    BlockExecution(tensor, recompute, sequence_parallel),
                    precision=self.request.precision,
                    calibration=self._calibration_of(device),
                    microbatch_sizes=sizes,
                )
                for device in self.devices
            )
            self._profiles[key] = first.knowing(others) if others else first
        return self._profiles[key]

    def _calibration_of(self, device: DeviceType) -> Calibration | None:
        """Calibration of the request, if it is for this device type.

        In a heterogeneous cluster, only one device type may be calibrated. If the calibration is for a device type that
        the cluster does not have, it is returned for every device type, so that `analytic` refuses it with an error.

        Returns:
            None if seconds are to be computed from the catalogue's figures of the device type.
        """
        factors = self.request.calibration
        known = factors is None or any(factors.device_type == one.name for one in self.devices)
        return factors if not known or (factors and factors.device_type == device.name) else None

    def share(self, other: "SizedSpace") -> None:
        """Share the profile cache of another space of the same model.

        It is shared only if both spaces have the same device types.
        """
        if other.devices == self.devices:
            self._profiles = other._profiles

    def spaces(self, cluster: Cluster, request: PlanRequest) -> Iterator[LayoutSpace]:
        """All layout spaces of a search, on this cluster or one with the same devices."""
        # A fused attention kernel recomputes scores in any case.
        ways = [word for word in RECOMPUTE if word != "selective" or not self.model.fused_attention]
        whole = replace(
            request,
            strategies=considered_meshes(request),
            microbatch_sizes=sizes_of(request),
            tensors=request.tensors or divisors(cluster.devices),
            recomputes=tuple(dict.fromkeys(request.recomputes)) or ways,
        )
        return spaces(self.profile, cluster, whole)

    def profile_of(self, found: SimulatedLayout) -> ModelProfile:
        """Profile of one tensor-parallel rank, which the plan of a layout names."""
        if found.mesh.again:
            return woven(lambda word: self.profile_with(found, word), found.mesh.again)
        return self.profile_with(found, found.mesh.recompute)

    def profile_with(self, found: SimulatedLayout, recompute: str) -> ModelProfile:
        """Profile of the layout with one recompute setting for all blocks."""
        return self.profile(found.mesh.tensor, recompute, found.space.sizes, found.mesh.sequence_parallel)


def considered_meshes(request: PlanRequest) -> tuple[str, ...]:
    """Names of the strategies that a search for an analytic model considers."""
    return considered(request.strategies, request.synchronous, STRATEGIES, (*USUAL, *STALE), "for an analytic model ")


def sizes_of(request: PlanRequest) -> tuple[int, ...]:
    """Microbatch sizes that a search considers, ascending."""
    named = tuple(sorted(set(request.microbatch_sizes)))
    return named or tuple(size for size in SIZES if size <= request.batch_size)


def divisors(devices: int) -> tuple[int, ...]:
    """Tensor-parallel sizes to try; `spaces` skips sizes that do not fit."""
    return tuple(width for width in range(1, devices + 1) if devices % width == 0)


def _types_of(cluster: Cluster) -> tuple[DeviceType, ...]:
    firsts = {cluster.node_of(device).device_type: device for device in reversed(range(cluster.devices))}
    return tuple(cluster.type_of(first) for first in sorted(firsts.values()))
