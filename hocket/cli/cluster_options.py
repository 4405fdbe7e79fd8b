"""What several commands of `hocket cluster` ask for in one way: policies, throughput tables; and errors that name options."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from hocket.cluster.core import Policy as Allocating

Policy = Annotated[str, typer.Option("--policy", "-p", help="See `hocket cluster policies`.")]
Agnostic = Annotated[bool, typer.Option("--agnostic", help="As if all types of workers were alike.")]
Sharing = Annotated[bool, typer.Option("--space-sharing", help="Jobs may share workers, two at a time.")]
Budget = Annotated[float | None, typer.Option("--budget-usd", help="Dollars, for policies that keep within a budget.")]
Table = Annotated[
    Path | None, typer.Option("--throughputs", help="Throughput table; that of V100, P100 and K80 by default.")
]
Times = Annotated[
    bool, typer.Option("--times", help="Also say how long computing took; in all else two runs are identical.")
]

# Places of errors in rooms that know no options, and the options that they are about.
_OPTIONS = {
    "policy": "--policy",
    "budget_usd": "--budget-usd",
    "per_hour": "--rate",
    "count": "--jobs",
    "settings: round_s": "--round",
    "settings: checkpoint_s and restart_s": "--overhead-s",
    "options: estimating": "--estimate",
}
_BUDGETED = "makespan_budget"


class Chosen(NamedTuple):
    """A policy: as tables show it, as the command line and journals spell it, and what allocates."""

    shown: str
    spelt: str
    allocate: "Allocating"


def policy_of(text: str, agnostic: bool = False) -> Chosen:
    """The policy of NAME or NAME:agnostic.

    Raises:
        InputError: at --policy.
    """
    from hocket.cluster.named import policy_named
    from hocket.errors import InputError

    name, _, way = text.partition(":")
    if way not in ("", "agnostic"):
        raise InputError("--policy", repr(text), "NAME or NAME:agnostic")
    blind = agnostic or bool(way)
    with by_options():
        allocate = policy_named(name, blind)
    return Chosen(f"{name} (agnostic)" if blind else name, f"{name}:agnostic" if blind else name, allocate)


def check_budget(policies: list[str], budget_usd: float | None) -> None:
    """Refuse a budget that nobody keeps within, and a policy of budgets without one.

    Raises:
        InputError: at --budget-usd.
    """
    from hocket.errors import InputError

    wants = any(text.partition(":")[0] == _BUDGETED for text in policies)
    if wants and budget_usd is None:
        step = "Without a budget, makespan is that policy."
        raise InputError("--budget-usd", "nothing", f"dollars, which {_BUDGETED} keeps within", step)
    if budget_usd is not None and not wants:
        raise InputError("--budget-usd", f"{budget_usd:g}", f"no budget, or the policy {_BUDGETED}")
    if budget_usd is not None:
        within("--budget-usd", budget_usd, 0.0, 1e15, "dollars")


def within(option: str, value: float, least: float, most: float, unit: str) -> None:
    """Refuse a number of an option that is nan or out of bounds.

    Raises:
        InputError: at the option.
    """
    from hocket.errors import InputError

    if not least <= value <= most:
        raise InputError(option, str(value), f"{unit}, from {least} to {most}")


def check_outputs(outputs: Mapping[str, Path | None], inputs: Sequence[Path | None]) -> None:
    """Refuse, before anything is computed, what cannot be written, and a file that is read or written for something else.

    Raises:
        InputError: at the option, or at the file.
    """
    from hocket.errors import InputError
    from hocket.files import place_to_write

    taken = {path.resolve() for path in inputs if path}
    for option, path in outputs.items():
        target = place_to_write(path) if path else None
        if target in taken:
            raise InputError(
                option, str(path), "a file of its own", "That file is read, or written for another option."
            )
        if target:
            taken.add(target)


@contextmanager
def by_options() -> Iterator[None]:
    """Whatever an option made wrong is told at the option."""
    from hocket.errors import InputError

    try:
        yield
    except InputError as error:
        if error.place not in _OPTIONS:
            raise
        raise InputError(_OPTIONS[error.place], error.found, error.expected, error.next_step) from None
