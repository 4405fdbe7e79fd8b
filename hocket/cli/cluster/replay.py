"""Scheduler journals: writing during a simulation, and `hocket cluster replay`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output.options import Json
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.scheduler.core.core import Core
    from hocket.scheduler.core.events import Event


@contextmanager
def recorded(core: "Core", path: Path | None, policy: str) -> "Iterator[Callable[[Event, float], None] | None]":
    """Yield the function that writes an event and its time in seconds to the journal; None without a journal.

    Arguments:
        core: the simulation's core, before any event.
        path: journal file, or None. A refused simulation leaves no journal. An interrupted simulation leaves a journal
            of the events until then.
        policy: spelling of the policy, for the journal.

    Raises:
        InputError: the journal exists already, or cannot be written.
    """
    from hocket.errors import InputError
    from hocket.scheduler.journal.core_setup import Setup
    from hocket.scheduler.journal.journal import Journal

    if path is None:
        yield None
        return
    with Journal.beside(path, Setup.of(core, policy), core) as journal:
        try:
            yield journal.record
        except InputError:
            path.unlink(missing_ok=True)
            raise


def replay(
    journal: Annotated[Path, typer.Argument(help="A journal, such as `hocket cluster simulate --journal` writes.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of leases to show.")] = 12,
    json: Json = False,
) -> None:
    """Show the scheduler's state at the end of a journal, by replaying its events.

    Example: hocket cluster replay journal.log
    """
    from hocket.cli.cluster.policy_options import policy_of
    from hocket.cli.output.table import print_table
    from hocket.cli.output.tables import print_json
    from hocket.errors import InputError
    from hocket.scheduler.journal.core_state import state_of
    from hocket.scheduler.journal.journal import read

    found = read(journal)
    try:
        policy = policy_of(found.setup.policy, seed=found.setup.settings.seed)
    except InputError as error:  # the journal names an unknown policy
        step = error.next_step or "Replay the journal with the version of Hocket that wrote it."
        raise InputError(f"{journal}, line 1: setup.policy", error.found, error.expected, step) from None
    core = found.replay(policy.allocate)
    if json:
        told = {"policy": found.setup.policy, "events": len(found.events), "torn_bytes": found.torn_bytes}
        print_json({**told, "state": state_of(core)})
        return
    figures = [len(found.events), f"{core.now_s / 3600:.2f}", core.rounds, len(core.jobs), len(core.leases)]
    columns = ["events", "until (h)", "rounds", "jobs left", "leases"]
    print_table(f"{journal.name}: {found.setup.policy}", columns, [[str(x) for x in figures]], right=range(5))
    names = [kind.name for kind in found.setup.types]
    shown = [
        [
            ", ".join(lease.jobs),
            names[found.setup.columns[lease.column].type],
            str(len(lease.workers)),
            f"{lease.began_s / 3600:.2f}",
        ]
        for lease in core.leases[:rows]
    ]
    if shown:
        print_table("leases", ["jobs", "on", "workers", "since (h)"], shown, right=(2, 3))
    if len(core.leases) > rows:
        print(f"  and {len(core.leases) - rows} more; --rows shows them, --json has all")
    if found.torn_bytes:
        place = f"{journal}, line {len(found.events) + 2}"
        say(f"  note: {place}: the record is cut off after {found.torn_bytes} bytes; it was left out")
