"""Job: what somebody hands in to be trained on some workers of a cluster.

Source: section 5.3.1 (scale factor), 5.4.1 (weights), 5.4.3 (entities), 6.4.3 (SLOs).
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from hocket.errors import InputError

LATEST_S = 1e10  # beyond, a float has no place for microseconds; seconds since 1970 are a sixth of it today
MOST_STEPS = (
    1e18  # steps, weights and throughputs are multiplied and divided by each other: none may leave the floats for that
)
LEAST_STEPS = 1e-9
MOST_WEIGHT = 1e6
LEAST_WEIGHT = 1e-6


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        id: unique name.
        job_type: model and batch size, such as "ResNet-50 (batch size 32)": its throughput depends on it.
        steps: of training, in all.
        scale_factor: how many workers it runs on at a time.
        arrived_s: when it came.
        weight: what share it is due, relative to others.
        slo_s: seconds after its arrival by which it is to be finished; None for any.
        entity: who it belongs to, such as a team; empty for nobody.
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
            raise InputError(f"{place}: slo_s", str(self.slo_s), "a number > 0, or nothing")
