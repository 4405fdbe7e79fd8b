"""Limit on amplification (`hocket plan --amplification-limit`).

Amplification compares an iteration's device-seconds with one device alone (amplification.py).

Rules of this file: a plan that exceeds the limit only by a rounding error is accepted.
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
    """Device-seconds of an iteration that holds all devices of its stages throughout.

    Arguments:
        members: tensor-parallel size.
    """
    return iteration_s * members * len({device for stage in stages for device in stage.devices})


def alone_words(cluster: Cluster) -> str:
    """Name of the cluster's first device in messages.

    It contains the device type if the cluster has several types.
    """
    kinds = {cluster.node_of(device).device_type for device in range(cluster.devices)}
    return f"one {cluster.node_of(0).device_type} alone" if len(kinds) > 1 else "one alone"


@dataclass(frozen=True)
class Tolerance:
    """Limit on the amplification of a plan.

    Attributes:
        limit: largest amplification.
        alone_s: seconds of an iteration on one device.
        members: tensor-parallel size.
        alone: name of the single device in messages (`alone_words`).
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
        """Reason for refusing a plan that uses too many device-seconds; otherwise empty.

        Arguments:
            used_s: device-seconds of an iteration of the plan.
            how: words before the amplification in the message.
        """
        amplification = used_s / self.alone_s
        if amplification <= self.limit * _ROUNDING:
            return ""
        seconds = f"{show_seconds(used_s)} of devices, {show_seconds(self.alone_s)} of {self.alone}"
        return f"amplification of {how}{amplification:.3g}, above the limit of {self.limit:g}: {seconds}"
