"""Allocation over time, as in figures 5.12 and 5.13 of Narayanan's dissertation (Gavel).

If there are few jobs, each band is a job, with the colour of its entity (owner). Otherwise each band is a worker type.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from hocket.reporting.cluster_report.series import by_job, workers_held
from hocket.reporting.cluster_report.stacked_areas import Band, bands, height_axis
from hocket.reporting.cluster_report.style import Look, area_look, legend
from hocket.scheduler.simulation.metrics import ClusterRun

MOST_JOBS = 40
MOST_WORKERS = 64
_MOST_BANDS = 240  # jobs x policies on a page

Drawn = tuple[str, ClusterRun, np.ndarray]  # policy, run, edges of bins in seconds


@dataclass(frozen=True)
class Allocations:
    """Drawings of the allocations under each policy.

    Attributes:
        rows: policy, and its drawings with their titles.
        jobs: True if bands are jobs; False if they are worker types.
    """

    rows: tuple[tuple[str, tuple[tuple[str, Markup], ...]], ...]
    legend: Markup
    jobs: bool


def allocations(runs: Sequence[Drawn], types: dict[str, Look], end_s: float) -> Allocations:
    """Draw the allocation over time under each policy, all on the same time axis.

    Arguments:
        types: colour of each worker type, by name.
        end_s: end of the time axis.
    """
    jobs = max((len(run.records) for _, run, _ in runs), default=0)
    workers = max((sum(t.workers for t in run.types) for _, run, _ in runs), default=0)
    if 0 < jobs <= MOST_JOBS and workers <= MOST_WORKERS and jobs * len(runs) <= _MOST_BANDS:
        return _of_jobs(runs, end_s, float(workers))
    found = []
    for name, run, edges_s in runs:
        held = workers_held(run, edges_s)
        items = [
            Band(f"{t.name}: {row.mean():.3g} workers on average", types[t.name], row)
            for t, row in zip(run.types, held, strict=True)
        ]
        top = max(float(workers), float(held.sum(axis=0).max(initial=0.0)))
        up = height_axis(top * 1.04, "workers")
        drawing = bands(items, edges_s, end_s, up, f"Workers held under {name}", float(workers))
        found.append((name, (("", drawing),)))
    return Allocations(tuple(found), legend(types.items(), lines=False), False)


def _of_jobs(runs: Sequence[Drawn], end_s: float, workers: float) -> Allocations:
    entities = list(dict.fromkeys(r.job.entity for _, run, _ in runs for r in run.records))
    looks = {name: area_look(k) for k, name in enumerate(entities)}
    drawn = [(name, run, edges_s, by_job(run, edges_s)) for name, run, edges_s in runs]
    tops = [
        max([workers, *(float(both[which].sum(axis=0).max(initial=0.0)) for *_, both in drawn)]) * 1.04
        for which in (0, 1)
    ]
    found = []
    for name, run, edges_s, (held, worth) in drawn:
        order = sorted(range(len(run.records)), key=lambda k: (entities.index(run.records[k].job.entity), k))
        pair = []
        for title, values, top in (("workers held", held, tops[0]), ("value of the workers", worth, tops[1])):
            items = [_band(run, k, values[k], looks, place, edges_s) for place, k in enumerate(order)]
            up = height_axis(top, "workers" if title == "workers held" else "average workers")
            about = f"Allocation under {name}: {title}"
            pair.append((title, bands(items, edges_s, end_s, up, about, workers)))
        found.append((name, tuple(pair)))
    names = [(name, look) for name, look in looks.items() if name]
    return Allocations(tuple(found), legend(names, lines=False) if names else Markup(""), True)


def _band(
    run: ClusterRun, k: int, heights: np.ndarray, looks: dict[str, Look], place: int, edges_s: np.ndarray
) -> Band:
    job = run.records[k].job
    owner = f" of {job.entity}" if job.entity else ""
    hours = float(heights @ np.diff(edges_s)) / 3600
    about = f"job {job.id}{owner}, {job.job_type}: {hours:,.3g} hours of workers in all"
    look = looks[job.entity] if job.entity else area_look(place)
    return Band(about, look, heights, pale=place % 2 == 1)
