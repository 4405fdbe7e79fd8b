"""Validation of external events: each check raises InputError and changes nothing."""

from math import isfinite

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.core.events import JobArrived, Progressed, SharingMeasured

__all__ = ["check_arrival", "check_measured", "check_progress", "check_sharing", "check_workers"]

_MOST_WORKERS = 10**6  # maximum worker number of a type, plus one


def check_arrival(event: JobArrived, columns: int, kept: np.ndarray | None) -> None:
    """Check that an arriving job has one throughput per column and a known class.

    Arguments:
        columns: number of columns.
        kept: PolicyRunner.kept, which has one class more than the setup; None without space sharing.
    """
    place = f"job {event.job.id}"
    if len(event.throughputs) != columns:
        raise InputError(f"{place}: throughputs", f"{len(event.throughputs)}", f"{columns}, one for each column")
    if not all(isfinite(steps) and steps >= 0 for steps in event.throughputs):
        raise InputError(f"{place}: throughputs", str(event.throughputs), "steps per second, >= 0")
    if kept is not None and event.sharing >= len(kept) - 1:
        raise InputError(f"{place}: sharing", str(event.sharing), f"a class < {len(kept) - 1}, or -1 for no sharing")


def check_progress(event: Progressed) -> None:
    """Check that progress gives each job a positive number of remaining steps.

    A job without remaining steps is reported as finished instead.
    """
    jobs, remaining, busy_s = len(event.jobs), event.remaining_steps, event.busy_s
    if len(remaining) != jobs or not (isfinite(sum(remaining)) and min(remaining, default=1.0) > 0):
        raise InputError("progress: remaining_steps", str(remaining)[:80], "a number > 0 for each job")
    if busy_s and (len(busy_s) != jobs or not (isfinite(sum(busy_s)) and min(busy_s) >= 0)):
        raise InputError("progress: busy_s", str(busy_s)[:80], "a number >= 0 for each job, or an empty list")


def check_workers(kind: int, workers: tuple[int, ...], types: int) -> None:
    """Check that the worker type and the worker numbers are valid.

    Arguments:
        kind: index of the worker type.
        workers: worker numbers within the type.
        types: number of worker types.
    """
    if not 0 <= kind < types:
        raise InputError("workers: type", str(kind), f"an index < {types}")
    if any(not 0 <= worker < _MOST_WORKERS for worker in workers):
        raise InputError("workers", str(workers)[:80], f"numbers from 0 to {_MOST_WORKERS - 1}")


def check_measured(place: str, column: int, value: float, columns: int) -> None:
    """Check that the column exists and the measurement is finite and >= 0.

    Arguments:
        place: name of the measurement, for the error message.
        columns: number of columns.
    """
    if not 0 <= column < columns:
        raise InputError(f"{place}: column", str(column), f"an index < {columns}")
    if not (isfinite(value) and value >= 0):
        raise InputError(place, str(value), "a number >= 0")


def check_sharing(event: SharingMeasured, columns: int, kept: np.ndarray | None) -> None:
    """Check that both classes are known and the kept throughputs are valid.

    Arguments:
        columns, kept: as for `check_arrival`.
    """
    classes = 0 if kept is None else len(kept) - 1
    if not (0 <= event.sharing < classes and 0 <= event.beside < classes):
        raise InputError("sharing", f"classes {event.sharing} and {event.beside}", "two classes of the setup")
    check_measured("sharing: kept", event.column, event.kept, columns)
    check_measured("sharing: kept_beside", event.column, event.kept_beside, columns)
