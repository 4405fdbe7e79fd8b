"""Queues: long lines are served in stretches as short ones are one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.cluster.policies._queue import _by_stretches, _one_by_one
from hocket.cluster.policies._refusals import refusals
from tests.cluster.crowds import crowd


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14), st.booleans())
def test_stretches_serve_as_one_by_one(seed: int, jobs: int, spread: bool) -> None:
    """The same columns, the same who wait, and the same one that nothing fitted."""
    there = crowd(seed, jobs, False, spread)
    refused = refusals(there)
    order = [j for j in np.random.default_rng(seed).permutation(jobs).tolist() if j not in refused]
    column, waiting, stuck = _by_stretches(there, np.array(order, dtype=np.int64))
    plain, behind, first = _one_by_one(there, order, overtake=False)
    assert column.tolist() == plain.tolist()
    assert waiting == behind
    assert stuck == first
