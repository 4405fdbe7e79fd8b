"""Charts of the headline runs.

JCT against load and CDFs of the JCT (Figures 5.9 and 5.10), and teams over time (Figures 5.12 and 5.13).
"""

from math import nan
from pathlib import Path

import _headline_teams as teams
import numpy as np
from _headline_runs import Case, Kept

from hocket.reporting.cluster_report.load import load_report_html
from hocket.reporting.cluster_report.page import cluster_report_html
from hocket.util.files import write_atomic

FIGURES = {
    "single": ("One worker a job", ("LAS", "Gandiva", "AlloX", "LAS aware", "LAS aware, sharing")),
    "multiple": ("Jobs of several workers", ("LAS", "Gandiva", "LAS aware", "LAS aware, sharing")),
}
LOADS = {"single": (2.4, 4.0, 5.6, 7.2), "multiple": (1.2, 2.0, 2.6, 3.2)}
# Jobs in the averages against load. They are early ones, before a queue has built up, so that runs are short.
COUNTED = (500, 750)


def write(folder: Path, kept: Kept, windows: dict[str, tuple[int, int]], high: dict[str, float]) -> None:
    """Write all charts.

    Missing runs of the averages against load are simulated now. The CDFs show only runs that exist already.

    Arguments:
        windows: (first, last) job of the CDFs, by trace.
        high: jobs per hour of the CDFs, by trace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for trace, (title, policies) in FIGURES.items():
        rows = []
        for policy in policies:
            for load in LOADS[trace]:
                row = kept(Case(trace, load, policy, 0, *COUNTED))
                rows.append((policy, load, row.avg_jct_s if row is not None else nan))
        cases = [Case(trace, high[trace], policy, 0, *windows[trace]) for policy in policies]
        times = [
            (case.policy, np.array(row.jct_s), row.jobs)
            for case in cases
            if (row := kept.rows.get(case.key)) is not None
        ]
        jobs = "jobs {} to {}"
        heading = f"{title}, {jobs.format(*COUNTED)}"
        page = load_report_html(rows, heading, times, f"{high[trace]:g} jobs an hour, {jobs.format(*windows[trace])}")
        write_atomic(folder / f"load_{trace}.html", page)
    for policy in ("fairness", "fifo"):
        write_atomic(folder / f"teams_{policy}.html", cluster_report_html(teams.runs(0, policy)))
    print(f"\ncharts in {folder}")
