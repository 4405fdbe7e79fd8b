"""Migration of one job between spot instances as prices change.

The job uses one accelerator (on a larger instance, other jobs use the rest) and takes the lowest price per training
step. Without moves it stays where it started.
Source: Narayanan's dissertation, section 6.3.2, "End-to-End Cost Reduction".
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
_INSTANT_S = 1e-5  # seconds since 1970 have a precision of about 1e-7 s


@dataclass(frozen=True)
class Moving:
    """Settings for moves of a job.

    Attributes:
        every_s: seconds between checks for a better place; inf to stay (Narayanan's dissertation, section 6.3.2: once
            a day is enough).
        checkpoint_bytes: bytes to transfer per move.
        restart_s: paid seconds without training after each move.
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
    """Bills and moves of a job.

    Attributes:
        bills: one bill for each stay on an instance, in order.
        transfer_usd: cost of checkpoint transfers.
        end_s: completion time, in seconds since 1970.
    """

    bills: tuple[Bill, ...]
    transfer_usd: float
    end_s: float

    @property
    def cost_usd(self) -> float:
        """Total cost of stays and transfers, in dollars."""
        return total_usd(self.bills) + self.transfer_usd

    @property
    def moves(self) -> int:
        """Number of moves."""
        return len(self.bills) - 1


def travel(
    market: Market,
    speed: Mapping[str, float],
    steps: float,
    begin_s: float,
    moving: Moving | None = None,
    tariffs: Mapping[str, Tariff] = TARIFFS,
) -> Migration:
    """Train a number of steps on spot instances from a start time.

    The job moves if the savings until the next check exceed the cost of the move, or if its instance is no longer on
    sale.

    Arguments:
        market: offers with their price series.
        speed: steps per second by accelerator; other accelerators are not used.
        begin_s: start, in seconds since 1970.
        moving: when and how the job may move.
        tariffs: egress prices of each cloud, by name.

    Raises:
        InputError: no steps, or a time without a usable offer.
    """
    if not (isfinite(steps) and steps > 0):
        raise InputError("migration: steps", str(steps), "a number > 0")
    moving = moving or Moving()
    job = _SpotJob(speed, moving, Egress(tariffs))
    offers = [o for o in market if speed.get(o.accelerator, 0.0) > 0 and o.spot is not None]
    now, left, transfer = begin_s, steps, 0.0
    place = job.best(offers, now)
    legs: list[tuple[Offer, float, float]] = []
    for _ in range(_MOST_LEGS):
        assert place.spot is not None
        rate = speed[place.accelerator]
        end = min(now + left / rate, now + moving.every_s, place.spot.until(now))
        left -= rate * (end - now)
        _lengthen(legs, place, now, end)
        now = end
        if left <= rate * _INSTANT_S:
            return Migration(tuple(bill(market, o.key, a, b, 1 / o.accelerators) for o, a, b in legs), transfer, now)
        other = job.best(offers, now)
        if other.key != place.key and job.gains(place, other, now, left):
            transfer += job.egress.move_usd(moving.checkpoint_bytes, place.key, other.key, now)
            left += moving.restart_s * speed[other.accelerator]  # paid restart time, as steps
            place = other
    raise InputError("migration", f"more than {_MOST_LEGS} checks", "a shorter job, or a larger every_s")


@dataclass(frozen=True)
class _SpotJob:
    """Job on spot instances, which takes the lowest price per step.

    Attributes:
        speed: steps per second by accelerator.
        moving: settings for its moves.
        egress: cost of its checkpoint transfers, with the bytes sent so far.
    """

    speed: Mapping[str, float]
    moving: Moving
    egress: Egress

    def best(self, offers: list[Offer], now_s: float) -> Offer:
        """Offer with the lowest price per step.

        Raises:
            InputError: no instance is on sale now.
        """
        found = [(price / self.speed[o.accelerator], o) for o in offers if not isnan(price := o.price(now_s))]
        if not found:
            expected = f"spot instances with {' or '.join(sorted(self.speed)) or 'any accelerator'}"
            raise InputError("market", f"nothing on sale at {now_s:.0f} s", expected)
        return min(found, key=lambda one: (one[0], one[1].key))[1]

    def gains(self, place: Offer, other: Offer, now_s: float, left: float) -> bool:
        """True if a move costs less than it saves until the next check.

        Prices are assumed constant until the next check.

        Arguments:
            place, other: offers before and after the move.
            left: remaining steps.
        """
        if isnan(place.price(now_s)):
            return True
        steps = min(left, self.moving.every_s * self.speed[place.accelerator])
        here, there = (o.price(now_s) / 3600 / self.speed[o.accelerator] for o in (place, other))
        move = self.egress.quote_usd(self.moving.checkpoint_bytes, place.key, other.key, now_s)
        restart = other.price(now_s) / 3600 * self.moving.restart_s
        return there * steps + move + restart < here * steps


def _lengthen(legs: list[tuple[Offer, float, float]], place: Offer, begin_s: float, end_s: float) -> None:
    if legs and legs[-1][0].key == place.key and legs[-1][2] == begin_s:
        begin_s = legs.pop()[1]
    legs.append((place, begin_s, end_s))
