"""Cores: which cores of this machine each of its local workers stays on.

A worker that stays where it is keeps its caches, and what the kernel does for its messages does not run on another worker's
core.
"""

import os
from contextlib import suppress
from pathlib import Path

from hocket.profiling.measure.background_load import usable_cores

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cores_of(
    workers: int, threads: int = 1, pin: bool | None = None, topology: Path = _TOPOLOGY, group: int = 1
) -> tuple[tuple[int, ...], ...] | None:
    """Cores of each worker.

    None if there are too few cores, or workers are not to be pinned.

    No core has two workers, but for tensor-parallel groups that have as many on every core: members wait for each other, and a
    kernel that moves them leaves cores idle.

    Arguments:
        threads: of each worker, and so its cores. Hardware threads of one core are given out last, to whoever is left.
        group: workers of a tensor-parallel group.
        pin: whether workers stay on cores. Unasked they do where they need more than half of them: where they need fewer,
            another run on the same machine would take the same.
        topology: where the kernel tells of cores.
    """
    needed, there = workers * threads, usable_cores()
    if not hasattr(os, "sched_getaffinity") or not (2 * needed > there if pin is None else pin):
        return None
    if needed > there and (group == 1 or group * threads % there or there % threads):
        return None
    order = sorted(os.sched_getaffinity(0), key=lambda core: (_place_among_siblings(core, topology), core))
    starts = [w * threads % len(order) for w in range(workers)]
    return tuple(tuple(sorted(order[start : start + threads])) for start in starts)


def stay_on(cores: tuple[int, ...] | None) -> None:
    """Keep this process, with the threads that it will start, on these cores."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _place_among_siblings(core: int, topology: Path) -> int:
    """Index of a hardware thread within its core; 0 if the kernel does not say."""
    siblings: list[int] = []
    with suppress(OSError, ValueError):
        for part in (topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip().split(","):
            first, _, last = part.partition("-")
            siblings += range(int(first), int(last or first) + 1)
    return siblings.index(core) if core in siblings else 0
