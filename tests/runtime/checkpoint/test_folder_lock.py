"""Tests of claims: one run at a time writes into a folder of checkpoints."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hocket.errors import InputError
from hocket.runtime.checkpoint.folder_lock import LOCK, claimed
from hocket.runtime.kv_exchange import KVExchange

HOLD = """
import ctypes, os, sys
from hocket.runtime.checkpoint.folder_lock import claimed
class Alone:  # without the second that torch takes
    rank = 0
    def share(self, fact):
        return [fact]
with claimed(sys.argv[1], Alone()):
    # By libc: no hook of Python runs in the child, as none has while the system has not let the child run.
    if child := ctypes.PyDLL(None).fork():
        print(child, flush=True)
    sys.stdin.read()
os._exit(0)
"""

LEAVE = """
import os, sys
from hocket.runtime.checkpoint.folder_lock import claimed
class Alone:
    rank = 0
    def share(self, fact):
        return [fact]
folder = sys.argv[1]
try:
    with claimed(folder, Alone()):
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            sys.stdin.read()
        else:
            sys.exit()
finally:
    os._exit(0 if sys.exc_info()[0] in (None, SystemExit) else 1)
"""


def alone() -> KVExchange:
    """The board of a single worker."""
    return KVExchange(None, 0, 1)


def killed(other: "subprocess.Popen[bytes]") -> None:
    """kill -9; the child that it forked lives on, as a reader of data may."""
    other.kill()
    other.wait()


def over(other: "subprocess.Popen[bytes]") -> None:
    """End the process regularly."""
    other.communicate(b"")


@pytest.mark.parametrize("end", [killed, over])
def test_a_folder_is_of_one_run_as_long_as_it_lives(
    tmp_path: Path, end: "Callable[[subprocess.Popen[bytes]], None]"
) -> None:
    """A folder belongs to one run for the lifetime of its process.

    Another run is refused with the name of the first run. It is accepted after the first process has ended, in any way
    and independently of its child processes.
    """
    folder = tmp_path / "saved"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        said = rf"^checkpoint in {folder}: found another run that writes there, pid {other.pid} on \S+; expected an unused folder"
        with pytest.raises(InputError, match=said), claimed(folder, alone()):
            raise AssertionError("let in")
        end(other)
        if end is killed:
            os.kill(child, 0)  # is there
        with claimed(folder, alone()):
            assert re.match(rf"pid {os.getpid()} on ", (folder / LOCK).read_text())


def test_a_forked_child_neither_has_nor_ends_the_claim(tmp_path: Path) -> None:
    """A child that leaves the claimed part ends well, and its parent keeps the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", LEAVE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"0\n"
        with pytest.raises(InputError, match=f"pid {parent.pid} on "), claimed(tmp_path, alone()):
            raise AssertionError("let in")
        parent.communicate(b"")
    assert parent.returncode == 0


def test_two_runs_of_one_process(tmp_path: Path) -> None:
    """Two runs of one process cannot use the same folder.

    The second run is refused, although a process does not conflict with its own locks. The first run keeps its lock.
    """
    tmp_path.joinpath("link").symlink_to(tmp_path)
    ask = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with claimed(tmp_path, alone()):
        said = rf"found another run that writes there, pid {os.getpid()} on "
        with pytest.raises(InputError, match=said), claimed(tmp_path / "link", alone()):
            raise AssertionError("let in")
        asked = subprocess.run([sys.executable, "-c", ask, str(tmp_path / LOCK)], capture_output=True, check=False)
        assert b"BlockingIOError" in asked.stderr


def test_what_is_left_of_a_claim_claims_nothing(tmp_path: Path) -> None:
    """The lock file stays after a run, but the lock does not.

    Several runs can follow each other in one process.
    """
    for _ in range(2):
        with claimed(tmp_path, alone()):
            assert (tmp_path / LOCK).exists()
    with pytest.raises(ZeroDivisionError), claimed(tmp_path, alone()):
        _ = 1 / 0
    with claimed(tmp_path, alone()):
        pass


def test_all_workers_hear_of_it(tmp_path: Path) -> None:
    """All workers are refused if the first worker is.

    The first worker holds the lock. The others may be on other machines.
    """
    store = HashStore()
    with claimed(tmp_path, alone()):
        store.set("board/0/0", '["another run", "a folder of its own", "Wait."]')
        said = "found another run; expected a folder of its own"
        with pytest.raises(InputError, match=said), claimed(tmp_path, KVExchange(store, 1, 2)):
            raise AssertionError("let in")


def test_without_a_folder_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without checkpoints leaves nothing anywhere."""
    monkeypatch.chdir(tmp_path)
    with claimed(None, alone()):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A place that is a file gives one clear error."""
    (tmp_path / "file").write_text("")
    said = r"exists.*; expected a writable folder"
    with pytest.raises(InputError, match=said), claimed(tmp_path / "file", alone()):
        raise AssertionError("let in")


def test_folders_above_are_made(tmp_path: Path) -> None:
    """A run may name a folder in a folder that does not exist yet."""
    with claimed(tmp_path / "runs" / "first", alone()):
        assert (tmp_path / "runs" / "first" / LOCK).exists()
