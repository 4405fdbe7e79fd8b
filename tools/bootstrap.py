"""Set up Hocket from a bare Python 3.11. Standard library only.

    python3 tools/bootstrap.py demo      create the environment, run the demo
    python3 tools/bootstrap.py test      create the environment; run formatter, linter, types and fast tests
    python3 tools/bootstrap.py test --all      the same with every test; prints which tests took longest
    python3 tools/bootstrap.py test --nightly  only properties, with new random examples; prints the seed
    python3 tools/bootstrap.py env       only create the environment

The environment is the folder .venv of this repository. It is created once, and reused until pyproject.toml or
constraints.txt changes. All other arguments are passed on to pytest:
`python3 tools/bootstrap.py test --all -k cluster`.
"""

import hashlib
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
COMPILED = VENV / "compiled" / "python"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
STAMP = VENV / "made-from.sha256"

CHECKS = (
    ("format", ("ruff", "format", "--check", ".")),
    ("lint", ("ruff", "check", ".")),
)
TYPES = ("types", ("mypy",))
SELECTIONS = ("--all", "--nightly")
SLOWEST = "--durations=30"
NO_TESTS = 5
"""pytest's exit code if no test is selected. One of the two runs may be empty, but not both."""
NICE = ("nice", "-n", "19") if shutil.which("nice") else ()
"""Command that starts another one with the least priority; empty where there is none."""
UNREAD = ("tests", "testing", "models", "mypy", "mypyc")
"""Names of folders of installed packages with many files that are rarely imported."""
_LOOK_S = 0.2


