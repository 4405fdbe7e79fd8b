"""Objectives of each policy for drawn jobs, and choices of queues and of single jobs, equal to what is kept in objectives.txt.

An objective is one number, whichever of several equally good allocations a solver finds. After a change that is meant, write the
file again with --update-golden, and read the difference.
"""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np

from hocket.errors import HocketError
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.solver_fallback import carried_over
from hocket.scheduler.model.snapshot import Entity, Snapshot
from hocket.scheduler.solver.dual.breakpoints import edges, reach
from hocket.scheduler.solver.queueing.priority_queue import queue
from hocket.util.registry import names
from tests.kept import check
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd

QUEUES = ("fifo", "shortest_job_first", "allox", "isolated")
TASKS = 6


def there(seed: int) -> Snapshot:
    """Jobs of two owners, with or without space sharing, deadlines and a second column for each type."""
    found = crowd(seed, 7, pairs=seed % 2 == 0, spread=seed % 3 == 0, slo=seed % 3 != 1)
    jobs = tuple(
        replace(active, job=replace(active.job, entity=f"team{k % 2}", arrived_s=float(k)))
        for k, active in enumerate(found.jobs)
    )
    entities = (Entity("team0", 1.0 + seed, "fifo" if seed % 2 else "fairness"), Entity("team1", 2.0))
    return replace(found, jobs=jobs, entities=entities, budget_usd=50.0 if seed % 3 == 0 else None, now_s=100.0)


def policies(seed: int) -> list[str]:
    """What each policy reaches, alone and without telling types apart."""
    lines, snapshot = [], there(seed)
    for name in names("hocket.scheduler.policies"):
        for blind in (False, True):
            try:
                found = policy_named(name, blind)(snapshot)
            except HocketError as error:
                lines.append(f"  {name} {blind}: {error}")
                continue
            assert_it_can_be(snapshot, found)
            lines.append(f"  {name} {blind}: {found.objective:.7g} refused {found.refused} {found.note}")
            if name in QUEUES:
                rows = zip(found.first, found.second, found.column, found.fraction, strict=True)
                lines.append(
                    f"    {[f'{a} {b} {c} {x:.6g}' for a, b, c, x in rows]} {[one.binding for one in found.reasons]}"
                )
    return lines


def queues(seed: int) -> list[str]:
    """Queues in some orders, with and without overtaking, and the last allocation after a failure of the solver."""
    draw, snapshot, lines = random.Random(seed), there(seed), []
    for overtake in (False, True):
        for untouched in (0, 2):
            order = draw.sample(range(7), 7)
            found = queue(snapshot, order, overtake, untouched)
            told = found.order, found.refused, found.jobs, found.columns.tolist(), found.pairs, found.stuck
            lines.append(f"  {order} {overtake} {untouched}: {told} {found.worth:.7g}")
            last = found.allocation(snapshot, 1.0)
            keeps = draw.sample(range(7), 5)
            few = replace(
                snapshot,
                jobs=tuple(snapshot.jobs[j] for j in keeps),
                throughputs=snapshot.throughputs[keeps],
                pairs=None,
            )
            fewer = replace(few, types=tuple(replace(own, workers=1) for own in few.types))
            for now in (few, fewer):
                again = carried_over(now, snapshot, last, "odd")
                rows = zip(again.first, again.second, again.column, again.fraction, strict=True)
                lines.append(
                    f"    {keeps} {[f'{a} {b} {c} {x:.6g}' for a, b, c, x in rows]} {again.refused} {again.note}"
                )
                lines.append(f"      {[reason.binding for reason in again.reasons]}")
    return lines


def mixes(seed: int) -> list[str]:
    """Cheapest mixes of two options of single jobs, and how far prices may move until they change."""
    rng = np.random.default_rng(seed)
    does = np.hstack([rng.uniform(1, 10, (6, 3)), np.zeros((6, 1))])
    costs = np.hstack([rng.uniform(0.1, 5, (6, 3)), np.zeros((6, 1))])
    costs[0, 1] = np.inf
    does[0, 1] = 0.0
    asked = rng.uniform(0, 12, 6)
    found = edges(does, costs, asked)
    moves = np.hstack([rng.uniform(0, 2, (6, 3)), np.zeros((6, 1))])
    far = reach(found, does, costs, moves)
    figures = found.rate, found.time, found.begins, found.length, found.part(asked), far
    return [f"  {found.low.tolist()} {found.high.tolist()}", *(f"    {[f'{x:.6g}' for x in row]}" for row in figures)]


def test_objectives(update_golden: bool) -> None:
    """Policies, queues and mixes of some seeds."""
    lines = []
    for part in (policies, queues, mixes):
        for seed in range(TASKS):
            lines += [f"{part.__name__} {seed}:", *part(seed)]
    check(Path(__file__).with_name("objectives.txt"), "\n".join(lines) + "\n", update_golden)
