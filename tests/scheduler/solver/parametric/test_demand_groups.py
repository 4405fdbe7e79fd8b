"""Demand rows of groups of jobs: both sides of a row equal their definition, job by job and option by option."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts


def variables(draw: np.random.Generator) -> AllocationVariables:
    """Three groups of jobs, on three types alone and in two pairs; one job does not run."""
    group = np.concatenate([draw.permutation(np.repeat([0, 1, 2], [2, 3, 1])), [-1]])
    first = np.concatenate([np.repeat([0, 1, 2], 3), [0, 1]])
    second = np.concatenate([np.full(9, -1), [1, 2]])
    found = SimpleNamespace(
        group=group,
        groups=3,
        count=np.bincount(group[group >= 0]),
        first=first,
        second=second,
        variables=len(first),
        steps_first=draw.uniform(1, 5, len(first)),
        steps_second=np.where(second >= 0, draw.uniform(1, 5, len(first)), 0.0),
    )
    return cast(AllocationVariables, found)


@pytest.mark.parametrize("seed", range(8))
def test_both_sides_are_those_of_the_definition(seed: int) -> None:
    """Demands and times above each row's rate are added up, and divided by the group's maximum throughput."""
    draw = np.random.default_rng(seed)
    shares: Any = variables(draw)
    lines, demand, times = GroupLines(shares), draw.uniform(0, 4, 7), draw.uniform(0, 1, shares.variables)
    rows = LineCuts(lines, np.array([0, 1, 1, 2]), np.array([0.0, 0.0, 2.0, 1.0]))
    change, prices = draw.uniform(-1, 1, 7), draw.uniform(0, 1, 4)
    by_job = np.zeros(7)
    for row, (group, rate) in enumerate(zip(rows.group, rows.rate, strict=True)):
        own = np.flatnonzero(shares.group == group)
        options = [(v, shares.steps_first[v]) for v in np.flatnonzero(shares.first == group)]
        options += [(v, shares.steps_second[v]) for v in np.flatnonzero(shares.second == group)]
        most = len(own) * max(steps for _, steps in options)
        assert rows.asked(demand)[row] == pytest.approx(sum(max(demand[job] - rate, 0) for job in own) / most)
        done = sum(times[v] * max(steps - rate, 0) for v, steps in options)
        assert rows.done(times)[row] == pytest.approx(done / most)
        slope = sum(change[job] for job in own if demand[job] > rate)
        assert rows.slopes(demand, change)[row] == pytest.approx(slope / most)
        for job in own:
            by_job[job] += max(demand[job] - rate, 0) * prices[row] / most
    assert rows.by_job(demand, prices) == pytest.approx(by_job)


def test_the_first_rows_are_of_options_without_a_partner() -> None:
    """Rate 0 of each group; of the group with different demands, also the rates of its options alone.

    The first job is a partner of another one: the rate of that pair is no row.
    """
    steps = np.array([1.0, 2.0, 3.0, 4.0])
    found = SimpleNamespace(
        group=np.array([0, 0, 1]),
        groups=2,
        count=np.array([2, 1]),
        first=np.array([0, 0, 1, 0]),
        second=np.array([-1, -1, -1, 0]),
        variables=4,
        steps_first=steps,
        steps_second=np.zeros(4),
    )
    rows = GroupLines(cast(AllocationVariables, found)).start(np.array([1.0, 2.0, 5.0]))
    assert list(zip(rows.group.tolist(), rows.rate.tolist(), strict=True)) == [(0, 0.0), (0, 1.0), (0, 2.0), (1, 0.0)]
