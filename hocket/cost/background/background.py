"""Background job on one device that uses capacity left by a foreground job.

Rules of this file: a description of the job, independent of what runs it. `Collocation` in cost/contention.py
describes how it shares a device.
Source: Park et al., DeepPool (MLSys 2022), section 5: jobs of one device each, of low priority.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple

from hocket.errors import InputError


class Launch(NamedTuple):
    """One launch: work that a job submits to its device in one piece.

    Attributes:
        seconds: seconds of the launch alone on the device.
        demand: share of the device that it needs while it runs, more than 0, at most 1.
        kind: part of the training step, such as "backward"; empty if not known.
    """

    seconds: float
    demand: float = 1.0
    kind: str = ""


@dataclass(frozen=True)
class Background:
    """A background job. It is the same on every device that runs one.

    Attributes:
        name: name of the job.
        samples: samples of one training step.
        launches: launches of one step, in order. Steps follow each other without a gap.
        memory_bytes: peak memory on a device.
    """

    name: str
    samples: float
    launches: tuple[Launch, ...]
    memory_bytes: float = 0.0

    def __post_init__(self) -> None:
        place = f"background job {self.name}"
        if not self.samples > 0:
            raise InputError(f"{place}: samples", str(self.samples), "samples of one training step, > 0")
        if not self.launches or min(launch.seconds for launch in self.launches) <= 0:
            found = f"{min(launch.seconds for launch in self.launches):g} s" if self.launches else "none"
            raise InputError(f"{place}: launches", found, "at least one launch, each of more than 0 s")
        wrong = [launch.demand for launch in self.launches if not 0 < launch.demand <= 1]
        if wrong:
            expected = "a share of the device, more than 0 and at most 1"
            raise InputError(f"{place}: demand of a launch", f"{wrong[0]:g}", expected)

    @classmethod
    def even(cls, name: str, samples: float, step_s: float, launch_s: float | None = None) -> "Background":
        """Make a background job for which only the seconds of a step are known.

        Its launches have equal lengths and need the whole device.

        Arguments:
            samples: samples of one step.
            step_s: seconds of a step alone on a device.
            launch_s: maximum seconds of a launch; None for one launch a step.
        """
        return cls(name, samples, (Launch(step_s),)).divided(launch_s)

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step alone on a device."""
        return sum(launch.seconds for launch in self.launches)

    @cached_property
    def utilization(self) -> float:
        """Mean share of a device that the job needs while it runs alone."""
        return sum(launch.seconds * launch.demand for launch in self.launches) / self.step_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second alone on a device."""
        return self.samples / self.step_s

    def divided(self, launch_s: float | None) -> "Background":
        """The job with launches of at most `launch_s` seconds.

        Longer launches are divided into equal parts. With None the job does not change.
        """
        if launch_s is None:
            return self
        found: list[Launch] = []
        for one in self.launches:
            count = max(1, ceil(one.seconds / launch_s * (1 - 1e-12)))
            found += [one._replace(seconds=one.seconds / count)] * count
        return Background(self.name, self.samples, tuple(found), self.memory_bytes)

    def alone(self) -> "Background":
        """The job with launches that all need the whole device."""
        whole = tuple(launch._replace(demand=1.0) for launch in self.launches)
        return Background(self.name, self.samples, whole, self.memory_bytes)
