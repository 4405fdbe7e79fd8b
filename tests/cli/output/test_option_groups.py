"""singly: groups of options."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from hocket.cli.output.option_groups import singly


@dataclass(frozen=True)
class Group:
    """Two options."""

    width: Annotated[int, typer.Option("--width", "-w", min=1)] = 3
    name: Annotated[str | None, typer.Option(help="Of it.")] = None


def test_a_group_is_asked_for_option_by_option() -> None:
    """A group of options appears as single options of the command.

    They keep the group's place and defaults. The command receives the group as one value.
    """
    told: list[tuple[str, Group, bool]] = []

    def command(
        what: Annotated[str, typer.Argument()], *, group: Group, quiet: Annotated[bool, typer.Option("--quiet")] = False
    ) -> None:
        """What it does."""
        told.append((what, group, quiet))

    app = typer.Typer(add_completion=False)
    app.command()(singly(command))
    made = get_command(app)
    assert made.help == "What it does."
    assert [option.name for option in made.params] == ["what", "width", "name", "quiet"]
    for words in (["x"], ["-w", "5", "x", "--quiet", "--name", "n"]):
        made.main(words, standalone_mode=False)
    assert told == [("x", Group(), False), ("x", Group(5, "n"), True)]
    with pytest.raises(Exception, match=r"greater than or equal to 1|x>=1"):
        made.main(["x", "--width", "0"], standalone_mode=False)
