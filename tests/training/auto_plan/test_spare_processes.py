"""Forks that become companions of a measurement, in a process of their own: a process that has trained cannot be forked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hocket.training.auto_plan import spare_processes
from tests.limits import HUNG_S
from tests.profiling.measure.test_background_load import alive, job_file

pytestmark = [pytest.mark.workers, pytest.mark.skipif(sys.platform != "linux", reason="forks a process with torch")]

PROGRAM = """
import json, os, sys, time
from pathlib import Path
import torch
from hocket.profiling.measure.background_load import BackgroundLoad
from hocket.training.auto_plan.spare_processes import SpareProcesses

torch.set_num_threads(1)
spare = SpareProcesses(3)
unused = [one.pid for one in spare._spare]
with BackgroundLoad(Path(sys.argv[1]), 2, 1, start=spare.start) as companions:
    for size in (2, 1):
        companions.train(size)
        assert companions.busy == 2, companions.problems
    pids = [one.pid for one in companions._running]
    companions._running[0].kill()
    companions._running[0].wait()
    assert companions.busy == 1
    assert companions.problems == ["a companion ended with code -9"]
print(json.dumps({"started": pids, "unused": [pid for pid in unused if pid not in pids]}), flush=True)
if sys.argv[2] == "end":
    spare.end()
else:
    time.sleep(60)
"""


def test_without_a_fork_a_new_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is if the system has no process left at the fork."""
    orders: list[tuple[str, int]] = []
    monkeypatch.setattr(spare_processes, "new_process", lambda *given: orders.append(given))

    def none() -> int:
        raise OSError("no process left")

    monkeypatch.setattr(os, "fork", none)
    spare = spare_processes.SpareProcesses(2)
    spare.start("{}", 1)
    spare.end()
    assert orders == [("{}", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "killed"])
def test_forks_train_and_end(how: str, tmp_path: Path) -> None:
    """They train the sizes that are asked for, and end with the measurement; unused ones with their parent."""
    words = [sys.executable, "-c", PROGRAM, str(job_file(tmp_path)), how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        line = parent.stdout.readline()
        found = json.loads(line) if line else pytest.fail(parent.stderr.read())
        assert (len(found["started"]), len(found["unused"])) == (2, 1)
        assert not any(map(alive, found["started"]))
        if how == "killed":
            assert alive(found["unused"][0])
            parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=HUNG_S)
        assert parent.stderr.read() == ""
    limit_s = time.monotonic() + HUNG_S
    while alive(found["unused"][0]) and time.monotonic() < limit_s:
        time.sleep(0.02)
    assert not alive(found["unused"][0])
