"""Sums over messages of a link: the line through them, whatever is known of the link."""

from functools import reduce
from operator import add

import pytest

from hocket.hardware.cluster import Link
from hocket.hardware.link_sums import LinkSums

KNOWN = Link(1e9, 1e-5)
SIZES = (1e3, 1e4, 2e5, 1e6, 1e6)


def sums(link: Link, sizes: tuple[float, ...] = SIZES) -> LinkSums:
    """What a link does of some messages."""
    return reduce(add, (LinkSums.of(size, link.seconds(size)) for size in sizes))


@pytest.mark.parametrize("link", [Link(1e9, 1e-3), Link(5e7, 0.0), Link(2e9, 2e-5)])
def test_the_latency_of_a_link_is_found(link: Link) -> None:
    """Whatever was known; and what is added at once is as what is added one by one."""
    assert sums(link).latency_s(KNOWN) == pytest.approx(link.latency_s, abs=1e-9)
    assert LinkSums.of(7.0, 2.0) + LinkSums.of(7.0, 2.0) == LinkSums.of(7.0, 2.0, 2)


def test_where_sizes_say_nothing() -> None:
    """Of one size alone the latency has the part that is known; where larger messages take no longer, all but what the known rate
    explains; it is never negative."""
    alike = sums(Link(1e9, 2e-5), (1e4, 1e4))
    assert alike.latency_s(KNOWN) == pytest.approx(alike.mean_s / 2)
    falling = LinkSums.of(1e4, 3e-3) + LinkSums.of(1e6, 2e-3)
    assert falling.latency_s(KNOWN) == pytest.approx(2.5e-3 - 505e3 / 1e9)
    steep = LinkSums.of(1e4, 1e-6) + LinkSums.of(1e6, 2e-3)
    assert steep.latency_s(KNOWN) == 0.0
