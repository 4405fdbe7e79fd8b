"""Policy snapshots in JSON, as exported from Gavel's policies.

worker_types, cluster (workers by type), instance_costs (dollars per hour by type)
jobs: id, job_type, scale_factor, priority_weight, total_steps, num_steps_remaining, time_since_start_s, SLO_s, entity,
    throughput (steps per second by type)
entity_weights, entity_policies_fair, entity_policies_mixed: by entity
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError, nearest
from hocket.scheduler.model.job import LEAST_STEPS, MOST_STEPS, Job
from hocket.scheduler.model.snapshot import Active, Entity, Snapshot
from hocket.scheduler.model.throughputs import STEPS_PER_S, ThroughputTable, can_be
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType
from hocket.scheduler.readers._rows import json_bytes
from hocket.scheduler.simulation.workload import FORMAT as WORKLOAD
from hocket.scheduler.simulation.workload import check_ids, inside
from hocket.util.documents import parse_json, seems
from hocket.util.schema import read_as
from hocket.util.source_lines import with_lines

MOST_JOBS = 100_000
_MOST_SHOWN = 12  # types in an error message


@dataclass(frozen=True)
class _Job:
    id: int | str
    job_type: str
    total_steps: float
    num_steps_remaining: float
    throughput: dict[str, float]
    scale_factor: int = 1
    priority_weight: float = 1.0
    time_since_start_s: float = 0.0
    SLO_s: float | None = None
    entity: str = ""
    duration_v100_s: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def active(self) -> Active:
        job = Job(
            str(self.id),
            self.job_type,
            self.total_steps,
            self.scale_factor,
            0.0,
            self.priority_weight,
            self.SLO_s,
            self.entity,
        )
        if not LEAST_STEPS <= self.num_steps_remaining <= MOST_STEPS:
            expected = f"a number > 0, from {LEAST_STEPS:g} to {MOST_STEPS:g}"
            raise InputError(f"job {job.id}: remaining_steps", str(self.num_steps_remaining), expected)
        return Active(job, self.num_steps_remaining, self.time_since_start_s)


@dataclass(frozen=True)
class _File:
    worker_types: tuple[str, ...]
    cluster: dict[str, int]
    jobs: tuple[_Job, ...]
    instance_costs: dict[str, float] | None = None
    entity_weights: dict[str, float] | None = None
    entity_policies_fair: dict[str, str] | None = None
    entity_policies_mixed: dict[str, str] | None = None
    N: int | None = None
    seed: int | None = None
    multi_gpu: bool | None = None
    throughput_unit: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def read(path: str | Path, table: ThroughputTable | None = None, mixed: bool = False, per_server: int = 8) -> Snapshot:
    """Read the snapshot of a file.

    Arguments:
        table: throughput table for space sharing; None for no space sharing.
        mixed: True to use the policies of `entity_policies_mixed`, with some FIFO entities, False to use those of
            `entity_policies_fair`. Entities with a policy and without a weight have weight 1.
        per_server: workers per server, which the files do not contain.

    Raises:
        InputError: invalid JSON or an invalid value, with the file and the field.
    """
    text = json_bytes(path, 10 + 2 * MOST_JOBS)  # each job has a throughput object
    found = parse_json(text, str(path))
    if isinstance(found, dict) and found.get("format") == WORKLOAD:
        step = "Use `hocket cluster simulate` for a workload."
        raise InputError(str(path), seems(found), "a snapshot: worker_types, cluster, jobs", step)
    with with_lines(text, str(path)):
        return _snapshot(read_as(_File, found, str(path)), path, table, mixed, per_server)


def _snapshot(data: _File, path: str | Path, table: ThroughputTable | None, mixed: bool, per_server: int) -> Snapshot:
    if len(data.jobs) > MOST_JOBS:
        raise InputError(f"{path}: jobs", f"{len(data.jobs)}", f"at most {MOST_JOBS}")
    with inside(str(path)):
        twice = next((t for k, t in enumerate(data.worker_types) if t in data.worker_types[:k]), None)
        if twice is not None:
            raise InputError("worker_types", f"{twice!r} twice", "each type once")
        prices = data.instance_costs or {}
        known = dict.fromkeys(data.worker_types)
        _check_types(data.cluster, known, "cluster")
        _check_types(prices, known, "instance_costs")
        for k, job in enumerate(data.jobs):
            _check_types(job.throughput, known, f"jobs.{k}: throughput")
        types = tuple(
            WorkerType(t, _of(data.cluster, t, "cluster"), per_server, prices.get(t, 0.0)) for t in data.worker_types
        )
        check_ids((str(job.id) for job in data.jobs), lambda k: f"jobs.{k}.id")
        active = tuple(_at(k, job.active) for k, job in enumerate(data.jobs))
        rows = [
            [_steps(job.throughput, t.name, f"jobs.{k}: throughput") for t in types] for k, job in enumerate(data.jobs)
        ]
        steps = np.array(rows, dtype=float).reshape(len(active), len(types))
        columns = tuple(Placement(k) for k in range(len(types)))
        pairs = None
        if table is not None:
            table.columns(types)
            kinds = [table.find(a.job.job_type, a.job.scale_factor, f"jobs.{k}") for k, a in enumerate(active)]
            pairs = table.pairs(np.array(kinds, dtype=np.int64), ClusterSpec(types, columns))
        return Snapshot(types, columns, active, steps, pairs, _entities(data, mixed))


def _entities(data: _File, mixed: bool) -> tuple[Entity, ...]:
    """Entities with a weight or a policy; the defaults are weight 1 and fairness."""
    if mixed and not data.entity_policies_mixed:
        step = "Add it, or use the policies of entity_policies_fair."
        raise InputError("entity_policies_mixed", "nothing", "policies by entity", step)
    policies = (data.entity_policies_mixed if mixed else data.entity_policies_fair) or {}
    weights = data.entity_weights or {}
    names = dict.fromkeys([*weights, *policies])
    return tuple(Entity(name, weights.get(name, 1.0), policies.get(name, "fairness")) for name in names)


def _check_types(values: Collection[str], known: Collection[str], place: str) -> None:
    """Reject a type that is not among the worker types."""
    name = next((name for name in values if name not in known), None)
    if name is not None:
        expected = f"one of worker_types: {', '.join(list(known)[:_MOST_SHOWN])}"
        raise InputError(f"{place}: {name[:40]}", f"unknown type {name[:40]!r}", expected, nearest(name[:40], known))


def _at(k: int, make: Callable[[], Active]) -> Active:
    with inside(f"jobs.{k}"):
        return make()


def _steps(values: dict[str, float], name: str, place: str) -> float:
    found = float(_of(values, name, place))
    if not can_be(found):
        raise InputError(f"{place}: {name}", str(found), STEPS_PER_S)
    return found


def _of(values: dict[str, Any], name: str, place: str) -> Any:
    if name not in values:
        raise InputError(f"{place}: {name}", "nothing", "a value for each of worker_types")
    return values[name]
