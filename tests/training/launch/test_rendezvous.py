"""Rendezvous of workers under torchrun, and messages while they wait."""

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from hocket.errors import InputError, WorkerLost
from hocket.training.launch.rendezvous import meet, own_keys
from tests.runtime.helpers.torchrun_workers import Worker

pytestmark = pytest.mark.workers

WAITING = """
import sys
from hocket.training.launch.rendezvous import meet
print("waiting", flush=True)
meet(int(sys.argv[1]), 2, print)
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def place(monkeypatch: pytest.MonkeyPatch, host: str, port: int | str) -> None:
    """Set the rendezvous address."""
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", str(port))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.thinned(most=1)
def test_who_waits_can_leave(tmp_path: Path, rank: int, number: signal.Signals) -> None:
    """A worker that waits for others ends within seconds of a signal.

    It does not wait for minutes inside torch.
    """
    (tmp_path / "waiting.py").write_text(WAITING)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "RANK": str(rank)}
    worker = Worker(tmp_path, meeting, ["waiting.py", str(rank)])
    try:
        worker.wait_for("waiting\n")
        time.sleep(0.5)
        worker.signal(number)
        assert worker.wait() != 0
        assert "c10d" not in worker.err
    finally:
        worker.kill()


@pytest.mark.slow
def test_a_place_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error with worker, place and reason, after it was said what is waited for."""
    port, told = free_port(), list[str]()
    place(monkeypatch, "127.0.0.1", port)
    seconds = iter(range(10**6))
    with pytest.raises(
        WorkerLost, match=rf"^worker 1 did not meet the others at 127\.0\.0\.1:{port} within 20 s: Connection refused"
    ):
        meet(1, 2, told.append, wait_s=20.0, clock=lambda: float(next(seconds)))
    assert told == [f"waiting at 127.0.0.1:{port} for worker 0 of 2 workers"]


@pytest.mark.parametrize(
    ("host", "port", "at"),
    [("", "29500", "MASTER_ADDR"), ("here", "", "MASTER_PORT"), ("here", "99999", "MASTER_PORT")],
)
def test_a_place_that_is_none(monkeypatch: pytest.MonkeyPatch, host: str, port: str, at: str) -> None:
    """Environment variables that torchrun would have set are named."""
    place(monkeypatch, host, port)
    with pytest.raises(InputError, match=rf"^{at}: "):
        meet(1, 2, print)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_restart_does_not_read_the_keys_of_the_attempt_before(first: int) -> None:
    """Torchrun's store outlives its workers; a restarted run neither sees old keys nor meets dead workers.

    In whatever order the workers come, all of an attempt have the same keys, and another attempt has others. A worker
    that died on the way does not matter.
    """
    store = HashStore()

    def attempt() -> list[Store]:
        def come(rank: int) -> Store:
            time.sleep(0.1 * (rank != first))
            return own_keys(store, rank, 3, lambda: True)

        with ThreadPoolExecutor(3) as threads:
            return list(threads.map(come, range(3)))

    before = attempt()
    before[1].set("hold", "1")
    assert all(each.check(["hold"]) for each in before)
    chances = iter([True, False])
    with pytest.raises(TimeoutError):
        own_keys(store, first, 3, lambda: next(chances))
    after = attempt()
    assert not any(each.check(["hold"]) for each in after)
    after[2].set("beat", "2")
    assert all(each.get("beat") == b"2" for each in after)
    assert not before[0].check(["beat"])
