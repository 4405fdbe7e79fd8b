"""Figures 5.12 and 5.13: teams on three workers of each of three types; a job arrives every 24 rounds.

The jobs are the published ones. Each job has three throughputs drawn uniformly from 0 to 1, sorted so that the K80 is
the slowest and the V100 the fastest. Three teams with weights 1, 2 and 3 have six jobs each. In a team that shares
fairly, the jobs' weights are 1 and 2 in turn.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from hocket.scheduler.core.heterogeneity_agnostic import agnostic
from hocket.scheduler.core.policy_by_name import evenly
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Entity, Snapshot
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import hierarchical
from hocket.scheduler.policies.max_min_fairness import equal_share
from hocket.scheduler.simulation.metrics import ClusterRun
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.workload import Workload

TYPES = tuple(WorkerType(name, 3) for name in ("v100", "p100", "k80"))
JOBS, ROUNDS_APART, ROUND_S = 18, 24, 360.0
_STEPS = 1e9  # so many that no job finishes


def throughputs(seed: int) -> np.ndarray:
    """Steps per second of each job on each type."""
    draw = Random(seed)
    return np.array([sorted((draw.random() for _ in TYPES), reverse=True) for _ in range(JOBS)])


def teams(policy: str) -> tuple[Entity, ...]:
    """Three teams; `policy` is the policy inside each team."""
    return tuple(Entity(f"entity {k}", k + 1.0, policy) for k in range(3))


def jobs(policy: str) -> list[Job]:
    """Jobs in the order of arrival."""
    weights = [1.0 + k % 2 if policy == "fairness" else 1.0 for k in range(JOBS)]
    came_s = [k * ROUNDS_APART * ROUND_S for k in range(JOBS)]
    return [Job(str(k), f"job {k}", _STEPS, 1, came_s[k], weights[k], None, f"entity {k // 6}") for k in range(JOBS)]


def aware(snapshot: Snapshot) -> Allocation:
    """Heterogeneity-aware hierarchical policy."""
    return hierarchical.allocate(snapshot)


def blind(snapshot: Snapshot) -> Allocation:
    """Heterogeneity-agnostic policy: every job's time is spread evenly over all types."""
    return evenly(hierarchical.allocate(agnostic(snapshot)), snapshot)


def worth(seed: int, policy: str) -> np.ndarray:
    """Total normalized throughput with 1, 2, ... jobs: agnostic in row 0, aware in row 1."""
    steps, all_jobs = throughputs(seed), jobs(policy)
    columns = tuple(Placement(k) for k in range(len(TYPES)))
    found = np.zeros((2, JOBS))
    for count in range(1, JOBS + 1):
        active = tuple(Active(job, _STEPS) for job in all_jobs[:count])
        snapshot = Snapshot(TYPES, columns, active, steps[:count], entities=teams(policy))
        for row, allocate in enumerate((blind, aware)):
            found[row, count - 1] = (allocate(snapshot).throughput(snapshot) / equal_share(snapshot)).sum()
    return found


def runs(seed: int, policy: str) -> Sequence[tuple[str, ClusterRun]]:
    """Simulate the same in rounds, for the figures.

    The simulation ends 25 rounds after the last arrival: the usual 24, and one more.
    """
    steps = throughputs(seed)
    end = Job("end", "job 0", 1e-6, 1, JOBS * ROUNDS_APART * ROUND_S, 1e3)
    places = tuple((t.name, True) for t in TYPES)
    table = ThroughputTable(places, tuple((f"job {k}", 1) for k in range(JOBS)), steps, np.zeros((JOBS, JOBS, 3)))
    options = SimulatorOptions(first=JOBS, last=JOBS + 1, entities=teams(policy))
    found = []
    for name, allocate in (("aware", aware), ("agnostic", blind)):
        run = simulate(Workload((*jobs(policy), end)), TYPES, table, allocate, options)
        spans = tuple(span for span in run.spans if JOBS not in span.jobs)
        found.append((name, replace(run, records=run.records[:JOBS], spans=spans)))
    return found
