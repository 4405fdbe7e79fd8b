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
from hocket.run.board import Board
from hocket.run.claim import LOCK, claimed

HOLD = """
import os, sys
from hocket.run.claim import claimed
class Alone:  # without the second that torch takes
    rank = 0
    def share(self, fact):
        return [fact]
with claimed(sys.argv[1], Alone()):
    if child := os.fork():
        print(child, flush=True)
    sys.stdin.read()
os._exit(0)
"""


def alone() -> Board:
    """The board of a single worker."""
    return Board(None, 0, 1)


def killed(other: "subprocess.Popen[bytes]") -> None:
    """kill -9; the child that it forked lives on, as a reader of data may."""
    other.kill()
    other.wait()


def over(other: "subprocess.Popen[bytes]") -> None:
    """It comes to its end."""
    other.communicate(b"")


@pytest.mark.parametrize("end", [killed, over])
def test_a_folder_is_of_one_run_as_long_as_it_lives(
    tmp_path: Path, end: "Callable[[subprocess.Popen[bytes]], None]"
) -> None:
    """Another one is told who has it, and let in as soon as that process has ended, however it did."""
    folder = tmp_path / "saved"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        said = rf"^checkpoint in {folder}: found another run that writes there, pid {other.pid} on \S+; expected a folder of its own"
        with pytest.raises(InputError, match=said), claimed(folder, alone()):
            raise AssertionError("let in")
        end(other)
        if end is killed:
            os.kill(child, 0)  # is there
        with claimed(folder, alone()):
            assert re.match(rf"pid {os.getpid()} on ", (folder / LOCK).read_text())


def test_what_is_left_of_a_claim_claims_nothing(tmp_path: Path) -> None:
    """The file stays when a run is over, the lock does not; a run may come after another in one process."""
    for _ in range(2):
        with claimed(tmp_path, alone()):
            assert (tmp_path / LOCK).exists()
    with pytest.raises(ZeroDivisionError), claimed(tmp_path, alone()):
        _ = 1 / 0
    with claimed(tmp_path, alone()):
        pass


def test_all_workers_hear_of_it(tmp_path: Path) -> None:
    """The first worker holds the lock; the others, who may stand on other machines, are refused with it."""
    store = HashStore()
    with claimed(tmp_path, alone()):
        store.set("board/0/0", '["another run", "a folder of its own", "Wait."]')
        said = "found another run; expected a folder of its own"
        with pytest.raises(InputError, match=said), claimed(tmp_path, Board(store, 1, 2)):
            raise AssertionError("let in")


def test_without_a_folder_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without checkpoints leaves nothing anywhere."""
    monkeypatch.chdir(tmp_path)
    with claimed(None, alone()):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A place that is a file gives one clear error."""
    (tmp_path / "file").write_text("")
    said = r"exists.*; expected a folder that can be written"
    with pytest.raises(InputError, match=said), claimed(tmp_path / "file", alone()):
        raise AssertionError("let in")
