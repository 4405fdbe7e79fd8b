"""Former names of commands and options."""

import pytest
import typer

from hocket.cli.app import app
from hocket.cli.renamed import COMMANDS, OPTIONS, current
from tests.cli.conftest import Run


@pytest.mark.parametrize("former", COMMANDS)
def test_a_former_command_works_with_a_note(run: Run, former: str) -> None:
    """A former command works, with a note that names both commands.

    Its help is the new command's help. The list of commands has only the new command.
    """
    found = run(former, "--help")
    assert found.code == 0
    assert f"hocket {COMMANDS[former]}" in found.out
    assert f"hocket {former} is called hocket {COMMANDS[former]} now" in found.err
    listed = [line.split()[0] for line in run("--help").out.splitlines() if line.startswith("  ") and line.split()]
    assert COMMANDS[former] in listed
    assert former not in listed


@pytest.mark.parametrize(("command", "former"), [(c, old) for c, names in OPTIONS.items() for old in names])
def test_a_former_option_becomes_one_that_the_command_has(
    command: str, former: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A former option becomes the new option of the command.

    The former name is no option. A value after an equals sign is kept.
    """
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    there = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    new = OPTIONS[command][former]
    assert new in there
    assert former not in there
    assert current([command, former, "x", f"{former}=3"]) == [command, new, "x", f"{new}=3"]
    assert f"{former} is called {new} now" in capsys.readouterr().err


def test_other_words_stay(capsys: pytest.CaptureFixture[str]) -> None:
    """Other words stay unchanged, without a note.

    Cases: values, words after `--` and options of other commands.
    """
    for words in ([], ["plan", "waves"], ["simulate", "p.yaml", "--", "--largest"], ["train", "--anew"]):
        assert current(words) == words
    assert capsys.readouterr().err == ""
