"""How the checks are run: every test once, and no failure is lost."""

import importlib.util
import os
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


def test_packages_are_compiled(bootstrap: ModuleType, tmp_path: Path) -> None:
    """Every file of every package, but folders that are rarely imported, and a file that this Python cannot read."""
    files = {"a/b/c.py": "x = 1", "d.py": "y = 2", "e/old.py": "print 'x'", "e/new.py": "z = 3"}
    left_out = {f"a/{name}/f.py": "u = 4" for name in bootstrap.UNREAD}
    write(tmp_path, files | left_out)
    bootstrap.compile_packages(tmp_path, Path(sys.executable))
    assert compiled_in(tmp_path) == {"c", "d", "new"}


def test_a_package_is_compiled_when_it_is_complete(bootstrap: ModuleType, tmp_path: Path) -> None:
    """That is when both files exist that pip writes last; and once. Nothing outside of the folder is compiled."""
    installed = tmp_path / "lib" / "site-packages"
    record = "a/b.py,sha256=0,5\nc.py,,\n../../bin/run.py,,\n"
    write(installed, {"a/b.py": "x = 1", "c.py": "y = 2", "a-1.dist-info/RECORD": record})
    write(installed, {"d.py": "z = 3", "d-1.dist-info/INSTALLER": "pip"})
    write(installed, {"e.py": "u = 4", "e-1.dist-info/RECORD": "e.py,,"})
    write(tmp_path, {"bin/run.py": "v = 5", "lib/other.py": "w = 6"})
    assert not bootstrap.compile_complete(installed, Path(sys.executable), set())
    write(installed, {"a-1.dist-info/INSTALLER": "pip"})
    complete = bootstrap.compile_complete(installed, Path(sys.executable), set())
    assert compiled_in(tmp_path) == {"b", "c"}
    assert not bootstrap.compile_complete(installed, Path(sys.executable), complete)


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files with these names and texts."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def compiled_in(folder: Path) -> set[str]:
    """Names of modules that are compiled."""
    return {path.name.partition(".")[0] for path in folder.rglob("*.pyc")}


def test_what_pip_compiled_is_not_compiled_again(bootstrap: ModuleType, tmp_path: Path) -> None:
    """A file with a wrong content imports as its compiled one: Python took the link and did not compile."""
    package = tmp_path / "lib" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    module = package / "module.py"
    module.write_text("value = 1\n")
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tmp_path)], check=True, env=own)
    status = module.stat()
    module.write_text("value = 2\n")
    os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns))  # size and time are what Python compares
    prefix = tmp_path / "compiled"
    bootstrap.link_compiled(tmp_path / "lib", prefix)
    bootstrap.link_compiled(tmp_path / "lib", prefix)
    own |= {"PYTHONPYCACHEPREFIX": str(prefix), "PYTHONPATH": str(tmp_path / "lib")}
    program = "import package.module; print(package.module.value)"
    done = subprocess.run([sys.executable, "-c", program], check=True, env=own, capture_output=True, text=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("more", [[], ["--all"]])
def test_every_test_is_in_one_run(bootstrap: ModuleType, more: list[str]) -> None:
    """What one run leaves out by its mark the other one takes; what is handed on reaches both."""
    first, second = (command for _, command in bootstrap.tests(["-k", "cluster", *more]))
    assert first[:3] == ("pytest", "-m", "not workers")
    assert second[:3] == ("pytest", "-m", "workers")
    assert first[-2:] == second[-2:] == ("-k", "cluster")


def test_only_all_leaves_no_test_out(bootstrap: ModuleType) -> None:
    """The fast selection is asked for by its option; with `--all`, which pytest is not told, what took longest is printed."""
    for _, command in bootstrap.tests([]):
        assert "--fast" in command
    for _, command in bootstrap.tests(["--all"]):
        assert not {"--fast", "--all"} & set(command)
        assert any(word.startswith("--durations=") for word in command)


def test_who_selects_by_marks_has_what_was_selected(bootstrap: ModuleType) -> None:
    """The last `-m` is the one that counts: two runs would be the same one twice."""
    assert bootstrap.tests(["-m", "torch"]) == [("tests", ("pytest", "--fast", "-m", "torch"))]


def test_each_night_has_its_own_seed(bootstrap: ModuleType) -> None:
    """New examples each time, in one run of properties; a given seed is kept."""

    def seeds(*words: str) -> list[str]:
        ((_, command),) = bootstrap.properties(["--nightly", *words])
        assert command[:4] == ("pytest", "-m", "hypothesis", "--hypothesis-profile=nightly")
        assert "--nightly" not in command
        return [word for word in command if word.startswith("--hypothesis-seed=")]

    assert len(seeds()) == 1
    assert seeds() != seeds()
    assert seeds("--hypothesis-seed=7") == ["--hypothesis-seed=7"]


@pytest.mark.parametrize("nice", [True, False])
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
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, int], wanted: int, nice: bool
) -> None:
    """One of the two runs may have no test of those that were asked for; both may not, and each may fail.

    They run side by side, or one after the other where no command gives one of them less priority.
    """
    if not nice:
        monkeypatch.setattr(bootstrap, "NICE", ())
    fake_commands(bootstrap, monkeypatch, codes)
    assert bootstrap.run_checks(["-k", "cluster"]) == wanted


