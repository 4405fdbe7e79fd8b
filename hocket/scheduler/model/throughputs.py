"""Throughput table: steps per second of each kind of job at each place.

A kind is a job type and a scale factor. A place is a worker type, consolidated or spread; consolidated workers of a
job use as few servers as possible, and a single-worker job is always consolidated. The table holds throughputs alone
and beside another job. Throughputs are of a whole job on all its workers.
Source: T in Narayanan's dissertation, section 5.3.1; measured by the authors of Gavel (see data/README.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.errors import InputError, nearest
from hocket.scheduler.model.snapshot import Pairs
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType

Kind = tuple[str, int]  # job type, scale factor
Place = tuple[str, bool]  # name of a type of worker, consolidated
LEAST_STEPS_PER_S, MOST_STEPS_PER_S = 1e-12, 1e12
STEPS_PER_S = f"steps per second: 0, or from {LEAST_STEPS_PER_S:g} to {MOST_STEPS_PER_S:g}"


def can_be(steps_per_s: float) -> bool:
    """True if a throughput is plausible.

    0 means that the job cannot run. Extreme values would overflow in quotients.
    """
    return steps_per_s == 0 or LEAST_STEPS_PER_S <= steps_per_s <= MOST_STEPS_PER_S


@dataclass(frozen=True, eq=False)
class ThroughputTable:
    """Throughput of each kind of job at each place.

    A kind is a job type and a scale factor. A place is a worker type, consolidated or spread.

    Attributes:
        places: columns of the arrays.
        kinds: rows of the arrays.
        alone: steps per second; 0 where the kind cannot run; shape (kinds, places).
        beside: steps per second of the first kind while it shares its workers with the second; 0 in both directions
            if the two cannot share; shape (kinds, kinds, places).
    """

    places: tuple[Place, ...]
    kinds: tuple[Kind, ...]
    alone: np.ndarray
    beside: np.ndarray

    def __post_init__(self) -> None:
        shapes = (len(self.kinds), len(self.places)), (len(self.kinds), len(self.kinds), len(self.places))
        for name, array, shape in zip(("alone", "beside"), (self.alone, self.beside), shapes, strict=True):
            if array.shape != shape:
                raise InputError(f"throughputs {name}", f"an array of shape {array.shape}", f"shape {shape}")
            wrong = np.argwhere(~np.isfinite(array) | (array < 0))
            if len(wrong):
                where = [self._name(k) for k in wrong[0][:-1]] + [show_place(self.places[wrong[0][-1]])]
                raise InputError("throughput of " + ", ".join(where), str(array[tuple(wrong[0])]), "a number >= 0")
        for what, names in (("kind", self.kinds), ("place", self.places)):
            if not names:
                raise InputError(f"throughputs: {what}s", "none", "one or more")
            if len(set(names)) != len(names):
                twice = next(name for k, name in enumerate(names) if name in names[:k])
                raise InputError(f"throughputs: {what}s", f"{twice} twice", f"each {what} once")

    def _name(self, row: int) -> str:
        return f"{self.kinds[row][0]} on {self.kinds[row][1]}"

    @cached_property
    def row(self) -> dict[Kind, int]:
        """Row index of each kind (job type, scale factor)."""
        return {kind: k for k, kind in enumerate(self.kinds)}

    @cached_property
    def column(self) -> dict[Place, int]:
        """Column index of each place (worker type, consolidated)."""
        return {place: k for k, place in enumerate(self.places)}

    @cached_property
    def job_types(self) -> tuple[str, ...]:
        """Job types, in table order."""
        return tuple(dict.fromkeys(job_type for job_type, _ in self.kinds))

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Worker types, in table order."""
        return tuple(dict.fromkeys(name for name, _ in self.places))

    def scale_factors(self, job_type: str) -> tuple[int, ...]:
        """Measured scale factors of a job type, ascending."""
        return tuple(sorted(scale for name, scale in self.kinds if name == job_type))

    def find(self, job_type: str, scale_factor: int, place: str) -> int:
        """Return the row index of a kind (job type and scale factor).

        Arguments:
            job_type: a job type of the table.
            scale_factor: number of workers of the job.
            place: location of the job in the input, for the error message.

        Raises:
            InputError: unknown job type, or a scale factor without measurements.
        """
        found = self.row.get((job_type, scale_factor))
        if found is not None:
            return found
        scales = self.scale_factors(job_type)
        if not scales:
            step = nearest(job_type, self.job_types) or f"Known are {', '.join(self.job_types[:4])} ..."
            raise InputError(f"{place}: job_type", repr(job_type), "a job type of the throughput table", step)
        known = ", ".join(map(str, scales))
        raise InputError(f"{place}: scale_factor", str(scale_factor), f"{known} for {job_type}")

    def steps_per_s(self, job_type: str, scale_factor: int, worker_type: str, place: str) -> float:
        """Steps per second of a job alone, on consolidated workers of a type.

        Arguments:
            place: location of the job in the input, for the error message.

        Raises:
            InputError: unknown job type, scale factor or worker type, or the job cannot run on the worker type.
        """
        column = self.column.get((worker_type, True))
        if column is None:
            raise InputError(
                f"{place}: worker type",
                repr(worker_type),
                f"one of {', '.join(self.types)}",
                self._other_type(worker_type),
            )
        found = float(self.alone[self.find(job_type, scale_factor, place), column])
        if found <= 0:
            raise InputError(
                f"{place}: job_type", f"{job_type}, which does not run on {worker_type}", "a job type that runs there"
            )
        return found

    def _other_type(self, worker_type: str) -> str:
        """Advice for a worker type that is missing in the table."""
        step = (
            "The worker type of a cluster file is its device_type. Pass your own table with --throughputs; the packaged "
            "table has v100, p100 and k80, see docs/reference/scheduler-files.md."
        )
        return f"{nearest(worker_type, self.types)} {step}".lstrip()

    def columns(self, types: Sequence[WorkerType], spread: bool = False) -> tuple[Placement, ...]:
        """Placements of a snapshot: one per type with consolidated workers, and with `spread` one with spread workers.

        Arguments:
            spread: True to add a spread placement for types with spread throughputs in the table.

        Raises:
            InputError: the table does not have a type.
        """
        found = []
        for k, own in enumerate(types):
            if (own.table_name, True) not in self.column:
                expected = f"a worker type of the throughput table: {', '.join(self.types)}"
                step = self._other_type(own.table_name)
                raise InputError(f"worker type {own.name}", "no throughputs for this type", expected, step)
            found.append(Placement(k))
            if spread and (own.table_name, False) in self.column:
                found.append(Placement(k, False))
        return tuple(found)

    def places_of(self, cluster: ClusterSpec) -> list[int]:
        """Column index in the table of each column of the cluster."""
        return [self.column[cluster.types[c.type].table_name, c.consolidated] for c in cluster.columns]

    def throughputs(self, rows: np.ndarray, cluster: ClusterSpec) -> np.ndarray:
        """Throughputs of jobs by column of the cluster; shape (jobs, columns).

        Single-worker jobs get 0 on spread columns, where they gain nothing.

        Arguments:
            rows: row index of each job, as from `Workload.rows`.
        """
        at = self.places_of(cluster)
        found = self.alone[rows][:, at]
        single = np.array([self.kinds[k][1] == 1 for k in range(len(self.kinds))])[rows]
        spread = np.array([not c.consolidated for c in cluster.columns], dtype=bool)
        found[single[:, None] & spread[None, :]] = 0.0
        return found

    def pairs(self, rows: np.ndarray, cluster: ClusterSpec) -> Pairs:
        """Fractions of throughput that jobs keep while they share workers.

        The space-sharing class of a job is its row in the table.

        Arguments:
            rows: row index of each job, as from `Workload.rows`.
        """
        at = self.places_of(cluster)
        return Pairs(rows, self.kept[:, :, at])

    @cached_property
    def kept(self) -> np.ndarray:
        """Fraction of its stand-alone throughput that a job keeps beside another job; shape (kinds, kinds, places).

        Axes: kind of the job, kind of the other job, place. A kind is a job type and a scale factor; a place is a
        worker type, consolidated or spread. The fraction is 0 if the two jobs cannot share workers.
        """
        alone = np.broadcast_to(self.alone[:, None, :], self.beside.shape)
        return np.divide(self.beside, alone, out=np.zeros_like(self.beside), where=alone > 0)


def show_place(place: Place) -> str:
    """Name of a place, such as "v100" or "v100 (spread)"."""
    return place[0] if place[1] else f"{place[0]} (spread)"
