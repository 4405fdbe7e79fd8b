"""Sums over messages of a link: the fitted line, for any known link."""

from functools import reduce
from operator import add

import pytest

from hocket.hardware.cluster import Link
from hocket.hardware.link_sums import LinkSums

KNOWN = Link(1e9, 1e-5)
SIZES = (1e3, 1e4, 2e5, 1e6, 1e6)


def sums(link: Link, sizes: tuple[float, ...] = SIZES) -> LinkSums:
    """Sums of some messages of a link."""
    return reduce(add, (LinkSums.of(size, link.seconds(size)) for size in sizes))


@pytest.mark.parametrize("link", [Link(1e9, 1e-3), Link(5e7, 0.0), Link(2e9, 2e-5)])
def test_the_latency_of_a_link_is_found(link: Link) -> None:
    """The latency of a link is found from any known link.

    Sums of several messages at once equal sums one by one.
    """
    assert sums(link).latency_s(KNOWN) == pytest.approx(link.latency_s, abs=1e-9)
    assert LinkSums.of(7.0, 2.0) + LinkSums.of(7.0, 2.0) == LinkSums.of(7.0, 2.0, 2)


def test_where_sizes_say_nothing() -> None:
    """Fallbacks for messages that do not show a latency.

    If all have one size, the latency has its share in the known link. If larger messages take no longer, it is the time
    that the known rate does not explain. It is never negative.
    """
    alike = sums(Link(1e9, 2e-5), (1e4, 1e4))
    assert alike.latency_s(KNOWN) == pytest.approx(alike.mean_s / 2)
    falling = LinkSums.of(1e4, 3e-3) + LinkSums.of(1e6, 2e-3)
    assert falling.latency_s(KNOWN) == pytest.approx(2.5e-3 - 505e3 / 1e9)
    steep = LinkSums.of(1e4, 1e-6) + LinkSums.of(1e6, 2e-3)
    assert steep.latency_s(KNOWN) == 0.0
