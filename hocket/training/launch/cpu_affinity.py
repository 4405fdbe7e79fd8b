"""CPU affinity: the cores to which each local worker is pinned.

A pinned worker keeps its caches, and the work of Linux for its messages does not run on another worker's core.
"""

import os
from contextlib import suppress
from pathlib import Path

from hocket.profiling.measure.background_load import usable_cores

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cores_of(
    workers: int, threads: int = 1, pin: bool | None = None, topology: Path = _TOPOLOGY, group: int = 1
) -> tuple[tuple[int, ...], ...] | None:
    """Assign cores to each worker.

    No core has two workers, except with tensor-parallel groups that have equally many workers on every core. The ranks
    of such a group wait for each other, and a scheduler that moves them leaves cores idle.

    Arguments:
        threads: threads of each worker, and so its number of cores. Second hardware threads of a core are assigned
            last.
        pin: True to pin, False not to pin. None to pin if the workers need more than half of the cores; if they need
            fewer, another run on the same machine might be pinned to the same cores.
        topology: folder of Linux that describes the cores.
        group: number of workers in a tensor-parallel group.

    Returns:
        Numbers of the cores of each worker; None if there are too few cores or workers are not pinned.
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
    """Pin this process, and threads that it will start, to cores; None does nothing."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _place_among_siblings(core: int, topology: Path) -> int:
    """Return the index of a hardware thread within its core; 0 if unknown."""
    siblings: list[int] = []
    with suppress(OSError, ValueError):
        for part in (topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text().strip().split(","):
            first, _, last = part.partition("-")
            siblings += range(int(first), int(last or first) + 1)
    return siblings.index(core) if core in siblings else 0
