"""What one of torchrun's workers makes of signals, without starting any worker."""

import signal
import socket

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hocket.runtime.launch.torchrun import _Together
from hocket.runtime.train import Options
from hocket.runtime.worker.heartbeat import Progress


@pytest.mark.parametrize("folder", ["saved", None])
def test_the_first_signal_is_the_first_although_the_thread_was_quicker(folder: str | None) -> None:
    """The thread that watches learns of a signal at once, the main thread when it runs Python again: still only a second one ends
    the run at once, or the first where nothing can be saved."""
    waker, woken = socket.socketpair()
    with waker, woken:
        woken.setblocking(False)
        progress = Progress.private()
        together = _Together(HashStore(), 0, ["worker 0"], progress, Options(1, checkpoint=folder), None)
        together._woken = woken
        waker.send(bytes([signal.SIGINT]))
        together._hold()  # the thread's turn, while the main thread is inside a transfer
        assert progress.hold == (folder is not None)
        if folder is not None:
            together._again(signal.SIGINT, None)
        with pytest.raises(KeyboardInterrupt):
            together._again(signal.SIGINT, None)
