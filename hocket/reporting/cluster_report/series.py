"""Time series of a cluster run, in time bins, from leases and job records."""

from functools import partial

import numpy as np

from hocket.scheduler.simulation.metrics import ClusterRun, held

MOST_BINS = 160
_ROUNDS = 6  # minimum rounds per bin, so that a bin averages over jobs that take turns


def edges_of(run: ClusterRun, end_s: float) -> np.ndarray:
    """Return edges, in seconds, of equal time bins up to the end of a run.

    Arguments:
        end_s: end of the longest run of the page.
    """
    if run.ended_s <= 0:
        return np.array([0.0, end_s])
    bins = min(MOST_BINS, max(12, run.rounds // _ROUNDS))
    bins = max(1, round(bins * run.ended_s / end_s)) if run.ended_s < end_s else bins
    return np.linspace(0.0, run.ended_s, bins + 1)


def amount(began_s: np.ndarray, ended_s: np.ndarray, size: np.ndarray, edges_s: np.ndarray) -> np.ndarray:
    """Compute the mean, over each bin, of the total size of the active intervals.

    The integral up to a time t is the sum of size x min(max(t - began, 0), length) over all intervals. Cumulative sums
    over the sorted begins and ends give it.

    Arguments:
        began_s, ended_s, size: begin, end and size of each interval.
        edges_s: edges of the bins.

    Returns:
        Mean total size by bin; shape (bins,).
    """

    def upto(times_s: np.ndarray) -> np.ndarray:
        order = np.argsort(times_s, kind="stable")
        count = np.searchsorted(times_s[order], edges_s, "right")
        sizes = np.concatenate([[0.0], np.cumsum(size[order])])[count]
        moments = np.concatenate([[0.0], np.cumsum(size[order] * times_s[order])])[count]
        found: np.ndarray = sizes * edges_s - moments
        return found

    total = upto(began_s) - upto(ended_s)
    return np.maximum(0.0, np.diff(total) / np.diff(edges_s))


def workers_held(run: ClusterRun, edges_s: np.ndarray) -> np.ndarray:
    """Compute the mean number of held workers; shape (types, bins)."""
    began, ended, workers, kind = _leases(run)
    one = partial(amount, edges_s=edges_s)
    rows = [one(began[kind == t], ended[kind == t], workers[kind == t]) for t in range(len(run.types))]
    return np.array(rows).reshape(len(run.types), len(edges_s) - 1)


def _leases(run: ClusterRun) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    spans = run.spans
    began, ended = np.array([s.began_s for s in spans]), np.array([s.ended_s for s in spans])
    return began, ended, np.array([float(s.workers) for s in spans]), np.array([s.type for s in spans], dtype=int)


def jobs_running(run: ClusterRun, edges_s: np.ndarray) -> np.ndarray:
    """Compute the mean number of running jobs; shape (bins,)."""
    began, ended, _, _ = _leases(run)
    return amount(began, ended, np.array([float(len(s.jobs)) for s in run.spans]), edges_s)


def jobs_present(run: ClusterRun, edges_s: np.ndarray) -> np.ndarray:
    """Compute the mean number of arrived, unfinished jobs; shape (bins,).

    Refused jobs do not count.
    """
    there = [r for r in run.records if not r.refused]
    came = np.array([r.job.arrived_s for r in there])
    left = np.array([max(run.ended_s, r.job.arrived_s) if r.finished_s is None else r.finished_s for r in there])
    return amount(came, left, np.ones(len(there)), edges_s)


def by_job(run: ClusterRun, edges_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean workers of each job, and their value to the job.

    The value is the job's throughput on these workers, divided by its throughput on one average worker of the cluster.
    A job on types that suit it has a value above its number of workers. With equal shares of all types, both numbers
    are equal.

    Returns:
        Workers and value; both of shape (jobs, bins).
    """
    mean = held(run, edges_s) / np.diff(edges_s)[:, None, None]
    speed = np.array([r.throughputs for r in run.records]).reshape(len(run.records), len(run.types))
    count = np.array([float(t.workers) for t in run.types])
    usual = speed @ count / max(1.0, count.sum())
    relative = np.divide(speed, usual[:, None], out=np.zeros_like(speed), where=usual[:, None] > 0)
    return mean.sum(axis=2).T, (mean * relative).sum(axis=2).T
