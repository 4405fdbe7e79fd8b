"""One save at a time in a thread of its own, while the next steps run.

Source: `torch.distributed.checkpoint.async_save` (PyTorch), which copies the state first and writes it afterwards.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a state to host memory, so that later steps do not change it."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


class SaveThread:
    """Runs one function at a time in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Wait for the last function, and start another one.

        Raises:
            BaseException: the last function failed with it.
        """
        self.finish()
        # The process may end while it writes: what is written then is no checkpoint yet.
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the last function.

        Raises:
            BaseException: the function failed with it.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of a function that has failed already, without waiting.

        Raises:
            BaseException: the last function failed with it.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failure = error
