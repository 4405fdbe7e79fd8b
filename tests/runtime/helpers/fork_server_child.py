"""Child process for tests of the fork server.

It does what its word says and reports what it sees.
"""

import json
import os
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """Run one word of a test.

    `tell` prints the state of the process, `wait` waits for the other end of the first handle to close, and `raise`
    raises an error. Any other word is an exit code.
    """
    (word,) = arguments
    if word == "raise":
        raise ValueError("as told")
    if word == "wait":
        os.read(handles[0], 1)
    if word == "tell":
        numpy = sys.modules.get("numpy.random")
        seen = {
            "parent": parent == os.getppid(),
            "session": os.getsid(0) == os.getpid(),
            "name": Path("/proc/self/comm").read_text().strip(),
            "folder": os.getcwd(),
            "first": sys.path[0],
            "paths": sys.path[1:],
            "environment": dict(os.environ),
            "arguments": sys.argv[1:],
            "threads": threading.active_count(),
            "torch": "torch" in sys.modules,
            "drawn": [random.random(), numpy.random() if numpy else random.random()],
            "open": sorted(map(int, os.listdir("/proc/self/fd"))),
        }
        os.write(handles[0], json.dumps(seen).encode())
        print("printed")
    if word.isdigit():
        os._exit(int(word))
