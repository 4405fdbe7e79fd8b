"""Shared options of `hocket cluster`, and errors that name them.

The options select policies and throughput tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hocket.cli.output.options import BILLS_FILE, REPORT_FILE, WORKLOAD_FILE

if TYPE_CHECKING:
    from hocket.scheduler.core.core import Policy as Allocating
    from hocket.scheduler.model.throughputs import ThroughputTable
    from hocket.scheduler.model.worker_types import WorkerType
    from hocket.scheduler.simulation.simulator_options import SimulatorOptions

Policy = Annotated[
    str, typer.Option("--policy", "-p", help="NAME of `hocket cluster policies`, or NAME:agnostic and the like.")
]
Agnostic = Annotated[bool, typer.Option("--agnostic", help="Heterogeneity-agnostic: treat all worker types as equal.")]
Sharing = Annotated[bool, typer.Option("--space-sharing", help="Allow space sharing: two jobs on the same workers.")]
Published = Annotated[
    bool,
    typer.Option("--as-published", help="Follow Gavel's public simulator where the dissertation leaves a choice open."),
]
Budget = Annotated[float | None, typer.Option("--budget-usd", help="Budget in dollars, for policies with one.")]
Table = Annotated[
    Path | None,
    typer.Option(
        "--throughputs",
        help="Throughput table (JSON, see docs/reference/scheduler-files.md); default: V100, P100 and K80.",
    ),
]
Times = Annotated[
    bool, typer.Option("--times", help="Report solver and wall times, too; all other output is deterministic.")
]

# Command-line option for each place that an error of the scheduler names. The scheduler knows no options.
_OPTIONS = {
    "policy": "--policy",
    "budget_usd": "--budget-usd",
    "throughputs": "--throughputs",
    "per_hour": "--rate",
    "count": "--jobs",
    "settings: round_s": "--round",
    "settings: checkpoint_s and restart_s": "--overhead-s",
    "options: estimating": "--estimate",
}
_BUDGETED = "makespan_budget"
_KINDS = {"--report": REPORT_FILE, "--output": WORKLOAD_FILE, "--bills": BILLS_FILE}
_OF_COST = ("min_cost", "min_cost_slo")
# Names that papers and other schedulers use for these policies.
_CALLED = {
    "las": "max_min_fairness",
    "tiresias": "max_min_fairness",
    "themis": "finish_time_fairness",
    "ftf": "finish_time_fairness",
    "sjf": "shortest_job_first",
    "srtf": "shortest_job_first",
    "drf": "isolated",
}
_WAYS = ("agnostic", "space-sharing", "as-published")  # suffixes of a policy's name


class PolicyChoice(NamedTuple):
    """A scheduling policy with its simulation options.

    Attributes:
        shown: name in tables, such as "fifo (agnostic)".
        spelt: spelling on the command line, such as "fifo:agnostic".
        allocate: function from a snapshot to an allocation.
        options: simulation options.
    """

    shown: str
    spelt: str
    allocate: "Allocating"
    options: "SimulatorOptions"


def policy_of(text: str, agnostic: bool = False, as_published: bool = False, seed: int = 0) -> PolicyChoice:
    """Create a policy from its spelling on the command line.

    Arguments:
        text: NAME, or NAME with suffixes, such as NAME:agnostic.
        agnostic: True to treat all worker types as equal, as the suffix does.
        as_published: True to follow Gavel's public simulator, as the suffix does.

    Raises:
        InputError: an unknown policy or suffix, at --policy.
    """
    from dataclasses import replace

    from hocket.errors import InputError
    from hocket.scheduler.core.policy_by_name import as_published as published
    from hocket.scheduler.core.policy_by_name import policy_named
    from hocket.scheduler.simulation.simulator_options import SimulatorOptions

    name, *told = text.split(":")
    if name.lower() in _CALLED:
        raise InputError("--policy", repr(name), "a name of `hocket cluster policies`", f"Use {_CALLED[name.lower()]}.")
    if not set(told) <= set(_WAYS):
        raise InputError("--policy", repr(text), f"NAME, or NAME:agnostic; other suffixes: {', '.join(_WAYS[1:])}")
    given = {*told, *(["agnostic"] if agnostic else []), *(["as-published"] if as_published else [])}
    blind = "agnostic" in given
    with by_options():
        if "as-published" in given:
            allocate, options = published(name, blind, seed)
        else:
            allocate, options = policy_named(name, blind), SimulatorOptions()
    ways = [way for way in _WAYS if way in given]
    shown = f"{name} ({', '.join(way.replace('-', ' ') for way in ways)})" if ways else name
    options = replace(options, space_sharing="space-sharing" in given)
    return PolicyChoice(shown, ":".join([name, *ways]), allocate, options)


def check_sharing(policy: PolicyChoice, option: bool) -> None:
    """Refuse space sharing for a policy that never lets jobs share workers.

    These are all agnostic policies and some others. Their runs would not differ from runs without space sharing.

    Arguments:
        option: True if --space-sharing is given, False if only the policy's suffix may ask for space sharing.

    Raises:
        InputError: at the option, or at --policy for the suffix.
    """
    from hocket.errors import InputError
    from hocket.util.registry import load

    name, *ways = policy.spelt.split(":")
    asked = option or "space-sharing" in ways
    if asked and ("agnostic" in ways or not load("hocket.scheduler.policies", name, "policy").SHARES):
        shown = f"{name}:agnostic" if "agnostic" in ways else name
        place = "--space-sharing" if option else "--policy"
        step = "Give NAME:space-sharing to the policies that do." if option else "Leave the suffix out."
        raise InputError(place, f"{shown}, which never lets jobs share workers", "a policy that does", step)


def check_table(table: "ThroughputTable", types: "Sequence[WorkerType]", shares: bool, spread: bool = False) -> None:
    """Refuse space sharing or spread placements that the throughput table does not have for the workers.

    Arguments:
        shares: True if a policy lets jobs share workers.
        spread: True if jobs may span servers.

    Raises:
        InputError: at --space-sharing or --spread.
    """
    from hocket.errors import InputError
    from hocket.scheduler.model.worker_types import ClusterSpec

    columns = table.columns(types, spread)
    if shares and not table.beside[:, :, table.places_of(ClusterSpec(tuple(types), columns))].any():
        found = "a throughput table without pairs of jobs on these workers"
        expected = "a table with the throughputs of two jobs that share workers"
        raise InputError("--space-sharing", found, expected, "Add `pairs` to the table, or leave out --space-sharing.")
    if spread and len(columns) == len(types):
        found = "a throughput table without spread places of these workers"
        expected = "a table with the throughputs of jobs on workers of several servers"
        raise InputError("--spread", found, expected, "Add such `places` to the table, or leave out --spread.")


def check_budget(policies: list[str], budget_usd: float | None) -> None:
    """Refuse a budget that no policy uses, and a budget policy without a budget.

    Arguments:
        policies: as the command line spells them.

    Raises:
        InputError: at --budget-usd; also for a budget that is out of bounds.
    """
    from hocket.errors import InputError

    wants = any(text.partition(":")[0] == _BUDGETED for text in policies)
    if wants and budget_usd is None:
        step = "Give --budget-usd, or use makespan, which needs no budget."
        raise InputError("--budget-usd", "nothing", f"a budget in dollars for {_BUDGETED}", step)
    if budget_usd is not None and not wants:
        raise InputError("--budget-usd", f"{budget_usd:g}", f"no budget, or --policy {_BUDGETED}")
    if budget_usd is not None:
        within("--budget-usd", budget_usd, 0.0, 1e15, "dollars")


def check_prices(policy: str, types: "Sequence[WorkerType]") -> None:
    """Refuse worker types without a price if the policy uses prices.

    A missing price would count as 0. During a run a price may become 0; such workers are used first
    (docs/explanation/prices.md).

    Arguments:
        policy: as the command line spells it.

    Raises:
        InputError: at the first type without a price.
    """
    from hocket.errors import InputError

    for own in types if policy.partition(":")[0] in _OF_COST else ():
        if own.workers and not own.price_usd_per_hour:
            place, step = f"worker type {own.name}: price_usd_per_hour", "Add prices: this policy minimizes cost."
            raise InputError(place, str(own.price_usd_per_hour), "dollars an hour, > 0", step)


def check_once(option: str, values: Sequence[str], what: str) -> None:
    """Refuse a value that is given twice.

    Arguments:
        what: noun for a value, such as "policy".

    Raises:
        InputError: at the option.
    """
    from hocket.errors import InputError

    twice = next((value for k, value in enumerate(values) if value in values[:k]), None)
    if twice is not None:
        raise InputError(option, f"{twice!r} twice", f"each {what} once")


def within(option: str, value: float, least: float, most: float, unit: str) -> None:
    """Refuse an option's value that is nan, below `least` or above `most`.

    Raises:
        InputError: at the option.
    """
    from hocket.errors import InputError

    if not least <= value <= most:
        raise InputError(option, str(value), f"{unit}, from {least} to {most}")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Sequence[Path | None]) -> None:
    """Refuse output paths that cannot be written safely, before anything is computed.

    An output must be writable. It must not be the file of another option, and must not replace a file of another kind.

    Arguments:
        outputs: path by option, such as "--report"; None if the option was not given.
        inputs: files that the command reads.

    Raises:
        InputError: at the option, or at the file.
    """
    from hocket.errors import InputError
    from hocket.util.files import check_replaced, place_to_write

    taken = {path.resolve() for path in inputs if path}
    for option, path in outputs.items():
        target = place_to_write(path) if path else None
        if target in taken:
            raise InputError(option, str(path), "a different file", "Another option reads or writes this file.")
        if target:
            taken.add(target)
        if path and option in _KINDS:
            check_replaced(path, *_KINDS[option])


@contextmanager
def by_options(place: str = "", workers: str = "", policy: str = "") -> Iterator[None]:
    """Rewrite InputErrors of the with-block, so that they name the option or the file.

    Arguments:
        place: file to name in errors about anything but an option; empty to name none.
        workers: file to name in errors about worker types, if `place` is empty.
        policy: policy to name in errors of a simulation.
    """
    from hocket.errors import InputError

    try:
        yield
    except InputError as error:
        place = place or (workers if error.place.startswith("worker type ") else "")
        if error.place == "simulation" and policy:
            raise InputError(f"simulation of {policy}", error.found, error.expected, error.next_step) from None
        if error.place not in _OPTIONS and place:
            raise InputError(f"{place}: {error.place}", error.found, error.expected, error.next_step) from None
        if error.place not in _OPTIONS:
            raise
        raise InputError(_OPTIONS[error.place], error.found, error.expected, error.next_step) from None
