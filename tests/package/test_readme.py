"""README.md and the files around it say what is so."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
README = (TOP / "README.md").read_text()
BLOCKS = "".join(re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S))
CONSTRAINTS = dict(
    line.split("==") for line in (TOP / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
)


def test_continuous_integration_runs_the_command_of_the_readme() -> None:
    """One command for the demo and one for the tests, and `.ci/run` calls the second."""
    commands = [line for line in BLOCKS.splitlines() if line.startswith("python3 ")]
    assert commands == ["python3 tools/bootstrap.py demo", "python3 tools/bootstrap.py test"]
    assert commands[1] in (TOP / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(TOP).as_posix() for path in [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")])
)
def test_links_lead_somewhere(page: str) -> None:
    """Every link of a page to a file of the repository has that file at its end."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (TOP / page).read_text())
    assert [link for link in links if not ((TOP / page).parent / link).exists()] == []


def test_commands_of_the_readme_exist() -> None:
    """Every command that the README shows is one that `hocket --help` lists."""
    shown = set(re.findall(r"^hocket ([\w-]+)", BLOCKS, re.M))
    assert {"profile", "plan", "check", "simulate", "train"} <= shown
    help_text = subprocess.run(
        [sys.executable, "-m", "hocket", "--help"], capture_output=True, text=True, check=True, cwd=TOP
    ).stdout
    assert [command for command in sorted(shown) if not re.search(rf"^\W*{command}\s", help_text, re.M)] == []


def test_every_dependency_is_constrained() -> None:
    """Each dependency of pyproject.toml, of every extra, has one exact version in constraints.txt, that is new enough."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    known = {name.lower().replace("_", "-"): version for name, version in CONSTRAINTS.items()}
    for requirement in wanted:
        name, least = requirement.split(">=")
        have = known[name.lower()]
        assert [int(part) for part in have.split(".")[:2]] >= [int(part) for part in least.split(".")], requirement
    assert known["torch"] == "2.13.0"


def test_the_bootstrap_script_explains_itself() -> None:
    """Without a word, or with a wrong one, it says how to call it, changes nothing and exits with 2."""
    for words in ([], ["tset"]):
        done = subprocess.run(
            [sys.executable, "tools/bootstrap.py", *words], capture_output=True, text=True, check=False, cwd=TOP
        )
        assert done.returncode == 2
        assert "python3 tools/bootstrap.py demo" in done.stdout
