"""`hocket cluster prices`: prices of clouds."""

from pathlib import Path
from typing import Annotated

import typer

from hocket.cli.output.options import Json


def prices(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of published price files, see docs/explanation/prices.md; default: the packaged sample."
        ),
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="Date, such as 2020-03-01; default: the last known.")] = None,
    json: Json = False,
) -> None:
    """Show accelerator prices at a date: offers and spot discounts.

    For each accelerator it shows the cheapest and the most expensive offer.

    Example: hocket cluster prices --at 2020-03-01
    """
    from hocket.cli.output.table import print_table
    from hocket.cli.output.tables import print_json
    from hocket.errors import InputError
    from hocket.scheduler.prices.offers import best_offers
    from hocket.scheduler.prices.readers.public import EXAMPLES, read_market
    from hocket.util.schema import as_data

    market = read_market(folder or EXAMPLES)
    now_s = market.last_s if at is None else moment_of(at, "--at")
    found = best_offers(market, now_s)
    if not found:
        expected = f"a moment from {show_moment(market.first_s)} on, when prices are first known"
        raise InputError("--at", show_moment(now_s), expected)
    if json:
        print_json({"at_s": now_s, "accelerators": [{**as_data(row), "reduction": row.reduction} for row in found]})
        return
    rows = [
        [
            row.accelerator,
            str(row.offers),
            f"{row.cheapest_usd_per_hour:.4f}",
            row.cheapest,
            f"{row.dearest_usd_per_hour:.4f}",
            "" if row.on_demand_usd_per_hour is None else f"{row.on_demand_usd_per_hour:.4f}",
            "" if row.reduction is None else f"{row.reduction:.2f}x",
        ]
        for row in found
    ]
    columns = ["accelerator", "offers", "spot from ($/h)", "where", "to ($/h)", "on demand ($/h)", "saves"]
    shown = range(5 if all(row.on_demand_usd_per_hour is None for row in found) else len(columns))
    print_table(
        f"one accelerator on {show_moment(now_s)}",
        columns[: len(shown)],
        [row[: len(shown)] for row in rows],
        right=[k for k in shown if k not in (0, 3)],
        drop=(1, 4),
    )
    if now_s > market.last_s:
        print(f"  note: prices are known until {show_moment(market.last_s)}, and assumed to stay constant after that")


def moment_of(text: str, place: str) -> float:
    """Convert an ISO date, or a date with a time, to seconds since 1970.

    The time zone is UTC unless the text names another.

    Arguments:
        place: option that an error names.

    Raises:
        InputError: `text` is not a date, or too far from 1970.
    """
    from datetime import UTC, datetime
    from math import nan

    from hocket.errors import InputError
    from hocket.scheduler.model.job import LATEST_S

    try:
        found = datetime.fromisoformat(text)
        moment_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        moment_s = nan
    if not abs(moment_s) <= LATEST_S:  # a date far from 1970 cannot be formatted
        raise InputError(place, repr(text), "a day or a moment, such as 2020-03-01 or 2020-03-01T12:00")
    return moment_s


def show_moment(moment_s: float) -> str:
    """Format a time, given in seconds since 1970, in UTC to the minute."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
