"""Scheduler journals: writing during a simulation, and `hocket cluster replay`."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output.options import Json
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.scheduler.core.core import Core
    from hocket.scheduler.core.events import Event


@contextmanager
def watching(
    core: "Core", path: Path | None, policy: str, tell: Callable[[int], None] | None, counted: Collection[str]
) -> "Iterator[Callable[[Event, float], None] | None]":
    """Yield an observer that writes the journal and reports finished jobs.

    The observer is called with each event and its time in seconds. None is yielded without `path` and `tell`.

    Arguments:
        core: the simulation's core, before any event.
        path: journal file, or None. A refused simulation leaves no journal. An interrupted simulation leaves a journal
            of the events until then.
        policy: spelling of the policy, for the journal.
        tell: callback with the number of counted jobs that are finished, or None.
        counted: ids of the jobs that count (--first, --last).

    Raises:
        InputError: the journal exists already, or cannot be written.
    """
    from hocket.errors import InputError
    from hocket.scheduler.core.events import JobFinished
    from hocket.scheduler.journal.core_setup import Setup
    from hocket.scheduler.journal.journal import Journal

    finished = 0

    def told(event: "Event", now_s: float) -> None:
        nonlocal finished
        if journal:
            journal.record(event, now_s)
        if tell and isinstance(event, JobFinished) and event.job in counted:
            finished += 1
            tell(finished)

    with Journal.beside(path, Setup.of(core, policy), core) if path else nullcontext() as journal:
        try:
            yield told if path or tell else None
        except InputError:
            if path:
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
        raise InputError(f"{journal}, line 1: setup.policy", error.found, error.expected, error.next_step) from None
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
