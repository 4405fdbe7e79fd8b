"""Gandiva packing: random pairs share workers, with equal shares per pair.

Packing is used only if jobs need more workers than there are. A random pair of jobs with the same scale factor stays
together if the two keep at least as much together as one job alone, on average over their common columns. Gandiva
would find this out by trial. Each pair or job then gets one n-th of every type, as in isolated.py. Draws depend on a
seed and on job ids, not on the order of jobs. Pairs of the last allocation can be passed in, so only new jobs are
drawn.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies.isolated import allocate as isolated
from hocket.scheduler.policies.isolated import isolated_times, least_share
from hocket.scheduler.solver.lp.rejected import refusal, refusals
from hocket.scheduler.solver.lp.session import Session

__all__ = ["PAPER", "allocate", "pairs_of", "remember"]

PAPER = "Gandiva (Xiao et al. 2018); baseline of dissertation section 5.7"
SHARES, ENTITIES = True, False


def allocate(
    snapshot: Snapshot, session: Session | None = None, seed: int = 0, together: Iterable[tuple[str, str]] = ()
) -> Allocation:
    """Allocation with random pairs and equal shares.

    The objective is the minimum normalized throughput of the jobs that can run, as in max-min fairness.

    Arguments:
        seed: seed of the draws.
        together: ids of existing pairs, as from `pairs_of`; a pair stays together while it is worthwhile.
    """
    refused = refusals(snapshot)
    runs = [j for j in range(len(snapshot.jobs)) if j not in refused]
    if snapshot.pairs is None or snapshot.scale[runs].sum() <= snapshot.workers.sum():
        return isolated(snapshot)
    pairs = _drawn(snapshot, runs, seed, together)
    partner = np.full(len(snapshot.jobs), ALONE)
    for a, b in pairs:
        partner[a], partner[b] = b, a
    heads = [j for j in runs if partner[j] == ALONE or j < partner[j]]
    # A pair runs where both jobs can run and gets one share; the first job by id determines its faster column.
    lead = [j if partner[j] == ALONE else min(j, int(partner[j]), key=lambda j: snapshot.jobs[j].job.id) for j in heads]
    steps = snapshot.throughputs[lead]
    for k, j in enumerate(heads):
        if partner[j] != ALONE:
            steps[k] *= _able(snapshot, j, int(partner[j]))
    shared = replace(snapshot, jobs=tuple(snapshot.jobs[j] for j in heads), throughputs=steps, pairs=None)
    times = isolated_times(shared)
    row, column = np.nonzero(times)
    first = np.array(heads, dtype=np.int64)[row]
    plain = Allocation(first, partner[first], column, times[row, column], 0.0, refused=refused)
    every = range(len(snapshot.jobs))
    told = Reasons(len(every), lambda: [_reason(snapshot, j, int(partner[j]), refused) for j in every])
    return replace(plain, objective=least_share(snapshot, plain), reasons=told)


def pairs_of(snapshot: Snapshot, found: Allocation) -> list[tuple[str, str]]:
    """Ids of the paired jobs of an allocation."""
    both = sorted(set(zip(found.first[found.pairs].tolist(), found.second[found.pairs].tolist(), strict=True)))
    return [(snapshot.jobs[a].job.id, snapshot.jobs[b].job.id) for a, b in both]


def remember(snapshot: Snapshot, found: Allocation, before: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of the next `allocate`: the current pairs and a new seed.

    Arguments:
        before: keyword arguments of the last `allocate`; returned unchanged if there are no pairs.
    """
    pairs = pairs_of(snapshot, found)
    return {"together": pairs, "seed": before.get("seed", 0) + 1} if pairs else dict(before)


def _drawn(
    snapshot: Snapshot, runs: list[int], seed: int, together: Iterable[tuple[str, str]]
) -> list[tuple[int, int]]:
    at = {snapshot.jobs[j].job.id: j for j in runs}
    left, pairs = set(at), []
    for a, b in together:
        if a in left and b in left and a != b and _helps(snapshot, at[a], at[b]):
            pairs.append((min(at[a], at[b]), max(at[a], at[b])))
            left -= {a, b}
    chance = random.Random(seed)
    by_scale: dict[float, list[str]] = {}
    for name in sorted(left):
        by_scale.setdefault(float(snapshot.scale[at[name]]), []).append(name)
    for scale in sorted(by_scale):
        names = by_scale[scale]
        chance.shuffle(names)
        for a, b in zip(names[::2], names[1::2], strict=False):
            if _helps(snapshot, at[a], at[b]):
                pairs.append((min(at[a], at[b]), max(at[a], at[b])))
    return pairs


def _able(snapshot: Snapshot, a: int, b: int) -> np.ndarray:
    """Mask of the columns where both jobs can run together."""
    assert snapshot.pairs is not None
    classes, kept = snapshot.pairs.classes, snapshot.pairs.kept
    both = (snapshot.throughputs[a] > 0) & (snapshot.throughputs[b] > 0)
    return both & (kept[classes[a], classes[b]] > 0) & (kept[classes[b], classes[a]] > 0)


def _helps(snapshot: Snapshot, a: int, b: int) -> bool:
    assert snapshot.pairs is not None
    able = _able(snapshot, a, b) & (snapshot.scale[a] <= snapshot.workers[snapshot.type_of])
    if snapshot.scale[a] != snapshot.scale[b] or not able.any():
        return False
    classes, kept = snapshot.pairs.classes, snapshot.pairs.kept
    both = kept[classes[a], classes[b]] + kept[classes[b], classes[a]]
    return bool(both[able].mean() >= 1.0)


def _reason(snapshot: Snapshot, job: int, partner: int, refused: dict[int, str]) -> Reason:
    if job in refused:
        return refusal(refused[job])
    if partner == ALONE:
        return Reason("it has an equal share of every type, alone", "more workers, or fewer jobs")
    name = snapshot.jobs[partner].job.id
    return Reason(
        f"it has an equal share of every type, with job {name}, drawn at random", "more workers, or fewer jobs"
    )
