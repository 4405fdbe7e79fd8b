"""Fork server: forked workers behave and end like separate processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.training.launch import fork_server

pytestmark = pytest.mark.workers

CHILD = "tests.runtime.helpers.fork_server_child"


def start(folder: Path, word: str, handle: int, **more: str) -> Any:
    """Start a process with a word and a handle; it prints to `printed`."""
    with (folder / "printed").open("wb") as out:
        own = {**os.environ, **more}
        return fork_server.start(CHILD, [word], own, out=out.fileno(), handles=[handle], name="hocket-9")


def told(folder: Path) -> dict[str, Any]:
    """Return the state that a process with the word `tell` reports."""
    there, here = os.pipe()
    try:
        process = start(folder, "tell", here)
        assert process.wait() == 0, (folder / "printed").read_text()
        seen: dict[str, Any] = json.loads(os.read(there, 2**20))
    finally:
        os.close(there)
        os.close(here)
    assert (folder / "printed").read_text() == "printed\n"
    assert seen.pop("arguments") == ["tell"]
    return seen


@pytest.mark.slow
def test_a_fork_is_as_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process has the same state as a separate process.

    Folder, paths, environment, session, name and open files are equal. torch is loaded and no other thread runs.
    Random numbers differ in each process.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "found here")
    first, second = told(tmp_path), told(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "elsewhere")
        alone = told(tmp_path)
    assert first["parent"]
    assert first["session"]
    assert (first["torch"], alone["torch"]) == (True, False)
    assert first["name"] == "hocket-9"
    assert first["threads"] == 1
    assert set(first["drawn"]).isdisjoint(second["drawn"])
    assert str(tmp_path / "found here") in first["paths"]
    # Its own three and what it was given, and what looks at them.
    assert len(first["open"]) == len(alone["open"]) == 5
    for key in ("folder", "first", "session", "parent"):
        assert first[key] == alone[key], key
    assert list(dict.fromkeys(first["paths"])) == list(dict.fromkeys(alone["paths"]))
    loaded = {"TORCHINDUCTOR_CACHE_DIR"}  # by torch, where it is loaded: in the fork, and maybe here before
    of_first, of_alone = ({k: v for k, v in one["environment"].items() if k not in loaded} for one in (first, alone))
    assert of_first == of_alone


@pytest.mark.slow
def test_how_a_process_ended_is_told(tmp_path: Path) -> None:
    """The end of a process is reported: its code, its signal, or a traceback.

    A process with an uncaught error ends with code 1. A process can be killed, also after its end.
    """
    there, here = os.pipe()
    try:
        assert start(tmp_path, "7", here).wait() == 7
        assert start(tmp_path, "raise", here).wait() == 1
        assert "ValueError: as told" in (tmp_path / "printed").read_text()
        waiting = start(tmp_path, "wait", there)
        assert waiting.poll() is None
        while waiting.pid is None:
            waiting._nursery.listen()
        waiting.kill()
        assert waiting.wait() == -signal.SIGKILL
        waiting.kill()
        assert waiting.poll() == -signal.SIGKILL
    finally:
        os.close(there)
        os.close(here)


@pytest.mark.slow
def test_a_fork_of_this_process_has_no_nursery(tmp_path: Path) -> None:
    """A fork of this process drops its parent's fork server.

    The server's workers are not children of the fork.
    """
    told(tmp_path)
    assert fork_server._kept
    child = os.fork()
    if child == 0:
        os._exit(len(fork_server._kept))
    assert os.waitpid(child, 0)[1] == 0
    assert fork_server._kept[-1][1].lives


def test_a_nursery_serves_as_long_as_it_is_as_a_new_one_would_be(tmp_path: Path) -> None:
    """One fork server serves all processes with the same environment.

    Another environment has another server, and the first server ends when it is idle. A process that is killed before
    its start does not start.
    """
    there, here = os.pipe()
    try:
        waiting = start(tmp_path, "wait", there)
        brief = start(tmp_path, "0", here)
        assert brief.wait() == 0
        assert brief._nursery is waiting._nursery
        other = start(tmp_path, "0", here, HOCKET_TEST="1")
        other._nursery._process.send_signal(
            signal.SIGSTOP
        )  # or it may begin while this process is kept waiting for a core
        assert other._nursery is not waiting._nursery
        assert waiting._nursery.lives
        assert other.pid is None
        other.kill()
        assert other.wait() == -signal.SIGKILL
        os.close(here)
        here = os.open(os.devnull, os.O_RDONLY)
        assert waiting.wait() == 0
        last = start(tmp_path, "0", here, HOCKET_TEST="2")
        assert not waiting._nursery.lives
        last.kill()
    finally:
        os.close(there)
        os.close(here)


ASKED = """
import importlib
import os
import torch
from hocket.training.launch.fork_server_main import _LATER, _LOADED

asked = []
for name in ("is_available", "device_count", "current_device", "get_device_capability", "get_device_properties", "_lazy_init"):
    setattr(torch.cuda, name, lambda *_, name=name, **__: asked.append(name))
for module in _LOADED:
    importlib.import_module(module)
threads = len(os.listdir("/proc/self/task"))
for module in _LATER:
    importlib.import_module(module)
print(asked, len(os.listdir("/proc/self/task")) - threads)
"""


@pytest.mark.slow
def test_loading_asks_no_device() -> None:
    """Loading does not initialise CUDA devices, and what is loaded later starts no thread.

    Forks could not use the devices if the parent had initialised them.
    """
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n"


def test_workers_may_end_after_their_nursery_has_left_off() -> None:
    """Workers may end after their fork server has lost its client.

    The server prints no error about their end.
    """
    script = (
        "import os, signal, socket\n"
        "from hocket.training.launch import fork_server_main\n"
        "fork_server_main._LOADED = fork_server_main._READ = fork_server_main._LATER = ()\n"
        "here, there = socket.socketpair()\n"
        "here.close()\n"
        "fork_server_main.main(there.detach())\n"
        "signal.raise_signal(signal.SIGCHLD)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_only_some_workers_need_is_loaded_while_nobody_waits() -> None:
    """The fork server imports further modules while there is no request; one that fails does not end it."""
    script = (
        "import socket, sys, threading, time\n"
        "from hocket.training.launch import fork_server_main\n"
        "fork_server_main._LOADED = fork_server_main._READ = ()\n"
        "fork_server_main._LATER = ('wave', 'no_such_module', 'colorsys')\n"
        "here, there = socket.socketpair()\n"
        "def end():\n"
        "    while not {'wave', 'colorsys'} <= set(sys.modules):\n"
        "        time.sleep(0.01)\n"
        "    here.close()\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "fork_server_main.main(there.detach())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
