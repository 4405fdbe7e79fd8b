"""Packs of consecutive layers, compared with all ways to cut a chain."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.strategies.swapping import packing
from tests.tiers import examples

WEIGHTS = st.integers(0, 9).map(float)


def cuts(layers: int, packs: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut a chain into so many packs: first layer and last layer + 1 of each."""
    for inner in combinations(range(1, layers), packs - 1):
        yield list(pairwise((0, *inner, layers)))


@examples(60)
@given(data=st.data(), count=st.integers(1, 7))
def test_the_heaviest_pack_is_as_light_as_possible(data: st.DataObject, count: int) -> None:
    """For each number of packs; a pack has weights of its own at its first and behind its last layer."""
    own, head, tail = (
        np.array(data.draw(st.lists(WEIGHTS, min_size=n, max_size=n))) for n in (count, count + 1, count + 1)
    )
    layers = np.append(0.0, own.cumsum())
    best, _ = packing.least_maximum(layers, head, tail, count)
    for packs in range(1, count + 1):
        found = [max(own[a:b].sum() + head[a] + tail[b] for a, b in cut) for cut in cuts(count, packs)]
        assert best[packs, count] == pytest.approx(min(found))


@examples(60)
@given(data=st.data(), count=st.integers(1, 7), limit=st.integers(5, 40).map(float))
def test_packs_of_limited_weight_cost_the_least(data: st.DataObject, count: int, limit: float) -> None:
    """Infinite where no cut keeps the limit."""
    own, head, tail, price, first = (
        np.array(data.draw(st.lists(WEIGHTS, min_size=n, max_size=n)))
        for n in (count, count + 1, count + 1, count + 1, count + 1)
    )
    layers = np.append(0.0, own.cumsum())
    best, _ = packing.least_sum(layers, head, tail, price, first, limit)
    sums = [
        sum(price[a] for a, _ in cut) + first[cut[0][1]]
        for packs in range(1, count + 1)
        for cut in cuts(count, packs)
        if all(own[a:b].sum() + head[a] + tail[b] <= limit for a, b in cut)
    ]
    assert best[count] == pytest.approx(min(sums, default=np.inf))
