"""Lease: the right of one job, or two, to run on workers until a round ends.

Rules of this file: a lease never changes. Renewal moves only the end of the round, which all leases share; a job that
stays on its workers keeps its lease and number. Numbers only increase, so of two leases the larger number is later. A
write (checkpoint, result) for an outdated lease can therefore be rejected.
Source: Narayanan's dissertation, section 5.6 (lease renewal).
"""

from typing import NamedTuple


class Lease(NamedTuple):
    """Workers granted to a job, or to two jobs that share them.

    A named tuple, because a frozen dataclass takes twice as long to create and each move creates a lease.

    Attributes:
        number: identifier; a later lease has a larger number.
        jobs: id of the job, or ids of two jobs that share every worker.
        column: index of the placement in ClusterSpec.columns, which gives the worker type.
        workers: worker numbers within the type; worker w is on server w // per_server.
        began_s: time at which the lease was granted, in seconds.
    """

    number: int
    jobs: tuple[str, ...]
    column: int
    workers: tuple[int, ...]
    began_s: float
