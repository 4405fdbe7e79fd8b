"""Load on one core: pinned, and busy for some milliseconds of every period.

It ends after the given seconds, or when its parent process is gone.

    python bench/_load.py [--core 0] [--busy-ms 33] [--period-ms 100] [--seconds 5]
"""

import argparse
import os
import time


def main() -> None:
    """Alternate between busy waiting and sleep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--busy-ms", type=float, default=33.0)
    parser.add_argument("--period-ms", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {given.core})
    parent, begins_s = os.getppid(), time.perf_counter()
    ends_s = begins_s + given.seconds
    while begins_s < ends_s and os.getppid() == parent:
        while time.perf_counter() < begins_s + given.busy_ms / 1e3:
            pass
        begins_s = max(begins_s + given.period_ms / 1e3, time.perf_counter())
        time.sleep(max(0.0, begins_s - time.perf_counter()))


if __name__ == "__main__":
    main()
