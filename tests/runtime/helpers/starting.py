"""Worker processes of tests, as forks of a shared fork server.

The runs of a test session share the server, so torch is loaded only once.
"""

import os
from collections.abc import Sequence

from hocket.training.launch import fork_server
from tests.limits import HUNG_S


def start(module: str, *arguments: Sequence[object]) -> list[fork_server.ForkedProcess]:
    """Start a process for each list of arguments.

    It calls `main(arguments, handles, parent)` of a module of the tests.
    """
    # As runs have it, so that theirs is used.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return [fork_server.start(module, [str(word) for word in own], environment, out=2) for own in arguments]


def finish(started: Sequence[fork_server.ForkedProcess]) -> None:
    """Wait until all have ended well; none is left however that goes."""
    try:
        assert [process.wait(timeout=HUNG_S) for process in started] == [0] * len(started)
    finally:
        for process in started:
            process.kill()