@pytest.mark.parametrize("failing", ["format", "lint", "types"])
def test_no_failure_of_another_check_is_lost(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], failing: str
) -> None:
    """Nor what is said by checks that run beside others."""
    fake_commands(bootstrap, monkeypatch, (0, 0), failing)
    assert bootstrap.run_checks([]) == 1
    out = capfd.readouterr().out
    assert f"Failed: {failing}." in out
    assert "words of mypy" in out
    assert "words of pytest" in out


def test_properties_of_the_night_may_fail(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is checked at night."""
    for code in (0, 1):
        fake_commands(bootstrap, monkeypatch, (code,), "types")
        assert bootstrap.run_checks(["--nightly"]) == code


def fake_commands(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], failing: str = ""
) -> None:
    """Let runs of pytest end with these codes, tests with workers with the last one, and one of the other checks fail."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def code_of(command: Sequence[str], env: dict[str, str]) -> int:
        # What is compiled is kept, but not among the sources.
        assert "PYTHONDONTWRITEBYTECODE" not in env
        for name in ("PYTHONPYCACHEPREFIX", "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            assert Path(env[name]).is_relative_to(bootstrap.VENV)
        if Path(command[0]).name == "pytest":
            return codes[-1 if "workers" in command else 0]
        names = {"mypy": "types", "ruff": "format" if "format" in command else "lint"}
        return int(failing == names[Path(command[0]).name])

    def run(command: Sequence[str], env: dict[str, str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code_of(command, env))

    def start(command: Sequence[str], env: dict[str, str], stdout: int, **options: object) -> "subprocess.Popen[bytes]":
        own = command[len(bootstrap.NICE) :]
        script = f"print('words of {Path(own[0]).name}'); raise SystemExit({code_of(own, env)})"
        return popen([sys.executable, "-c", script], stdout=stdout)

    popen = subprocess.Popen
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    monkeypatch.setattr(bootstrap.subprocess, "Popen", start)


def test_a_break_is_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C while a check runs, which tells of it: nothing more, and the code that shells know."""
    script = (
        f"import runpy, signal, subprocess, sys\n"
        f"signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent in the background ignores it
        f"subprocess.run = lambda *a, **k: signal.raise_signal(signal.SIGINT)\n"
        f"own = subprocess.Popen\n"
        f"checker = [sys.executable, '-c', 'import time; time.sleep(1000)']\n"
        f"def started(words, **options):\n"
        f"    process = own(checker, **options)\n"
        f"    print(process.pid, file=open({str(tmp_path / 'pid')!r}, 'a'))\n"
        f"    return process\n"
        f"subprocess.Popen = started\n"
        f"sys.argv = ['bootstrap.py', 'test']\n"
        f"source = open({str(PATH)!r}).read().replace('    make_environment()', '    pass', 1)\n"
        f"exec(compile(source, {str(PATH)!r}, 'exec'), {{'__name__': '__main__', '__file__': {str(PATH)!r}}})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    numbers = [int(line) for line in (tmp_path / "pid").read_text().splitlines()]
    assert len(numbers) == 2
    for number in numbers:  # the checks that ran beside have ended as well
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
