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


def _solved(there: Snapshot, objective: Callable[[Any, Any], Any], solver: str) -> tuple[float, float]:
    """Objective value, and CPU seconds from the arrays to the solution."""
    import cvxpy

    start = time.process_time()
    x = cvxpy.Variable(there.throughputs.shape)
    throughput = cvxpy.sum(cvxpy.multiply(there.throughputs, x), axis=1)
    used = cvxpy.sum(cvxpy.multiply(there.scale[:, None] * np.ones(there.throughputs.shape), x), axis=0)
    limits = [x >= 0, cvxpy.sum(x, axis=1) <= 1, used <= there.workers[there.type_of]]
    problem = cvxpy.Problem(cvxpy.Maximize(objective(cvxpy, throughput)), limits)
    problem.solve(solver=solver)
    return float(problem.value), time.process_time() - start


def max_min_fairness(there: Snapshot, solver: str) -> tuple[float, float]:
    """Minimum normalized throughput, and CPU seconds."""
    due = equal_share(there) * there.weights / there.scale
    return _solved(there, lambda cvxpy, got: cvxpy.min(cvxpy.multiply(1 / due, got)), solver)


def makespan(there: Snapshot, solver: str) -> tuple[float, float]:
    """Seconds until the last job ends, and CPU seconds.

    This is one linear program; the public policy bisects instead.
    """
    unit = there.remaining_steps.max()
    parts = unit / there.remaining_steps
    value, seconds = _solved(there, lambda cvxpy, got: cvxpy.min(cvxpy.multiply(parts, got)), solver)
    return unit / value, seconds


def max_sum_throughput(there: Snapshot, solver: str) -> tuple[float, float]:
    """Sum of all throughputs, and CPU seconds."""
    return _solved(there, lambda cvxpy, got: cvxpy.sum(got), solver)
