"""Commands that may catch a mutant, with the nearest tests first. Standard library only."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import bootstrap
from mutants import CAUGHT, ESCAPED, HUNG

BIN = Path(sys.executable).parent
MOST_BYTES = 16 << 30
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Step:
    """A command that may catch a mutant."""

    name: str
    command: tuple[str, ...]


def mirrors(path: str, top: Path) -> Iterator[str]:
    """Existing tests of a file, of its sub-rooms from the nearest on, and of its room."""
    parts = path.split("/")[1:]
    own = Path("tests", *parts[:-1], f"test_{parts[-1]}")
    for place in (own, *(Path("tests", *parts[:k]) for k in range(len(parts) - 1, 0, -1))):
        if (top / place).exists():
            yield place.as_posix()


def steps(path: str, top: Path, selection: str, near: bool = False, ran: Sequence[str] = ()) -> Iterator[Step]:
    """Yield the commands of a selection of tests, with the nearest to a file first.

    Arguments:
        near: True to leave out tests of other rooms.
        ran: tests that ran the mutant's line, if known; they run before all others.
    """
    fast = ("--fast",) if selection == "fast" else ()
    beside = bootstrap.side_by_side()
    if ran:
        yield Step(f"{selection}: tests that ran it", (*PYTEST, *fast, *ran))
    for place in mirrors(path, top):
        spread = beside if not place.endswith(".py") else ()
        yield Step(f"{selection}: {place}", (*PYTEST, *fast, *spread, place))
    for name, command in () if near else bootstrap.tests([f"--{selection}"] if selection == "all" else []):
        yield Step(f"{selection}: {name}", (*PYTEST, *(word for word in command[1:] if word != bootstrap.SLOWEST)))
    yield from checks(path)


def checks(path: str) -> tuple[Step, Step]:
    """Linter of a path, and type checker of the package."""
    return Step("lint", (str(BIN / "ruff"), "check", "--no-cache", path)), Step("types", (str(BIN / "mypy"),))


def collected(top: Path, selection: str) -> frozenset[str]:
    """Names of the tests of a selection, without any mutation."""
    fast = ("--fast",) if selection == "fast" else ()
    command = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *fast)
    environment = os.environ | {"PYTHONPATH": str(top)}
    output = subprocess.run(command, cwd=top, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return frozenset(line for line in output.splitlines() if "::" in line)


def _limited() -> None:
    """Limit the memory of a command: a mutation can cause an endless loop that fills it."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def run(step: Step, top: Path, limit_s: float) -> str:
    """Run a command: a failure catches the mutant. After the time limit, the command is killed with all its processes.

    Returns:
        CAUGHT, ESCAPED or HUNG.
    """
    # Compiled files, also of tests, are reused for the next mutant.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    compiled = top.parent / "compiled"
    environment |= {"PYTHONPATH": str(top), "PYTHONPYCACHEPREFIX": str(compiled), "NUMBA_CACHE_DIR": str(compiled)}
    process = subprocess.Popen(
        step.command,
        cwd=top,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_limited,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return HUNG
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return ESCAPED if code in (0, bootstrap.NO_TESTS) else CAUGHT
