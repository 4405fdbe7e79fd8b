"""Knapsack: a selection of entries worth enough, if greedy selection fails.

    maximize sum of w_e S_e   subject to   at most one entry per job, enough workers of each type,  S_e 0 or 1

For single-worker jobs that run alone, the relaxation is already integral. Scale factors make this a multiple-choice
knapsack (Narayanan's dissertation, section 5.5), and pairs make it a matching. The program is small, because only
entries with a fraction count, and the search stops at the first selection that reaches the target. Nothing depends on
a clock.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.rounds.priorities import Entries

__all__ = ["pack"]

_MOST_NODES = 200  # limit of the search; without a result by then, no selection is assumed to exist


def pack(entries: Entries, worth: np.ndarray, workers: list[int], enough: float) -> np.ndarray | None:
    """Indices of a selection worth at least `enough`; None if none is found.

    Arguments:
        entries: candidates.
        worth: value of each entry; entries worth nothing are ignored.
        workers: number of free workers, by type.
        enough: target value.
    """
    import highspy

    kept = np.flatnonzero(worth > 0)
    first, second, kind = entries.first[kept], entries.second[kept], entries.type[kept]
    both = np.flatnonzero(second != ALONE)
    jobs, row = np.unique(np.concatenate([first, second[both]]), return_inverse=True)
    every = np.arange(len(kept))
    rows = np.concatenate([row, len(jobs) + kind])
    columns = np.concatenate([every, both, every])
    values = np.concatenate([np.ones(len(row)), entries.need[kept]]).astype(float)
    order = np.lexsort((rows, columns))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(kept), len(jobs) + len(workers)
    model.col_cost_, model.col_lower_, model.col_upper_ = -worth[kept], np.zeros(len(kept)), np.ones(len(kept))
    model.row_lower_ = np.full(model.num_row_, -np.inf)
    model.row_upper_ = np.concatenate([np.ones(len(jobs)), workers]).astype(float)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.searchsorted(columns[order], np.arange(len(kept) + 1)).astype(np.int32)
    model.a_matrix_.index_, model.a_matrix_.value_ = rows[order].astype(np.int32), values[order]
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(kept)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("objective_target", -enough),
        ("mip_max_nodes", _MOST_NODES),
    ):
        solver.setOptionValue(name, value)
    solver.passModel(model)
    solver.run()
    taken = np.array(solver.getSolution().col_value)
    if len(taken) != len(kept):
        return None
    chosen = kept[taken > 0.5]
    return chosen if worth[chosen].sum() >= enough else None