def wanted() -> str:
    """Digest of everything that determines the installed packages."""
    text = hashlib.sha256(sys.version.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        text.update((ROOT / name).read_bytes())
    return text.hexdigest()


def call(command: Sequence[str | Path], what: str) -> None:
    """Run one step of the installation; if it fails, exit with a message.

    Packages that it completes are compiled meanwhile: pip uses one core.
    """
    done: set[Path] = set()
    with subprocess.Popen([str(part) for part in command], cwd=ROOT) as process:
        while process.poll() is None:
            for packages in site_packages():
                done |= compile_complete(packages, BIN / "python", done)
            time.sleep(_LOOK_S)
    if process.returncode:
        sys.exit(
            f"{what} failed (exit code {process.returncode}): see the lines above; nothing outside {VENV} was changed."
        )


def make_environment() -> None:
    """Create .venv, or reuse it if it was made from the same files."""
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
    call([*pip, "install", "--quiet", "--no-compile", "-c", "constraints.txt", "-e", ".[test,hf,docs]"], "Installing")
    for packages in site_packages():
        compile_packages(packages, BIN / "python")
    link_compiled(VENV / "lib", COMPILED)
    STAMP.write_text(wanted())


def site_packages() -> list[Path]:
    """Folders of the environment's packages."""
    return [*VENV.glob("lib/python*/site-packages"), *VENV.glob("Lib/site-packages")]


def compile_packages(installed: Path, python: Path) -> None:
    """Compile all installed packages that are not compiled yet, on all cores."""
    files = {path: sum(1 for _ in path.rglob("*.py")) for path in installed.iterdir()}
    packages = sorted(files, key=lambda path: (-files[path], path.name))
    cores = os.cpu_count() or 1
    shares = [packages[core::cores] for core in range(cores)]
    for process in [compile_files(python, share) for share in shares if share]:
        process.wait()


def compile_complete(installed: Path, python: Path, done: Set[Path]) -> set[Path]:
    """Compile the packages that pip has completed, except those in `done`, on one core.

    Returns:
        The packages that were compiled; of each the file RECORD, which lists its files.
    """
    last = {mark.with_name("RECORD") for mark in installed.glob("*.dist-info/INSTALLER")}  # pip writes these two last
    complete = {record for record in last if record.exists()} - done
    lines = (line for record in complete for line in record.read_text(encoding="utf-8").splitlines())
    modules = (name for line in lines if (name := line.partition(",")[0]).endswith(".py"))
    # Scripts lie outside, as in "../../../bin/run.py".
    own = {installed / name.partition("/")[0] for name in modules if not name.startswith("..")}
    if packages := sorted(path for path in own if path.exists()):
        compile_files(python, packages).wait()
    return complete


def compile_files(python: Path, paths: Sequence[Path]) -> "subprocess.Popen[bytes]":
    """Start to compile these files, and all files in these folders.

    Folders in `UNREAD` are left out: of their thousands of files few are imported, and Python compiles these at their
    import. Some packages contain files for other versions of Python. They stay as they are.
    """
    command = [str(python), "-m", "compileall", "-qq", "-x", rf"[/\\]({'|'.join(UNREAD)})[/\\]", *map(str, paths)]
    beside_sources = {key: value for key, value in os.environ.items() if key != "PYTHONPYCACHEPREFIX"}
    return subprocess.Popen(command, env=beside_sources)


def link_compiled(installed: Path, prefix: Path) -> None:
    """Link compiled files to where Python looks for them with PYTHONPYCACHEPREFIX.

    Without the links, the first checks compile torch and all other packages once more.
    """
    for file in installed.rglob("__pycache__/*.pyc"):
        source = file.parent.parent
        link = prefix / source.relative_to(source.anchor) / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # the link exists, or the file system has no links: Python compiles the file
            os.link(file, link)


def tests(arguments: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Runs of pytest: tests without workers on all cores, and tests with worker processes, two files at a time.

    The fast selection is used without `--all`. A selection by marks (`-m`) is one plain run.
    """
    selection = (SLOWEST,) if "--all" in arguments else ("--fast",)
    rest = tuple(word for word in arguments if word not in SELECTIONS)
    if any(word.startswith("-m") for word in rest):
        return [("tests", ("pytest", *selection, *rest))]
    # Workers often wait for each other, so two of their tests on two cores take less time than one after the other.
    # Files keep their order: xdist would put files with few tests last, and these have the longest ones.
    two_files = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder") if side_by_side() else ()
    return [
        ("tests", ("pytest", "-m", "not workers", *side_by_side(), *selection, *rest)),
        ("tests with workers", ("pytest", "-m", "workers", *two_files, *selection, *rest)),
    ]


def properties(arguments: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """One run of pytest: only properties, with new random examples; the seed is in the command."""
    rest = tuple(word for word in arguments if word not in SELECTIONS)
    seeded = any(word.startswith("--hypothesis-seed") for word in rest)
    seed = () if seeded else (f"--hypothesis-seed={random.SystemRandom().randrange(2**32)}",)
    profile = ("-m", "hypothesis", "--hypothesis-profile=nightly", *seed)
    return [("properties", ("pytest", *profile, *side_by_side(), *rest))]


def side_by_side() -> tuple[str, ...]:
    """Options that distribute tests over all cores.

    Each process loads torch, so more than eight processes cost more time than they save.
    """
    beside = min(os.cpu_count() or 1, 8)
    return ("-n", str(beside), "--dist", "worksteal") if beside > 1 else ()


def kept() -> dict[str, str]:
    """Environment variables of the checks, with compile caches of Python, numba and torch inside .venv.

    Checks start hundreds of processes. They need a cache even if the user wants no compiled files among the sources.
    """
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    beside = VENV / "compiled"
    folders = {"NUMBA_CACHE_DIR": beside / "numba", "TORCHINDUCTOR_CACHE_DIR": beside / "inductor"}
    return own | {name: str(folder) for name, folder in (*folders.items(), ("PYTHONPYCACHEPREFIX", COMPILED))}


def run_checks(arguments: Sequence[str]) -> int:
    """Run formatter, linter, types and tests, and return the exit code.

    All of them run even if one fails, so that one run shows everything. Workers often wait for each other. The other
    tests run at the same time with less priority, and use the cores meanwhile; without the command `nice` they run
    before. The type checker always runs beside the tests.
    """
    nightly = "--nightly" in arguments
    steps = properties(arguments) if nightly else tests(arguments)
    beside = [] if nightly else [Beside(*TYPES)]
    if len(steps) > 1 and NICE:
        beside.insert(0, Beside(*steps.pop(0)))
    ended: list[tuple[str, str, int]] = []
    try:
        for name, command in (*(() if nightly else CHECKS), *steps):
            ended.append((name, command[0], run(name, command)))
        ended += [(one.name, one.command[0], one.follow()) for one in beside]
    finally:  # an interrupt also ends what runs beside
        for one in beside:
            one.end()
    selections = {code for _, program, code in ended if program == "pytest"}
    allowed = {0, NO_TESTS} if selections != {NO_TESTS} else {0}
    failed = [name for name, program, code in ended if code not in (allowed if program == "pytest" else {0})]
    print(f"Failed: {', '.join(failed)}." if failed else "All checks passed.", flush=True)
    return 1 if failed else 0


class Beside:
    """A check that runs beside others, with less priority; its output is shown afterwards."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self.command, self._start_s = name, command, time.monotonic()
        output, path = tempfile.mkstemp()
        self._path = Path(path)
        words = [*NICE, str(BIN / command[0]), *command[1:]]
        self._process = subprocess.Popen(words, cwd=ROOT, env=kept(), stdout=output, stderr=output)
        os.close(output)

    def follow(self) -> int:
        """Print the output from its beginning until the check ends, and return its exit code."""
        print(f"== {self.name}: {' '.join(self.command)}", flush=True)
        with self._path.open(errors="replace") as output:
            while (code := self._process.poll()) is None:
                print(output.read(), end="", flush=True)
                time.sleep(_LOOK_S)
            print(output.read(), end="", flush=True)
        tell(self.name, code, self._start_s)
        return code

    def end(self) -> None:
        """Kill the check if it runs."""
        self._process.kill()
        self._process.wait()
        self._path.unlink(missing_ok=True)


def run(name: str, command: Sequence[str]) -> int:
    """Run a check, print how it ended, and return its exit code."""
    start_s = time.monotonic()
    print(f"== {name}: {' '.join(command)}", flush=True)
    code = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, env=kept(), check=False).returncode
    tell(name, code, start_s)
    return code


def tell(name: str, code: int, start_s: float) -> None:
    """Print how and when a check ended."""
    empty = "no test" if code == NO_TESTS else "FAILED"
    print(f"== {name}: {'ok' if code == 0 else empty} after {time.monotonic() - start_s:.0f} s", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the command of the first argument, and return the exit code."""
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
    except KeyboardInterrupt:  # the running command got the interrupt too, and has reported it
        sys.exit(130)
