"""Balanced cuts against brute force over every way to cut a short chain."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.profiling.analytic.synthetic import branching, chain
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.balance import MAX_PLACES, Balancer, border_bytes, runs


def bottleneck_s(profile: ModelProfile, ends: tuple[int, ...], price: list[float]) -> float:
    """Cost of the slowest run: its seconds and the prices of its boundaries."""
    seconds = [layer.forward_s[0] + layer.backward_s[0] for layer in profile.layers]
    border = border_bytes(profile, 1)
    found = []
    for s, (a, b) in enumerate(pairwise((0, *ends))):
        before = price[s - 1] * border[a] if s else 0.0
        behind = price[s] * border[b] if b < len(seconds) else 0.0
        found.append(sum(seconds[a:b]) + before + behind)
    return max(found)


@given(
    n=st.integers(1, 8),
    data=st.data(),
)
def test_a_cut_is_as_good_as_the_best_of_all(n: int, data: st.DataObject) -> None:
    """No cut is faster, for every number of stages and any prices.

    Stages are whole and in order.
    """
    values = st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=n, max_size=n)
    profile = chain(n, forward_s=data.draw(values), backward_s=data.draw(values), activation_bytes=data.draw(values))
    price = data.draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=n, max_size=n))
    found = Balancer(profile, 1).cuts(n + 2, price)
    assert len(found) == n
    for stages, ends in enumerate(found, start=1):
        assert [layer for run in runs(ends) for layer in run] == list(range(n))
        assert len(ends) == stages
        assert all(runs(ends))
        best = min(bottleneck_s(profile, (*inner, n), price) for inner in combinations(range(1, n), stages - 1))
        assert bottleneck_s(profile, ends, price) == pytest.approx(best, rel=1e-12)


def test_ties_go_to_the_earliest_cut() -> None:
    """Three equal layers in two stages: the first stage gets one."""
    assert runs(Balancer(chain(3), 1).cuts(2)[1]) == ((0,), (1, 2))


def test_a_high_price_moves_the_cut_to_where_little_crosses() -> None:
    """Equal layers are cut in the middle, unless the bytes there are dear."""
    profile = chain(4, activation_bytes=[1e6, 1e9, 1e6, 1e6])
    free, dear = (Balancer(profile, 1).cuts(2, [price])[1] for price in (0.0, 1e-3))
    assert (runs(free), runs(dear)) == (((0, 1), (2, 3)), ((0,), (1, 2, 3)))


def test_prices_follow_from_the_profile_and_reach_from_none_to_all() -> None:
    """Prices range from zero to the cost of the whole model at the widest boundary.

    A model without bytes over its cuts has one price.
    """
    profile = chain(4, activation_bytes=[1e6, 3e6, 1e6, 1e6])
    prices = Balancer(profile, 1).prices
    assert prices[0] == 0
    assert prices[-1] * 3e6 == pytest.approx(12.0)
    assert list(prices) == sorted(prices)
    assert Balancer(chain(1), 1).prices == (0.0,)


@given(n=st.integers(2, 9), seed=st.integers(0, 10**6))
def test_bytes_over_a_border(n: int, seed: int) -> None:
    """A tensor crosses every cut between its source and its last reader once."""
    profile = branching(n, seed=seed)
    expected = np.zeros(n + 1)
    for tensor in profile.tensors:
        for at in range(tensor.source + 1, max(tensor.targets, default=0) + 1):
            if tensor.source >= 0:
                expected[at] += tensor.size_bytes[0]
    assert border_bytes(profile, 1) == pytest.approx(expected, abs=1e-6)
    assert border_bytes(profile, 1)[-1] == 0


def test_long_models_are_cut_where_little_crosses() -> None:
    """A model with more layers than places is cut at the narrowest place of each span.

    Stages stay balanced.
    """
    n = 4 * MAX_PLACES
    wide = [1e6 if i % 4 else 1e3 for i in range(n)]
    balancer = Balancer(chain(n, activation_bytes=wide), 1)
    assert len(balancer.places) <= MAX_PLACES
    assert all(wide[place - 1] == 1e3 for place in balancer.places[1:-1])
    sizes = [len(run) for run in runs(balancer.cuts(8)[7])]
    assert sum(sizes) == n
    assert max(sizes) <= 1.2 * n / 8
