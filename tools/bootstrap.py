"""From a bare Python 3.11 to a running Hocket. Standard library only.

    python3 tools/bootstrap.py demo      make the environment, run the demo
    python3 tools/bootstrap.py test      make the environment, run every check
    python3 tools/bootstrap.py env       only make the environment

The environment is .venv beside this folder. It is made once and kept while pyproject.toml and constraints.txt stay
as they are. What follows the word is handed on: `python3 tools/bootstrap.py test -k cluster`.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
STAMP = VENV / "made-from.sha256"

CHECKS = (
    ("format", ("ruff", "format", "--check", ".")),
    ("lint", ("ruff", "check", ".")),
    ("types", ("mypy",)),
)
NO_TESTS = 5
"""pytest's exit code where what was asked for selects none: one of the two runs may be empty, not both."""


def wanted() -> str:
    """The digest of everything that decides what is installed."""
    text = hashlib.sha256(sys.version.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        text.update((ROOT / name).read_bytes())
    return text.hexdigest()


def call(command: Sequence[str | Path], what: str) -> None:
    """Run one step of the installation; leave with its own message when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(
            f"{what} failed (exit code {done.returncode}): see the lines above; nothing outside {VENV} was changed."
        )


def make_environment() -> None:
    """Make .venv, or keep it when it was made from the same files."""
    if STAMP.exists() and STAMP.read_text() == wanted():
        return
    print(f"Making the environment in {VENV} (some minutes, once).", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    if importlib.util.find_spec("ensurepip"):
        call([sys.executable, "-m", "venv", VENV], "Making the environment")
        pip: list[str | Path] = [BIN / "python", "-m", "pip"]
    elif importlib.util.find_spec("pip"):
        call([sys.executable, "-m", "venv", "--without-pip", VENV], "Making the environment")
        pip = [sys.executable, "-m", "pip", "--python", BIN / "python"]
    else:
        sys.exit(
            "This Python has neither ensurepip nor pip. Some systems pack them apart: "
            f"install python{sys.version_info.major}.{sys.version_info.minor}-venv, then run this again."
        )
    call([*pip, "install", "--quiet", "-c", "constraints.txt", "-e", ".[test,hf]"], "Installing")
    STAMP.write_text(wanted())


def tests(arguments: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Two runs: tests without workers on all cores, then tests with worker processes, two files at a time.

    A selection by marks (`-m`) is one plain run.
    """
    if any(word.startswith("-m") for word in arguments):
        return [("tests", ("pytest", *arguments))]
    # A test process loads torch: more of them than this gain less than they take.
    beside = min(os.cpu_count() or 1, 8)
    side_by_side = ("-n", str(beside), "--dist", "worksteal") if beside > 1 else ()
    # Workers wait for each other much of the time: two tests of theirs on two cores take less than one after the other.
    two_files = ("-n", "2", "--dist", "loadfile") if beside > 1 else ()
    return [
        ("tests", ("pytest", "-m", "not workers", *side_by_side, *arguments)),
        ("tests with workers", ("pytest", "-m", "workers", *two_files, *arguments)),
    ]


def kept() -> dict[str, str]:
    """The environment of the checks: what is compiled is kept beside what is installed, also where a person wants none among the
    sources. They start hundreds of processes."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return own | {"PYTHONPYCACHEPREFIX": str(VENV / "compiled")}


def run_checks(arguments: Sequence[str]) -> int:
    """Formatter, linter, types, tests: all of them, so that one run shows everything. Returns the exit code."""
    failed, empty = [], []
    steps = tests(arguments)
    for name, command in (*CHECKS, *steps):
        start_s = time.monotonic()
        print(f"== {name}: {' '.join(command)}", flush=True)
        code = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, env=kept(), check=False).returncode
        if code == NO_TESTS and command[0] == "pytest":
            empty.append(name)
            code = 0 if len(empty) < len(steps) else code
        print(f"== {name}: {'ok' if code == 0 else 'FAILED'} in {time.monotonic() - start_s:.0f} s", flush=True)
        if code:
            failed.append(name)
    print(f"Failed: {', '.join(failed)}." if failed else "All checks passed.", flush=True)
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    """What the first word says. Returns the exit code."""
    if not arguments or arguments[0] not in ("demo", "test", "env"):
        print(__doc__)
        return 2
    if sys.version_info < (3, 11):  # noqa: UP036 - this is where an older Python is told
        print(f"Hocket needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
        return 2
    make_environment()
    if arguments[0] == "demo":
        return subprocess.run([str(BIN / "hocket"), "demo", *arguments[1:]], cwd=ROOT, check=False).returncode
    return run_checks(arguments[1:]) if arguments[0] == "test" else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # what runs has heard of it as well, and says so
        sys.exit(130)
