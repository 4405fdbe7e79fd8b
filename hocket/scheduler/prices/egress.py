"""Egress costs: transfers out of a cloud, between regions and between zones.

Transfers into a cloud are free. Tariffs are list prices of early 2020 for North America and Europe, as recorded by
the authors of the analysis (stanford-futuredata/training_on_a_dime, commit 8b71dc4). The tariff between Google's zones
is Google's of that time. For other places and times, create a Tariff.
Source: Narayanan's dissertation, section 6.3.2 and Table 6.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf, isfinite

from hocket.errors import InputError, nearest
from hocket.scheduler.prices.market import PriceKey

GB = 1e9


@dataclass(frozen=True)
class Tariff:
    """Egress tariff of a cloud.

    Attributes:
        out: bands (upper limit in GB per month, dollars per GB) for traffic out of the cloud; the last band is
            unlimited.
        between_regions, between_zones: dollars per GB inside the cloud.
    """

    out: tuple[tuple[float, float], ...]
    between_regions: float
    between_zones: float

    def __post_init__(self) -> None:
        ends = [end for end, _ in self.out]
        if not ends or ends[-1] != inf or any(b <= a for a, b in zip([0.0, *ends], ends, strict=False)):
            raise InputError("tariff: out", str(self.out), "bands with ascending limits, the last one inf")
        prices = [price for _, price in self.out] + [self.between_regions, self.between_zones]
        if not all(isfinite(price) and price >= 0 for price in prices):
            raise InputError("tariff", str(prices), "dollars per GB, >= 0")

    def out_usd(self, size_bytes: float, before_bytes: float = 0.0) -> float:
        """Dollars for bytes that leave the cloud after earlier bytes of the same month."""
        return self._up_to((before_bytes + size_bytes) / GB) - self._up_to(before_bytes / GB)

    def _up_to(self, gb: float) -> float:
        begins = [0.0, *(end for end, _ in self.out)]
        return sum(
            price * (min(gb, end) - begin) for begin, (end, price) in zip(begins, self.out, strict=False) if gb > begin
        )


TARIFFS = {
    "aws": Tariff(((1, 0.0), (10_000, 0.09), (50_000, 0.085), (150_000, 0.07), (inf, 0.05)), 0.02, 0.01),
    "azure": Tariff(((5, 0.0), (10_000, 0.087), (50_000, 0.083), (150_000, 0.07), (inf, 0.05)), 0.02, 0.0),
    "gcp": Tariff(((1_000, 0.12), (10_000, 0.11), (inf, 0.08)), 0.01, 0.01),
}


def move_usd(
    size_bytes: float,
    source: PriceKey,
    target: PriceKey,
    before_bytes: float = 0.0,
    tariffs: Mapping[str, Tariff] = TARIFFS,
) -> float:
    """Dollars for moving bytes from one instance's place to another's.

    Arguments:
        size_bytes: bytes to move.
        source, target: places of the two instances.
        before_bytes: bytes that left the source cloud earlier in the month.
        tariffs: egress prices of each cloud, by name.

    Raises:
        InputError: a negative size, or a source cloud without a tariff.
    """
    if not 0 <= size_bytes < inf:
        raise InputError("size_bytes", str(size_bytes), "a number of bytes, >= 0")
    if not size_bytes:
        return 0.0
    if source.cloud not in tariffs:
        near = nearest(source.cloud, tariffs)
        raise InputError("tariff", f"none for {source.cloud!r}", f"one of {', '.join(tariffs)}", near)
    own = tariffs[source.cloud]
    if source.cloud != target.cloud:
        return own.out_usd(size_bytes, before_bytes)
    if source.region != target.region:
        return own.between_regions * size_bytes / GB
    return own.between_zones * size_bytes / GB if source.zone != target.zone else 0.0


@dataclass
class Egress:
    """Costs of moves, with the bytes that left each cloud so far.

    Tariff bands count all bytes that left a cloud in a month (UTC).
    """

    tariffs: Mapping[str, Tariff] = field(default_factory=lambda: TARIFFS)
    _left_bytes: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def quote_usd(self, size_bytes: float, source: PriceKey, target: PriceKey, now_s: float) -> float:
        """Dollars that a move would cost at a time.

        Arguments:
            now_s: time of the move, in seconds since 1970.

        Raises:
            InputError: a negative size, or a source cloud without a tariff.
        """
        return move_usd(size_bytes, source, target, self._left_bytes.get(_month(source, now_s), 0.0), self.tariffs)

    def move_usd(self, size_bytes: float, source: PriceKey, target: PriceKey, now_s: float) -> float:
        """Record a move and return its cost in dollars.

        The bytes count toward the bands of the month.

        Arguments:
            now_s: time of the move, in seconds since 1970.

        Raises:
            InputError: a negative size, or a source cloud without a tariff.
        """
        usd = self.quote_usd(size_bytes, source, target, now_s)
        if source.cloud != target.cloud:
            month = _month(source, now_s)
            self._left_bytes[month] = self._left_bytes.get(month, 0.0) + size_bytes
        return usd


def _month(source: PriceKey, now_s: float) -> tuple[str, int, int]:
    now = datetime.fromtimestamp(now_s, UTC)
    return source.cloud, now.year, now.month
