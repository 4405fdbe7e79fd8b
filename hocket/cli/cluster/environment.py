"""Environment of a cluster simulation: throughput estimates, prices, spot workers."""

from collections.abc import Sequence
from math import inf, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from hocket.scheduler.estimator.simulated_estimates import Estimating
    from hocket.scheduler.model.worker_types import WorkerType
    from hocket.scheduler.prices.changes import Timed
    from hocket.scheduler.prices.job_bills import Bills as PaidBills
    from hocket.scheduler.prices.market import PriceKey

Estimate = Annotated[
    int | None,
    typer.Option(
        "--estimate",
        min=0,
        metavar="PAIRS",
        help="Estimate throughputs of colocated jobs from this many measured pairs per job kind, refined while jobs run.",
    ),
]
References = Annotated[
    int | None, typer.Option(min=1, help="With --estimate: job kinds with known colocated throughputs; default 13.")
]
Prices = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        help="Folder of price series (docs/explanation/prices.md) for worker types with an `offer`; spot workers come and go.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="With --prices: start of the workload, such as 2020-03-01T12:00; default: when all offers have a price.",
    ),
]
Bills = Annotated[Path | None, typer.Option("--bills", help="Write the cost of each job, lease by lease (JSON).")]

Checkpoint = Annotated[
    float, typer.Option("--checkpoint-gb", min=0, help="With --bills: checkpoint size in GB that moves with a job.")
]


class World(NamedTuple):
    """Worker types at the start of the workload, and later events.

    Attributes:
        types: worker types; with a price folder, at the prices of the start.
        given: (seconds after `begin_s`, event): spot workers that come and go, and price changes.
        begin_s: start of the workload, in seconds since 1970; None without a price folder.
        places: cloud offer of each worker type that names one, by name of the type.
        known_s: time of the last known price, in seconds since 1970; infinite without a price folder.
    """

    types: "tuple[WorkerType, ...]"
    given: "tuple[Timed, ...]"
    begin_s: float | None
    places: "dict[str, PriceKey]"
    known_s: float = inf


def estimating_of(pairs: int | None, references: int | None, seed: int) -> "Estimating | None":
    """Return the settings of the throughput estimator; None for no estimates.

    Arguments:
        pairs: pairs of jobs measured for each new kind of job; None if all colocated throughputs are known.
        references: number of kinds of jobs with known colocated throughputs; None for the default.

    Raises:
        InputError: `references` is given for no estimates, at --references.
    """
    from dataclasses import replace

    from hocket.errors import InputError
    from hocket.scheduler.estimator.simulated_estimates import Estimating

    if pairs is None and references is not None:
        raise InputError("--references", f"{references}, without --estimate", "estimates", "Add --estimate PAIRS.")
    if pairs is None:
        return None
    found = Estimating(pairs=pairs, seed=seed)
    return found if references is None else replace(found, references=references)


def world_of(
    types: "Sequence[WorkerType]", place: str, folder: Path | None, begins: str | None, overhead_s: float
) -> World:
    """Read prices and events of worker types from a folder of cloud prices.

    Arguments:
        types: worker types of the simulation.
        place: file of the worker types, for error messages.
        folder: folder of price series and availability logs; None for constant prices and no events.
        begins: start of the workload as text; by default the first moment at which all offers have a price.
        overhead_s: seconds to checkpoint a job. A preemption notice of at least this length saves the work.

    Raises:
        InputError: an offer has no price at the start; no type names an offer; the folder lacks an offer; or `begins`
            is no date, or is given without a folder.
    """
    from hocket.cli.cluster.prices import moment_of, show_moment
    from hocket.errors import InputError
    from hocket.scheduler.prices.changes import comings, happenings, price_changes
    from hocket.scheduler.prices.market import priced
    from hocket.scheduler.prices.readers.public import read_availability, read_market
    from hocket.scheduler.simulation.workload import inside

    own = tuple(types)
    if folder is None:
        if begins is not None:
            expected = "prices, which are read from this moment on"
            raise InputError("--from", f"{begins!r}, without --prices", expected, "Add --prices FOLDER.")
        return World(own, (), None, {})
    market = read_market(folder)
    with inside(place):
        found = [(t, offer) for t in own if (offer := market.offer_of(t)) is not None]
    if not found:
        step = "Add an offer to the file of workers, such as `offer: aws/us-east-1a/p3.2xlarge, spot: true`."
        raise InputError("--prices", "no worker type with an `offer`", "at least one", step)
    series = [(offer.key, s) for t, offer in found if (s := offer.spot if t.spot else offer.on_demand) is not None]
    first_s = max(s.times_s[0] for _, s in series)
    if begins is None:
        moments = sorted({first_s, *(when for _, s in series for when in s.times_s if when > first_s)})
        begin_s = next((when for when in moments if not any(isnan(s.at(when)) for _, s in series)), nan)
        if isnan(begin_s):
            raise InputError(str(folder), "no moment with a price for every offer", "at least one")
    else:
        begin_s = moment_of(begins, "--from")
        if begin_s < first_s:
            raise InputError("--from", repr(begins), f"{show_moment(first_s)} or later, when all offers have a price")
        gone = next((key for key, s in series if isnan(s.at(begin_s))), None)
        if gone is not None:
            raise InputError("--from", repr(begins), f"a moment at which {gone} is on sale")
    logs = [one for _, log in read_availability(folder) for one in log]
    changes = price_changes(own, market, begin_s, inf)
    moves = comings(own, logs, begin_s, inf, overhead_s, market)
    places = {t.name: offer.key for t, offer in found}
    return World(priced(own, market, begin_s), happenings(changes, moves), begin_s, places, market.last_s)


def check_checkpoint(places: "dict[str, PriceKey]", checkpoint_gb: float, bills: Path | None) -> None:
    """Check that transfers of checkpoints between clouds can be billed.

    Transfers need --bills, cloud offers (--prices) and a transfer tariff of each cloud. The check runs before the
    simulation, which may take minutes.

    Arguments:
        places: cloud offers by name of the worker type.
        checkpoint_gb: size of a job's checkpoint in GB; 0 passes the check.
        bills: file to write bills to; None for none.

    Raises:
        InputError: at --checkpoint-gb.
    """
    from hocket.errors import InputError
    from hocket.scheduler.prices.egress import TARIFFS

    if checkpoint_gb and bills is None:
        found = f"{checkpoint_gb:g}, without --bills"
        raise InputError("--checkpoint-gb", found, "bills, which give the price of a transfer", "Add --bills FILE.")
    if checkpoint_gb and not places:
        found = f"{checkpoint_gb:g}, and no worker type with the price of a cloud"
        raise InputError("--checkpoint-gb", found, "offers of clouds, between which a transfer costs", "Add --prices.")
    unknown = next((place.cloud for place in places.values() if place.cloud not in TARIFFS), None)
    if checkpoint_gb and unknown is not None:
        found = f"{checkpoint_gb:g}, and workers in {unknown}, which has no tariff"
        raise InputError("--checkpoint-gb", found, f"0, or offers of {', '.join(TARIFFS)}")


def write_bills(path: Path, bills: "PaidBills") -> None:
    """Write the cost of each job, lease by lease, as JSON."""
    import json

    from hocket.util.files import write_atomic
    from hocket.util.schema import as_data

    write_atomic(path, json.dumps(as_data(bills), indent=1) + "\n")
