"""Cores: which cores of this machine each of its local workers stays on.

A worker that stays where it is keeps its caches, and what the kernel does for its messages does not run on another worker's
core.
"""

import os
from contextlib import suppress
from pathlib import Path

from hocket.profile.companions import usable_cores

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cores_of(
    workers: int, threads: int = 1, pin: bool | None = None, topology: Path = _TOPOLOGY
) -> tuple[tuple[int, ...], ...] | None:
    """The cores of each worker, no core twice; None where there are too few, or workers shall not or cannot stay on cores.

    Arguments:
        threads: of each worker, and so its cores. Hardware threads of one core are given out last, to whoever is left.
        pin: whether workers stay on cores. Unasked they do where they need more than half of them: where they need fewer,
            another run on the same machine would take the same.
        topology: where the kernel tells of cores.
    """
    needed, there = workers * threads, usable_cores()
    if not hasattr(os, "sched_getaffinity") or needed > there or not (2 * needed > there if pin is None else pin):
        return None
    order = sorted(os.sched_getaffinity(0), key=lambda core: (_place_among_siblings(core, topology), core))
    return tuple(tuple(sorted(order[w * threads : (w + 1) * threads])) for w in range(workers))


def stay_on(cores: tuple[int, ...] | None) -> None:
    """Keep this process, with the threads that it will start, on these cores."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _place_among_siblings(core: int, topology: Path) -> int:
    """0 for the first hardware thread of a core, 1 for the second, and so on; 0 where the kernel does not say."""
    siblings: list[int] = []
    with suppress(OSError, ValueError):
        for part in (topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip().split(","):
            first, _, last = part.partition("-")
            siblings += range(int(first), int(last or first) + 1)
    return siblings.index(core) if core in siblings else 0
