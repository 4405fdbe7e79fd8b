"""Events and commands: all that the core is told, and all that it asks for.

Rules of this file: an event is a fact, told once, in the order of time; a command is a wish of the core, and whoever drives it
(a simulator or a live service) carries it out before it tells the next event. Both are plain and frozen, so that they can be
compared, sent and written into a journal; commands are named tuples, as leases are: each move makes some. When something happens
is no part of it: the time is told beside it.
Sources: sections 5.3 (reset events), 5.5 (rounds) and 5.6 (leases).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.lease import Lease

__all__ = [
    "JobArrived", "Progressed", "JobFinished", "JobFailed", "JobWithdrawn", "RoundEnded", "WorkersLost", "WorkersJoined",
    "PriceChanged", "ThroughputMeasured", "SharingMeasured", "Event",
    "Start", "Renew", "Preempt", "Stop", "StopOne", "WakeAt", "Refuse", "Note", "Command",
]  # fmt: skip

_STRICT: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class JobArrived:
    """Somebody handed in a job.

    Attributes:
        throughputs: steps a second of the whole job alone, by column; 0 where it does not run.
        sharing: its class among jobs that share workers, see Pairs; -1 if it shares with nobody.
    """

    job: Job
    throughputs: tuple[float, ...]
    sharing: int = -1

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class Progressed:
    """What jobs have still to do; told at least before each round ends, for those that ran.

    Attributes:
        busy_s: of the round so far, for how long each was at work; empty if all were all of the time.
    """

    jobs: tuple[str, ...]
    remaining_steps: tuple[float, ...]
    busy_s: tuple[float, ...] = ()

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job did its last step."""

    job: str

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job died where it ran; it may be started again."""

    job: str
    reason: str = ""

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class JobWithdrawn:
    """Whoever handed the job in does not want it any more."""

    job: str

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The time came for which the core asked with WakeAt; also told earlier, where nothing of the round runs any more."""

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class WorkersLost:
    """Workers of a type went away, with whatever ran on them since the last checkpoint.

    Attributes:
        warned: they go in a moment, and what runs on them can still be saved.
    """

    type: int
    workers: tuple[int, ...]
    warned: bool = False

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class WorkersJoined:
    """Workers of a type came, or came back."""

    type: int
    workers: tuple[int, ...]

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """A worker of a type costs something else from now on."""

    type: int
    price_usd_per_hour: float

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class ThroughputMeasured:
    """What a job does alone on a column, steps a second of the whole job."""

    job: str
    column: int
    steps_per_s: float

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """What a job of one class keeps of its throughput beside one of another, and the other beside it, on a column."""

    sharing: int
    beside: int
    column: int
    kept: float
    kept_beside: float

    __pydantic_config__: ClassVar[Any] = _STRICT


Event = (
    JobArrived
    | Progressed
    | JobFinished
    | JobFailed
    | JobWithdrawn
    | RoundEnded
    | WorkersLost
    | WorkersJoined
    | PriceChanged
    | ThroughputMeasured
    | SharingMeasured
)


class Start(NamedTuple):
    """Run the lease's jobs on its workers.

    Attributes:
        overhead_s: by job of the lease: what it loses before its first step here, for saving what it did elsewhere and loading it
            again; 0 for a job that never ran.
        until_s: when the round ends.
    """

    lease: Lease
    overhead_s: tuple[float, ...]
    until_s: float


class Renew(NamedTuple):
    """These leases go on where they are, until the next round ends."""

    leases: tuple[Lease, ...]
    until_s: float


class Preempt(NamedTuple):
    """Save a checkpoint of the lease's jobs that still run and free its workers."""

    lease: Lease


class Stop(NamedTuple):
    """End the lease: nothing of it is to be saved, or nothing can be; jobs of it that are not finished go back into the queue."""

    lease: Lease
    reason: str


class StopOne(NamedTuple):
    """End one job of a lease of two, with nothing to save; the other goes on under the same lease until the round ends."""

    lease: Lease
    job: str
    reason: str


class WakeAt(NamedTuple):
    """Tell RoundEnded at this time, after all other events of that time; it replaces an earlier wish."""

    at_s: float


class Refuse(NamedTuple):
    """A job cannot run, as things are, or is given up."""

    job: str
    reason: str


class Note(NamedTuple):
    """Something that people who run the cluster should read."""

    text: str


Command = Start | Renew | Preempt | Stop | StopOne | WakeAt | Refuse | Note
