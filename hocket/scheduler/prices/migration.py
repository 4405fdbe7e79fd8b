"""Journey: where one job trains, and what that costs, when it takes the cheapest place and may move as prices change.

Source: section 6.3.2, "End-to-End Cost Reduction". A job has one accelerator (one of several, where instances have more and
others use the rest) and wants the lowest price for a step of training. Without moves it stays where it began.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, isnan

from hocket.errors import InputError
from hocket.scheduler.prices.bill import Bill, bill, total_usd
from hocket.scheduler.prices.egress import TARIFFS, Egress, Tariff
from hocket.scheduler.prices.market import Market, Offer

DAY_S = 86400.0
_MOST_LEGS = 100_000
_INSTANT_S = 1e-5  # moments since 1970 are known to some 1e-7 s


@dataclass(frozen=True)
class Moving:
    """When and how a job may move.

    Attributes:
        every_s: how often it looks for a better place; inf to stay where it begins (section 6.3.2: once a day is enough).
        checkpoint_bytes: that go along.
        restart_s: for which it pays and does not train, after each move.
    """

    every_s: float = inf
    checkpoint_bytes: float = 0.0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise InputError("moving: every_s", str(self.every_s), "> 0")
        for name in ("checkpoint_bytes", "restart_s"):
            if not 0 <= getattr(self, name) < inf:
                raise InputError(f"moving: {name}", str(getattr(self, name)), "a number >= 0")


@dataclass(frozen=True)
class Migration:
    """What a job paid where.

    Attributes:
        bills: of its legs, in order.
        transfer_usd: for the checkpoints that moved.
        end_s: when it was done.
    """

    bills: tuple[Bill, ...]
    transfer_usd: float
    end_s: float

    @property
    def cost_usd(self) -> float:
        """All of it."""
        return total_usd(self.bills) + self.transfer_usd

    @property
    def moves(self) -> int:
        """How often it changed its place."""
        return len(self.bills) - 1


def travel(
    market: Market,
    speed: Mapping[str, float],
    steps: float,
    begin_s: float,
    moving: Moving | None = None,
    tariffs: Mapping[str, Tariff] = TARIFFS,
) -> Migration:
    """Train so many steps from a moment on, on spot instances.

    It moves when a step costs less elsewhere and what is saved until it next looks pays for the move, or when its instance is
    no longer on sale.

    Arguments:
        speed: steps a second of the job by accelerator; others are of no use to it.

    Raises:
        InputError: no steps, or a moment at which nothing that it can use is on sale.
    """
    if not (isfinite(steps) and steps > 0):
        raise InputError("journey: steps", str(steps), "a number > 0")
    moving = moving or Moving()
    offers = [o for o in market if speed.get(o.accelerator, 0.0) > 0 and o.spot is not None]
    now, left, transfer = begin_s, steps, 0.0
    place = _best(offers, speed, now)
    legs: list[tuple[Offer, float, float]] = []
    egress = Egress(tariffs)
    for _ in range(_MOST_LEGS):
        assert place.spot is not None
        rate = speed[place.accelerator]
        end = min(now + left / rate, now + moving.every_s, place.spot.until(now))
        left -= rate * (end - now)
        _lengthen(legs, place, now, end)
        now = end
        if left <= rate * _INSTANT_S:
            return Migration(tuple(bill(market, o.key, a, b, 1 / o.accelerators) for o, a, b in legs), transfer, now)
        other = _best(offers, speed, now)
        if other.key != place.key and _pays(place, other, speed, moving, now, left, egress):
            transfer += egress.move_usd(moving.checkpoint_bytes, place.key, other.key, now)
            left += moving.restart_s * speed[other.accelerator]  # time that is paid for, told in steps
            place = other
    raise InputError("journey", f"more than {_MOST_LEGS} looks", "a shorter job, or a longer time between looks")


def _best(offers: list[Offer], speed: Mapping[str, float], now_s: float) -> Offer:
    found = [(price / speed[o.accelerator], o) for o in offers if not isnan(price := o.price(now_s))]
    if not found:
        expected = f"spot instances with {' or '.join(sorted(speed)) or 'any accelerator'}"
        raise InputError("market", f"nothing on sale at {now_s:.0f} s", expected)
    return min(found, key=lambda one: (one[0], one[1].key))[1]


def _pays(
    place: Offer,
    other: Offer,
    speed: Mapping[str, float],
    moving: Moving,
    now_s: float,
    left: float,
    egress: Egress,
) -> bool:
    """Whether moving costs less than what it saves on the steps up to the next look, at the prices of now."""
    if isnan(place.price(now_s)):
        return True
    steps = min(left, moving.every_s * speed[place.accelerator])
    here, there = (o.price(now_s) / 3600 / speed[o.accelerator] for o in (place, other))
    move = egress.quote_usd(moving.checkpoint_bytes, place.key, other.key, now_s)
    restart = other.price(now_s) / 3600 * moving.restart_s
    return there * steps + move + restart < here * steps


def _lengthen(legs: list[tuple[Offer, float, float]], place: Offer, begin_s: float, end_s: float) -> None:
    if legs and legs[-1][0].key == place.key and legs[-1][2] == begin_s:
        begin_s = legs.pop()[1]
    legs.append((place, begin_s, end_s))
