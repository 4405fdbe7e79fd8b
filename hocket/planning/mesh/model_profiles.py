"""An analytic model on a cluster: estimated profiles for its device types, and the layout spaces to search.

Rules of this file: nothing is searched, measured or allocated; each profile is worked out once.
"""

from collections.abc import Iterator, Sequence

from hocket.cost.analytic.calibration import Calibration
from hocket.cost.analytic.transformer import RECOMPUTE, Precision, analytic
from hocket.hardware.cluster import Cluster
from hocket.hardware.device_type import DeviceType
from hocket.planning.mesh.layout import STALE, STRATEGIES, USUAL
from hocket.planning.mesh.layout_space import LayoutSpace, planes
from hocket.planning.mesh.recompute_cut import woven
from hocket.planning.mesh.simulated import SimulatedLayout
from hocket.planning.predict.update_semantics import considered
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from hocket.program.program import SHARDS


class SizedSpace:
    """Model, cluster and calibration of a search.

    Attributes:
        model, cluster, batch_size, precision, calibration: what was asked. devices: types of the cluster; device: the first of them.
    """

    def __init__(
        self,
        model: Transformer,
        cluster: Cluster,
        batch_size: int,
        precision: Precision,
        calibration: Calibration | None = None,
    ) -> None:
        self.model, self.cluster, self.batch_size, self.precision = model, cluster, batch_size, precision
        self.calibration = calibration
        self.devices = _types_of(cluster)
        self.device = self.devices[0]
        self._profiles: dict[tuple[int, str, tuple[int, ...], bool], ModelProfile] = {}

    def profile(
        self, tensor: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False
    ) -> ModelProfile:
        """Profile of one tensor-parallel rank; cached."""
        key = (tensor, recompute, sizes, sequence_parallel)
        if key not in self._profiles:
            first, *others = (
                analytic(
                    self.model,
                    device,
                    tensor=tensor,
                    sequence_parallel=sequence_parallel,
                    recompute=recompute,
                    precision=self.precision,
                    calibration=self._calibration_of(device),
                    microbatch_sizes=sizes,
                )
                for device in self.devices
            )
            self._profiles[key] = first.knowing(others) if others else first
        return self._profiles[key]

    def _calibration_of(self, device: DeviceType) -> Calibration | None:
        """Calibration of a device type. In a heterogeneous cluster one type may be calibrated, others use the catalogue."""
        factors = self.calibration
        known = factors is None or any(factors.device_type == one.name for one in self.devices)
        return factors if not known or (factors and factors.device_type == device.name) else None

    def share(self, other: "SizedSpace") -> None:
        """Take the profiles of another space of the same model and numbers, where its devices are the same."""
        if other.devices == self.devices:
            self._profiles = other._profiles

    def planes(
        self,
        cluster: Cluster,
        sizes: tuple[int, ...],
        tensors: Sequence[int] = (),
        recomputes: Sequence[str] = (),
        sequence_parallel: Sequence[bool] = (False, True),
        shards: Sequence[str] = SHARDS,
        strategies: Sequence[str] = (),
        synchronous: bool | None = None,
    ) -> Iterator[LayoutSpace]:
        """All layout spaces of a search, on this cluster or on one of the same devices.

        Arguments as of `search_sizes`.
        """
        widths = tuple(tensors) or divisors(cluster.devices)
        # In a fused kernel scores are made again in any case.
        ways = tuple(dict.fromkeys(recomputes)) or tuple(
            word for word in RECOMPUTE if word != "selective" or not self.model.fused_attention
        )
        return planes(
            self.profile,
            cluster,
            widths,
            ways,
            sizes,
            sequence_parallel,
            tuple(shards),
            considered_meshes(strategies, synchronous),
        )

    def profile_of(self, found: SimulatedLayout) -> ModelProfile:
        """The profile that a plan of a mesh names: of one of its tensor-parallel devices."""
        if found.mesh.again:
            return woven(lambda word: self.profile_with(found, word), found.mesh.again)
        return self.profile_with(found, found.mesh.recompute)

    def profile_with(self, found: SimulatedLayout, recompute: str) -> ModelProfile:
        """Profile of the layout with one recompute setting for all blocks."""
        return self.profile(found.mesh.tensor, recompute, found.plane.sizes, found.mesh.sequence_parallel)


def considered_meshes(strategies: Sequence[str], synchronous: bool | None) -> tuple[str, ...]:
    """Strategies that a search considers; arguments as of `search_sizes`."""
    return considered(strategies, synchronous, STRATEGIES, (*USUAL, *STALE), "for an analytic model ")


def divisors(devices: int) -> tuple[int, ...]:
    """Widths of tensor-parallel groups; those that fit neither model nor levels are left out by `planes`."""
    return tuple(width for width in range(1, devices + 1) if devices % width == 0)


def _types_of(cluster: Cluster) -> tuple[DeviceType, ...]:
    firsts = {cluster.node_of(device).device_type: device for device in reversed(range(cluster.devices))}
    return tuple(cluster.type_of(first) for first in sorted(firsts.values()))
