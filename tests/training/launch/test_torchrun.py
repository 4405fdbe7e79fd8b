"""Signals in one of torchrun's workers, without starting any worker."""

import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hocket.errors import NotFinite
from hocket.runtime.progress.heartbeat import Heartbeat
from hocket.training.launch.failures import describe
from hocket.training.launch.torchrun import _Together
from hocket.training.worker.options import Options


@pytest.mark.parametrize("folder", ["saved", None])
def test_the_first_signal_is_the_first_although_the_thread_was_quicker(folder: str | None) -> None:
    """The first signal counts once, also if the watching thread was faster.

    The thread sees a signal at once, and the main thread sees it when it runs Python again. Only a second signal ends
    the run at once. If nothing can be saved, the first signal ends it.
    """
    waker, woken = socket.socketpair()
    with waker, woken:
        woken.setblocking(False)
        progress = Heartbeat.private()
        together = _Together(HashStore(), 0, ["worker 0"], progress, Options(1, checkpoint=folder), None)
        together._woken = woken
        waker.send(bytes([signal.SIGINT]))
        together._hold()  # the thread's turn, while the main thread is inside a transfer
        assert progress.hold == (folder is not None)
        if folder is not None:
            together._again(signal.SIGINT, None)
        with pytest.raises(KeyboardInterrupt):
            together._again(signal.SIGINT, None)


@pytest.mark.parametrize("saved", ["nowhere", "nothing", "a checkpoint"])
def test_what_to_do_about_a_silent_worker(tmp_path: Path, saved: str) -> None:
    """A run that lost a worker is told to resume only if there is a checkpoint to resume from."""
    if saved == "a checkpoint":
        (tmp_path / "step-00000002").mkdir()
    options = Options(1, checkpoint=None if saved == "nowhere" else str(tmp_path), silence_s=60)
    store = HashStore()
    together = _Together(store, 1, ["worker 0", "worker 1"], Heartbeat.private(), options, None)
    together._left_s -= 61.0
    together._look_left()
    lost, _, advised = store.get("gone").decode().partition("; ")
    assert lost == "worker 0 has not answered for 61 s"
    assert advised.startswith("resume with --resume") is (saved == "a checkpoint")
    assert ("--checkpoint DIR" in advised) is (saved == "nowhere")


@pytest.mark.parametrize(("rank", "waits"), [(0, True), (1, False)])
def test_the_first_worker_keeps_the_store_until_all_have_found_what_is_not_finite(rank: int, waits: bool) -> None:
    """The first worker keeps the store until all have raised NotFinite.

    A slower worker still needs the store, which is in the process of the first worker.
    """
    store = HashStore()
    together = _Together(store, rank, ["worker 0", "worker 1"], Heartbeat.private(), Options(1, silence_s=60), None)
    error = NotFinite("step 1", "a loss of nan", "finite losses")
    other = json.dumps(describe(error, time.time(), "step 1", False))
    slow = threading.Timer(0.3, lambda: store.set(f"failed/{1 - rank}", other))
    slow.start()
    assert together.explain(error) is error
    assert store.check([f"failed/{1 - rank}"]) is waits
    slow.join()
