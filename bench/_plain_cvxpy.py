"""Straightforward cvxpy versions of the policies, for comparison only: one row per job, without groups of jobs."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies.max_min_fairness import equal_share


def available() -> str:
    """Version of cvxpy; empty if it is not installed."""
    try:
        import cvxpy
    except ImportError:
        return ""
    return str(cvxpy.__version__)


def _solved(snapshot: Snapshot, objective: Callable[[Any, Any], Any], solver: str) -> tuple[float, float]:
    """Objective value, and CPU seconds from the arrays to the solution."""
    import cvxpy

    start = time.process_time()
    x = cvxpy.Variable(snapshot.throughputs.shape)
    throughput = cvxpy.sum(cvxpy.multiply(snapshot.throughputs, x), axis=1)
    used = cvxpy.sum(cvxpy.multiply(snapshot.scale[:, None] * np.ones(snapshot.throughputs.shape), x), axis=0)
    limits = [x >= 0, cvxpy.sum(x, axis=1) <= 1, used <= snapshot.workers[snapshot.type_of]]
    problem = cvxpy.Problem(cvxpy.Maximize(objective(cvxpy, throughput)), limits)
    problem.solve(solver=solver)
    return float(problem.value), time.process_time() - start


def max_min_fairness(snapshot: Snapshot, solver: str) -> tuple[float, float]:
    """Minimum normalized throughput, and CPU seconds."""
    due = equal_share(snapshot) * snapshot.weights / snapshot.scale
    return _solved(snapshot, lambda cvxpy, got: cvxpy.min(cvxpy.multiply(1 / due, got)), solver)


def makespan(snapshot: Snapshot, solver: str) -> tuple[float, float]:
    """Seconds until the last job ends, and CPU seconds.

    This is one linear program; the public policy bisects instead.
    """
    unit = snapshot.remaining_steps.max()
    parts = unit / snapshot.remaining_steps
    value, seconds = _solved(snapshot, lambda cvxpy, got: cvxpy.min(cvxpy.multiply(parts, got)), solver)
    return unit / value, seconds


def max_sum_throughput(snapshot: Snapshot, solver: str) -> tuple[float, float]:
    """Sum of all throughputs, and CPU seconds."""
    return _solved(snapshot, lambda cvxpy, got: cvxpy.sum(got), solver)
