"""Companions train, print nothing, and always end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.profiling.job.job_file import load_job
from hocket.profiling.measure.background_load import BackgroundLoad, usable_cores, usual_neighbours
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest

pytestmark = pytest.mark.workers

JOB = """
import os, sys
from hocket import models
print("loud")
print("louder", file=sys.stderr)
{more}
job = models.small_job("gpt")
"""


def job_file(folder: Path, more: str = "") -> Path:
    """A small job that prints, and does something else when it is loaded."""
    path = folder / "job.py"
    path.write_text(JOB.format(more=more))
    return path


def alive(pid: int) -> bool:
    """True if a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.slow
def test_a_profile_with_a_busy_neighbour(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Notes give the number of busy companions; their output is not shown."""
    job = load_job(job_file(tmp_path))
    capfd.readouterr()
    profile = measure(job, (1, 2), MeasureRequest(neighbours=1, budget_s=0.1))
    assert "measured with 1 busy neighbour" in profile.notes
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_companions_follow_and_end(tmp_path: Path) -> None:
    """A companion trains the requested size, and ends with the measurement."""
    with BackgroundLoad(job_file(tmp_path), 1, 1) as companions:
        for size in (2, 1):
            companions.train(size)
            companions.train(size)  # they train this size already
            assert companions.busy == 1
        (process,) = companions._running
        process.kill()
        process.wait()
        assert companions.busy == 0
        assert companions.problems == ["a companion ended with code -9"]
    assert not alive(process.pid)


@pytest.mark.slow
def test_a_companion_that_fails_is_a_note(tmp_path: Path) -> None:
    """A failing or slow companion gives a note."""
    fails = job_file(tmp_path, "if os.getppid() == int(os.environ['HOCKET_TEST_PARENT']): raise OSError('only one')")
    os.environ["HOCKET_TEST_PARENT"] = str(os.getpid())
    try:
        with BackgroundLoad(fails, 1, 1) as companions:
            companions.train(1)
            assert companions.busy == 0
    finally:
        del os.environ["HOCKET_TEST_PARENT"]
    assert len(companions.problems) == 1
    assert "OSError: only one" in companions.problems[0]
    with BackgroundLoad(job_file(tmp_path, "import time; time.sleep(60)"), 1, 1, wait_s=0.1) as companions:
        companions.train(1)
        assert companions.busy == 0
    assert companions.problems == ["a companion did not train a microbatch of 1 within 0 s"]


def test_a_job_without_a_file_is_measured_alone() -> None:
    """A job without a file is measured alone, with a note."""
    with BackgroundLoad(None, 2, 1) as companions:
        companions.train(1)
        assert companions.busy == 0
    assert companions.problems == ["the job has no file that another process could load"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.slow
def test_companions_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """Companions end when their parent is killed."""
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from hocket.profiling.measure.background_load import BackgroundLoad\n"
        "with BackgroundLoad(Path(sys.argv[1]), 1, 1) as companions:\n"
        "    companions.train(1)\n"
        "    print(companions._running[0].pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(job_file(tmp_path))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 20
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not alive(pid)


def test_usual_numbers(tmp_path: Path) -> None:
    """One companion for each other usable core; none on a GPU.

    A container's quota limits the usable cores.
    """
    cores = usable_cores(tmp_path / "none")
    for text, expected in (("max 100000", cores), ("150000 100000", 1), ("50000 100000", 1), ("odd", cores)):
        (tmp_path / "cpu.max").write_text(text)
        assert usable_cores(tmp_path / "cpu.max") == expected
    assert usual_neighbours("cuda") == 0
    assert 0 <= usual_neighbours("cpu", 1) <= usable_cores() - 1
    assert usual_neighbours("cpu", 10**6) == 0


def test_impossible_neighbours(tmp_path: Path) -> None:
    """A negative number of companions is refused."""
    with pytest.raises(InputError, match="neighbours"):
        measure(load_job(job_file(tmp_path)), (1,), MeasureRequest(neighbours=-1))
