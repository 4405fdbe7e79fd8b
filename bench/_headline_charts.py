"""Charts of the headlines' runs: Figures 5.9 and 5.10 (JCT against load, CDFs), 5.12 and 5.13 (teams over time)."""

from math import nan
from pathlib import Path

import _headline_teams as teams
import numpy as np
from _headline_runs import Case, Kept

from hocket.files import write_atomic
from hocket.report.cluster import cluster_report_html
from hocket.report.cluster_load import load_report_html

FIGURES = {
    "single": ("One worker a job", ("LAS", "Gandiva", "AlloX", "LAS aware", "LAS aware, sharing")),
    "multiple": ("Jobs of several workers", ("LAS", "Gandiva", "LAS aware", "LAS aware, sharing")),
}
RATES = tuple(0.2 * k for k in range(1, 61))  # jobs an hour that runs may have been made of
SEEDS = range(10)


def write(
    folder: Path, kept: Kept, windows: dict[str, tuple[int, int]], part: tuple[int, int], high: dict[str, float]
) -> None:
    """Write all charts that there are runs for; nothing is run but the teams.

    Arguments:
        windows: jobs that CDFs are of, by trace. part: jobs that averages against load are of. high: jobs an hour of CDFs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for trace, (title, policies) in FIGURES.items():
        made = {rate: [Case(trace, rate, p, seed, *part) for p in policies for seed in SEEDS] for rate in RATES}
        found = [(case.policy, rate, kept.rows.get(case.key)) for rate, cases in made.items() for case in cases]
        rows = [(policy, round(rate, 3), row.avg_jct_s) for policy, rate, row in found if row is not None]
        rows.sort(key=lambda row: policies.index(row[0]))
        cases = [Case(trace, high[trace], policy, 0, *windows[trace]) for policy in policies]
        times = [
            (case.policy, np.array(row.jct_s), row.jobs)
            for case in cases
            if (row := kept.rows.get(case.key)) is not None
        ]
        rows += [(policy, high[trace], nan) for policy, _, _ in times]  # so that each has its look
        page = load_report_html(rows, title, times, f"{high[trace]:g} jobs an hour")
        write_atomic(folder / f"load_{trace}.html", page)
    for policy in ("fairness", "fifo"):
        write_atomic(folder / f"teams_{policy}.html", cluster_report_html(teams.runs(0, policy)))
    print(f"\ncharts in {folder}")
