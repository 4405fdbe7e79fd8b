"""What commands say of odd values of each of their options, equal to what is kept in odd/.

The commands themselves say which options they have. After a change that is meant, write the files again with --update-golden,
and read the difference.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from hocket.cli import main
from hocket.cli.app import app
from tests.cli.outputs.helpers.lab import KEPT, lab
from tests.cli.outputs.test_cluster_outputs import FILES, WORKERS
from tests.kept import TOOK, check
from tests.paths import EXAMPLES

SNAPSHOT = str(EXAMPLES / "snapshots" / "three-jobs.json")
PLAN = ("plan", "profile.json", "cluster.yaml", "-B", "8", "-s", "data_parallel")
# Each command with arguments that are valid.
COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": PLAN,
    "what_if": ("what-if", "plan.yaml"),
    "scaling": ("scaling", "profile.json", "cluster.yaml", str(EXAMPLES / "curves" / "images.yaml")),
    "show": ("show", "plan.yaml"),
    "simulate": ("simulate", "plan.yaml"),
    "profile": ("profile", "none.py"),
    "train": ("train", "none.py"),
    "solve": ("cluster", "solve", SNAPSHOT, "-p", "fifo"),
    "cluster_simulate": ("cluster", "simulate", *FILES, "-p", "fifo"),
    "generate": ("cluster", "generate", "continuous-single", "--jobs", "3", "--rate", "10", "-o", "made.json"),
    "sweep": ("cluster", "sweep", "workers.yaml", "-p", "fifo", "--rates", "10", "--jobs", "3"),
}
LEFT_OUT = ("help", "output", "report", "json", "progress")


def odd(option: Any) -> tuple[str, ...]:
    """Odd values of an option, by its type."""
    if option.is_flag:
        return ()
    kind = str(option.type_descriptor.annotation)
    if "int" in kind:
        return ("-1", "0")
    if "float" in kind:
        return ("-1", "0", "nan")
    return ("", "other", "-1")


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The exit code, and the last words of a command; files lie where they lie today only."""
    code = main(words)
    found = capsys.readouterr()
    text = found.err if code else found.out
    lines = [" ".join(re.sub(r"[│╭╮╰╯─]", "", TOOK.sub("SECONDS", line)).split()) for line in text.splitlines()]
    told = " ".join(line for line in lines if line)
    return f"{code} {told[-300:] if code else told[:160]}".replace(str(EXAMPLES), "EXAMPLES").replace(
        str(Path.cwd()), "HERE"
    )


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.thinned(most=4)
def test_odd_values(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update_golden: bool
) -> None:
    """Each option with a value that is at the edge of what is valid, or of another kind."""
    lab(tmp_path, monkeypatch)
    Path("workers.yaml").write_text(WORKERS)
    assert main([*PLAN, "-o", "plan.yaml"]) == 0
    words, command = COMMANDS[name], get_command(app)
    for word in words[: 2 if words[0] == "cluster" else 1]:
        command = command.commands[word]  # type: ignore[attr-defined]
    capsys.readouterr()
    lines = []
    for option in command.params:
        if option.param_type_name != "option" or option.name in LEFT_OUT:
            continue
        for value in odd(option):
            flag = max(option.opts, key=len)
            lines.append(f"{flag} {value!r}: {said([*words, flag, value], capsys)}")
    check(KEPT / f"odd/{name}.txt", "\n".join(lines) + "\n", update_golden)
