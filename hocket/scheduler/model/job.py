"""Job: one training job that is submitted to the cluster.

Source: Narayanan's dissertation, sections 5.3.1 (scale factor), 5.4.1 (weights), 5.4.3 (entities), 6.4.3 (SLOs).
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from hocket.errors import InputError

LATEST_S = 1e10  # beyond this, a float cannot represent microseconds; the Unix time is a sixth of it today
MOST_STEPS = 1e18  # products and quotients of steps, weights and throughputs must stay in the range of a float
LEAST_STEPS = 1e-9
MOST_WEIGHT = 1e6
LEAST_WEIGHT = 1e-6


@dataclass(frozen=True, slots=True)
class Job:
    """Training job.

    Attributes:
        id: unique name.
        job_type: model and batch size, such as "ResNet-50 (batch size 32)"; determines the throughput.
        steps: total training steps.
        scale_factor: number of workers the job runs on at a time.
        arrived_s: arrival time, in seconds.
        weight: relative share of the cluster.
        slo_s: deadline, in seconds after the arrival; None for no deadline.
        entity: owner, such as a team; empty for no owner.
    """

    id: str
    job_type: str
    steps: float
    scale_factor: int = 1
    arrived_s: float = 0.0
    weight: float = 1.0
    slo_s: float | None = None
    entity: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        place = f"job {self.id}"
        if not self.id:
            raise InputError("job: id", "nothing", "a name")
        if not LEAST_STEPS <= self.steps <= MOST_STEPS:
            raise InputError(
                f"{place}: steps", str(self.steps), f"a number > 0, from {LEAST_STEPS:g} to {MOST_STEPS:g}"
            )
        if self.scale_factor < 1:
            raise InputError(f"{place}: scale_factor", str(self.scale_factor), ">= 1")
        if not 0 <= self.arrived_s <= LATEST_S:
            raise InputError(f"{place}: arrived_s", str(self.arrived_s), f"a number >= 0, and at most {LATEST_S:g}")
        if not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            expected = f"a number > 0, from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
            raise InputError(f"{place}: weight", str(self.weight), expected)
        if self.slo_s is not None and not (isfinite(self.slo_s) and self.slo_s > 0):
            raise InputError(f"{place}: slo_s", str(self.slo_s), "a number > 0, or null")
