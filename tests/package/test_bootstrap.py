"""How the checks are run: every test once, and no failure is lost."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).resolve().parents[2] / "tools" / "bootstrap.py"
NO_TESTS = 5


@pytest.fixture
def bootstrap() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("bootstrap", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_test_is_in_one_run(bootstrap: ModuleType) -> None:
    """What one run leaves out by its mark the other one takes; what is handed on reaches both."""
    first, second = (command for _, command in bootstrap.tests(["-k", "cluster"]))
    assert first[:3] == ("pytest", "-m", "not workers")
    assert second[:3] == ("pytest", "-m", "workers")
    assert first[-2:] == second[-2:]


def test_who_selects_by_marks_has_what_was_selected(bootstrap: ModuleType) -> None:
    """The last `-m` is the one that counts: two runs would be the same one twice."""
    assert bootstrap.tests(["-m", "not slow"]) == [("tests", ("pytest", "-m", "not slow"))]


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [
        ((0, 0), 0),
        ((NO_TESTS, 0), 0),
        ((0, NO_TESTS), 0),
        ((NO_TESTS, NO_TESTS), 1),
        ((1, 0), 1),
        ((0, 1), 1),
        ((NO_TESTS, 1), 1),
        ((1, NO_TESTS), 1),
    ],
)
def test_no_failure_is_lost(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, int], wanted: int
) -> None:
    """One of the two runs may have no test of those that were asked for; both may not, and each may fail."""
    left = list(codes)

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def run(command: Sequence[str], env: dict[str, str], **options: object) -> subprocess.CompletedProcess[str]:
        code = left.pop(0) if Path(command[0]).name == "pytest" else 0
        # What is compiled is kept, but not among the sources.
        assert "PYTHONDONTWRITEBYTECODE" not in env
        assert Path(env["PYTHONPYCACHEPREFIX"]).parent == bootstrap.VENV
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    assert bootstrap.run_checks(["-k", "cluster"]) == wanted
    assert left == []


def test_a_break_is_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C while a check runs, which tells of it: nothing more, and the code that shells know."""
    script = (
        f"import runpy, signal, subprocess, sys\n"
        f"subprocess.run = lambda *a, **k: signal.raise_signal(signal.SIGINT)\n"
        f"sys.argv = ['bootstrap.py', 'test']\n"
        f"source = open({str(PATH)!r}).read().replace('    make_environment()', '    pass', 1)\n"
        f"exec(compile(source, {str(PATH)!r}, 'exec'), {{'__name__': '__main__', '__file__': {str(PATH)!r}}})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (130, "")
