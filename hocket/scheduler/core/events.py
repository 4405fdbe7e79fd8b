"""Events that the core handles, and commands that it returns.

Rules of this file: an event is a fact, reported once, in time order. A command is a request of the core; the driver
(a simulator or a live service) carries it out before it reports the next event. Events and commands are plain and
immutable, so they can be compared, sent and journaled. Commands are named tuples, like leases, because each move
creates several. The time of an event is not a field; it is passed next to the event.
Sources: Narayanan's dissertation, sections 5.3 (reset events), 5.5 (rounds) and 5.6 (leases).
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
    """A job was submitted to the cluster.

    Attributes:
        throughputs: steps per second of the whole job alone, by column; 0 where the job cannot run.
        sharing: space-sharing class, see Pairs; -1 if the job never shares its workers.
    """

    job: Job
    throughputs: tuple[float, ...]
    sharing: int = -1

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class Progressed:
    """Remaining steps of running jobs; reported at least before each round ends.

    Attributes:
        busy_s: seconds of the current round that each job was running; empty if all jobs ran all the time.
    """

    jobs: tuple[str, ...]
    remaining_steps: tuple[float, ...]
    busy_s: tuple[float, ...] = ()

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job completed its last step."""

    job: str

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job crashed; the core restarts it, or gives it up after too many failures."""

    job: str
    reason: str = ""

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class JobWithdrawn:
    """A job was cancelled by its owner."""

    job: str

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The time has come that the core asked for with WakeAt: the round ends.

    Also reported earlier if no job of the round is running any more.
    """

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class WorkersLost:
    """Workers of a type went away; work since the last checkpoint is lost.

    Attributes:
        type: index of the worker type.
        workers: worker numbers within the type.
        warned: True if the workers go away shortly and running jobs can still save a checkpoint.
    """

    type: int
    workers: tuple[int, ...]
    warned: bool = False

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class WorkersJoined:
    """Workers of a type were added or came back."""

    type: int
    workers: tuple[int, ...]

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """New hourly price of a worker of a type, from now on."""

    type: int
    price_usd_per_hour: float

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class ThroughputMeasured:
    """Measured throughput of a job alone on a column, in steps per second."""

    job: str
    column: int
    steps_per_s: float

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """Measured fractions of throughput that two jobs keep while they share workers.

    Attributes:
        sharing, beside: the two space-sharing classes.
        column: index of the column of the measurement.
        kept: fraction of its stand-alone throughput that a job of class `sharing` keeps.
        kept_beside: fraction that a job of class `beside` keeps.
    """

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
        overhead_s: seconds that each job of the lease loses before its first step, to save its state elsewhere and
            load it here; 0 for a job that never ran.
        until_s: end of the round.
    """

    lease: Lease
    overhead_s: tuple[float, ...]
    until_s: float


class Renew(NamedTuple):
    """Continue these leases on the same workers until the next round ends."""

    leases: tuple[Lease, ...]
    until_s: float


class Preempt(NamedTuple):
    """Save a checkpoint of the lease's running jobs and free its workers."""

    lease: Lease


class Stop(NamedTuple):
    """End a lease without saving; its unfinished jobs return to the queue."""

    lease: Lease
    reason: str


class StopOne(NamedTuple):
    """End one job of a two-job lease without saving.

    The other job continues under the same lease until the round ends.
    """

    lease: Lease
    job: str
    reason: str


class WakeAt(NamedTuple):
    """Report RoundEnded at this time, after all other events of the same time.

    A later WakeAt replaces an earlier one.
    """

    at_s: float


class Refuse(NamedTuple):
    """Report that a job does not run.

    Either the policy refused the job for the current allocation, and may accept it in a later one. Or the job failed
    too often in a row; then the core has removed it.

    Attributes:
        reason: why the job does not run.
    """

    job: str
    reason: str


class Note(NamedTuple):
    """Message for the operators of the cluster."""

    text: str


Command = Start | Renew | Preempt | Stop | StopOne | WakeAt | Refuse | Note
