"""Tolerance: how much more than one device alone an iteration may use of devices (`hocket plan --amplification-limit`).

Rules of this file: what is above the limit by rounding alone is not above it. Of amplification itself amplification.py knows.
Source: DeepPool section 3.2, the user's inefficiency tolerance.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.planning.plan import PlanStage
from hocket.program.passes.borders import StageCut
from hocket.util.units import show_seconds

_ROUNDING = 1 + 1e-9


def held_s(stages: Iterable[StageCut | PlanStage], iteration_s: float, members: int = 1) -> float:
    """Device-seconds of an iteration where all devices are kept."""
    return iteration_s * members * len({device for stage in stages for device in stage.devices})


def alone_words(cluster: Cluster) -> str:
    """Name of a single device: the first one, with its type if there are others."""
    kinds = {cluster.node_of(device).device_type for device in range(cluster.devices)}
    return f"one {cluster.node_of(0).device_type} alone" if len(kinds) > 1 else "one alone"


@dataclass(frozen=True)
class Tolerance:
    """Limit on the amplification of a plan.

    Attributes:
        limit: of device-seconds over the seconds of one device. alone_s: these. members: devices of a tensor-parallel group.
        alone: what one device alone is called: with its type where there are others.
    """

    limit: float
    alone_s: float
    members: int = 1
    alone: str = "one alone"

    def __post_init__(self) -> None:
        if not self.limit >= 1:
            step = "1.5 lets devices work half as long again as one device alone; leave it out for no limit."
            raise InputError("amplification_limit", f"{self.limit:g}", ">= 1 (one device has amplification 1)", step)

    def refusal(self, used_s: float, how: str = "") -> str:
        """Why so many device-seconds of an iteration are too many; empty where they are not."""
        amplification = used_s / self.alone_s
        if amplification <= self.limit * _ROUNDING:
            return ""
        seconds = f"{show_seconds(used_s)} of devices, {show_seconds(self.alone_s)} of {self.alone}"
        return f"amplification of {how}{amplification:.3g}, above the limit of {self.limit:g}: {seconds}"
