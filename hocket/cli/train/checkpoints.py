"""`hocket checkpoints`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output.options import Json

if TYPE_CHECKING:
    from hocket.runtime.checkpoint.listing import ListedCheckpoint

_UNKNOWN = "-"


def checkpoints(
    folder: Annotated[Path, typer.Argument(help="Folder of a run's checkpoints, from `hocket train --checkpoint`.")],
    json: Json = False,
) -> None:
    """List the checkpoints of a run, newest last, and verify their checksums.

    Checkpoints that a resumed run set aside as damaged are listed, too. Nothing is changed.

    Example: hocket checkpoints saved
    """
    from hocket.cli.output.tables import print_json
    from hocket.runtime.checkpoint.listing import list_checkpoints
    from hocket.util.schema import as_data

    found = list_checkpoints(folder)
    if json:
        print_json({"folder": str(folder), "checkpoints": [as_data(one) for one in found]})
    else:
        _print(folder, found)


def _print(folder: Path, found: "list[ListedCheckpoint]") -> None:
    from hocket.cli.output.table import CHOSEN, in_bytes, print_table
    from hocket.printable import say

    byte, sizes = in_bytes([one.size_bytes for one in found])
    rows = [
        [
            one.name + (CHOSEN if one.resumes else ""),
            f"{one.step:,}",
            *_trained(one),
            _date(one.written_s),
            size,
            f"{one.state}, best" if one.best else one.state,
        ]
        for one, size in zip(found, sizes, strict=True)
    ]
    columns = ["checkpoint", "step", "samples", "strategy", "updates", "stages", "plan", "written", f"size ({byte})"]
    print_table(
        f"checkpoints in {folder}, newest last", [*columns, "state"], rows, right=(1, 2, 5, 8), drop=(6, 5, 4, 3, 1)
    )
    if any(one.resumes for one in found):
        say(f"  {CHOSEN.strip()}: `hocket train --resume` continues from it")
    for one in found:
        if one.best and one.position is not None:
            say(f"  best: the lowest eval loss, {one.position.eval_loss:.4f}")
        if one.problem:
            say(f"  {one.name}: {one.problem}")


def _trained(one: "ListedCheckpoint") -> list[str]:
    """Format samples, strategy, update rule, stages and digest of the plan, as far as the manifest has them."""
    if one.position is None:
        return [_UNKNOWN] * 5
    stages = str(len(one.position.weight_versions)) if one.position.weight_versions else _UNKNOWN
    plan = one.position.plan_digest[:8] or _UNKNOWN
    strategy, rule = one.position.strategy or _UNKNOWN, one.position.rule or _UNKNOWN
    return [f"{one.position.samples:,}", strategy, rule, stages, plan]


def _date(written_s: float | None) -> str:
    return _UNKNOWN if written_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(written_s))
