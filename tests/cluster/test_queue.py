"""Queues: a line is served as if one after the other chose, however many columns are looked up at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.cluster.policies import _queue
from hocket.cluster.policies._queue import queue
from hocket.cluster.policies._refusals import refusals
from tests.cluster.crowds import crowd


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14), st.booleans(), st.booleans(), st.booleans())
def test_each_has_the_fastest_workers_that_are_left(
    seed: int, jobs: int, spread: bool, overtake: bool, long: bool
) -> None:
    """One by one, by hand: the same jobs run, on the same columns, and the same one is the first that nothing fitted.

    So it is in long lines, which are looked at in stretches.
    """
    there = crowd(seed, jobs, False, spread)
    refused = refusals(there)
    order = [j for j in np.random.default_rng(seed).permutation(jobs).tolist() if j not in refused]
    free = {own.name: own.workers for own in there.types}
    served: list[tuple[int, int]] = []
    stuck, worth = None, 0.0
    for place, j in enumerate(order):
        if not any(free.values()) or (stuck is not None and not overtake):
            break
        needs = there.jobs[j].job.scale_factor
        able = [
            (-there.throughputs[j, c], c)
            for c, own in enumerate(there.columns)
            if free[there.types[own.type].name] >= needs and there.throughputs[j, c] > 0
        ]
        if able:
            _, c = min(able)
            free[there.types[there.columns[c].type].name] -= needs
            served.append((j, c))
            room = [there.types[own.type].workers >= needs for own in there.columns]
            worth += (len(order) - place) * there.throughputs[j, c] / there.throughputs[j][room].max()
        elif stuck is None:
            stuck = j
    scale = [there.jobs[j].job.scale_factor for j in order]
    with pytest.MonkeyPatch.context() as patch:
        if long:
            patch.setattr(_queue, "_FEW", -1)
        found = queue(there, order, scale, overtake)
    assert list(zip(found.jobs, found.columns.tolist(), strict=True)) == served
    assert found.stuck == stuck
    assert found.worth == pytest.approx(worth)
