"""Lease: the right of a job, or of two side by side, to some workers until a round ends.

Rules of this file: a lease never changes. Renewing moves the time at which all leases of a round end, and nothing else: who stays
where it is keeps its lease, with its number. Numbers only grow, so the larger of two numbers is the later lease: whoever writes
for an old one (a checkpoint, a result) can be told to go.
Source: section 5.6 (lease renewal).
"""

from typing import NamedTuple


class Lease(NamedTuple):
    """Workers for a job; a named tuple, as a frozen dataclass takes twice as long to make, and each move makes one.

    Attributes:
        number: of the lease; the later, the larger.
        jobs: one, or two that share each worker.
        column: the way to run, see Column; its type is the workers' type.
        workers: numbers of that type's workers; worker w stands on server w // per_server.
        began_s: when it was given.
    """

    number: int
    jobs: tuple[str, ...]
    column: int
    workers: tuple[int, ...]
    began_s: float
