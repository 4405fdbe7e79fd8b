"""Charts of the headlines' runs: Figures 5.9 and 5.10 (JCT against load, CDFs), 5.12 and 5.13 (teams over time)."""

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


def write(folder: Path, kept: Kept, window: tuple[int, int], high: dict[str, float]) -> None:
    """Write all charts that there are runs for; nothing is run but the teams."""
    folder.mkdir(parents=True, exist_ok=True)
    for trace, (title, policies) in FIGURES.items():
        rows, times = [], []
        for policy in policies:
            for rate in RATES:
                for seed in SEEDS:
                    row = kept.rows.get(Case(trace, rate, policy, seed, *window).key)
                    if row is None:
                        continue
                    rows.append((policy, round(rate, 3), row.avg_jct_s))
                    if f"{rate:g}" == f"{high[trace]:g}" and seed == 0:
                        times.append((policy, np.array(row.jct_s), row.jobs))
        page = load_report_html(rows, title, times, f"{high[trace]:g} jobs an hour")
        write_atomic(folder / f"load_{trace}.html", page)
    for policy in ("fairness", "fifo"):
        write_atomic(folder / f"teams_{policy}.html", cluster_report_html(teams.runs(0, policy)))
    print(f"\ncharts in {folder}")
