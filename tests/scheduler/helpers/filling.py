"""Water filling by its definition: one program for every job and round.

Each program has a row for every job.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Entity, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies.max_min_fairness import equal_share
from hocket.scheduler.solver.lp.linear_program import Infeasible, LinearProgram, solve

EXACT = 1e-6
NEARLY = 1e-5  # where what one job loses within the solver's tolerance may be a lot to another
_SLACK = 1e-9, 1e-8, 1e-7


def crowd(
    seed: int,
    count: int | None = None,
    shared: bool = False,
    alike: bool = False,
    weights: tuple[float, ...] = (),
    workers: tuple[int, ...] = (),
    order: np.ndarray | None = None,
    entities: tuple[Entity, ...] = (),
) -> Snapshot:
    """A few jobs that can all run, some of them identical; missing values are drawn.

    Arguments:
        order: order of the jobs in the snapshot; arrival times are unchanged.
        entities: entities to which jobs belong in turn.
    """
    rng = np.random.default_rng(seed)
    there = workers or tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 4)))
    types = tuple(WorkerType(f"type {k}", n, 2) for k, n in enumerate(there))
    columns = [Placement(k) for k in range(len(types))]
    if not alike:
        columns += [Placement(k, False) for k in range(len(types)) if rng.random() < 0.3]
    count = count or int(rng.integers(1, 9))
    kinds = 4
    steps = rng.integers(1, 20, (kinds, len(columns))).astype(float)
    kind = np.zeros(count, dtype=np.int64) if alike else rng.integers(0, kinds, count)
    scale = np.ones(kinds, dtype=np.int64) if alike else np.minimum(rng.choice([1, 1, 2], kinds), min(there))
    due = weights or tuple(float(w) for w in rng.choice([1.0, 1.0, 2.0, 5.0], count))
    kept = rng.integers(3, 11, (kinds, kinds, len(columns))) / 10 * (rng.random((kinds, kinds, 1)) < 0.8)
    pairs = Pairs(kind, np.where((scale[:, None] == scale[None, :])[:, :, None], kept, 0.0)) if shared else None
    team = [entities[j % len(entities)].name if entities else "" for j in range(count)]
    jobs = tuple(
        Active(Job(f"job {j}", f"kind {kind[j]}", 1.0, int(scale[kind[j]]), 10.0 * j, due[j], None, team[j]), 1.0)
        for j in range(count)
    )
    found = Snapshot(types, tuple(columns), jobs, steps[kind], pairs, entities)
    if order is None:
        return found
    jobs = tuple(found.jobs[j] for j in order)
    pairs = pairs and replace(pairs, classes=pairs.classes[order])
    return replace(found, jobs=jobs, throughputs=found.throughputs[order], pairs=pairs)


class Plain:
    """Dense constraints of a snapshot with all pairs; throughputs in equal shares."""

    def __init__(self, there: Snapshot) -> None:
        self.there = there
        due = equal_share(there)
        jobs, columns = there.throughputs.shape
        time, work, got = [], [], []

        def add(column: int, *steps: tuple[int, float]) -> None:
            own, kind, gain = np.zeros(jobs), np.zeros(len(there.types)), np.zeros(jobs)
            for job, kept in steps:
                own[job] = 1.0
                gain[job] = there.throughputs[job, column] * kept / due[job]
            kind[there.type_of[column]] = there.scale[steps[0][0]]
            time.append(own)
            work.append(kind)
            got.append(gain)

        for column in range(columns):
            for a in range(jobs):
                add(column, (a, 1.0))
                for b in range(a + 1, jobs) if there.pairs else ():
                    assert there.pairs is not None
                    one, other = there.pairs.classes[[a, b]]
                    kept = there.pairs.kept[one, other, column], there.pairs.kept[other, one, column]
                    if min(kept) > 0 and there.scale[a] == there.scale[b]:
                        add(column, (a, kept[0]), (b, kept[1]))
        self._limits = np.vstack([np.array(time).T, np.array(work).T])
        self._most = np.append(np.ones(jobs), there.workers)
        self._got = np.array(got).T

    def most(self, job: int, floors: np.ndarray) -> float:
        """Maximum of one job if each other job has at least its lower limit."""
        return -self._best(
            -self._got[job], 0.0, np.zeros(len(floors)), np.where(np.arange(len(floors)) == job, 0, floors)
        )

    def rise(self, rates: np.ndarray, floors: np.ndarray) -> float:
        """Largest common rise at these rates."""
        return -self._best(np.zeros(self._got.shape[1]), -1.0, rates, floors)

    def _best(self, cost: np.ndarray, cost_of_rise: float, rates: np.ndarray, floors: np.ndarray) -> float:
        matrix = np.vstack([self._limits, self._got])
        matrix = np.hstack([matrix, np.append(np.zeros(len(self._limits)), -rates)[:, None]])
        rows, columns = np.nonzero(matrix)
        upper = np.append(self._most, np.full(len(floors), np.inf))
        bounds = np.zeros(matrix.shape[1]), np.append(np.ones(matrix.shape[1] - 1), 1e3)
        every = np.append(cost, cost_of_rise)
        for slack in _SLACK:  # that floors get, which were reached within the solver's tolerance
            lower = np.append(np.full(len(self._limits), -np.inf), floors - slack)
            try:
                return solve(
                    LinearProgram(every, *bounds, lower, upper, rows, columns, matrix[rows, columns]), ""
                ).objective
            except Infeasible:
                continue
        raise AssertionError("floors that were reached are out of reach")


def filled(plain: Plain, rates: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Level of each job after water filling.

    Arguments:
        rates: function from the saturated jobs to rates.
    """
    jobs = len(plain.there.jobs)
    level, stuck = np.zeros(jobs), np.zeros(jobs, dtype=bool)
    while not stuck.all():
        rate = rates(stuck)
        level = level + rate * plain.rise(rate, level)
        for job in np.flatnonzero((rate > 0) & ~stuck).tolist():
            stuck[job] = plain.most(job, level) <= level[job] + NEARLY
    return level
