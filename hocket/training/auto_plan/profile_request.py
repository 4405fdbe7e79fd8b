"""Request for a profile from a process of its own, and the effort of its measurement."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import hocket
from hocket.profiling.measure.background_load import usable_cores, usual_neighbours
from hocket.training.launch.worker_spec import JobSpec
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes
from hocket.util.schema import read_as

BUDGET_S = 3.0
"""Seconds to time layers, at most about; a small model reaches the most iterations in a fraction of it."""
ROUNDS = 2
"""Rounds through the microbatch sizes; a large model takes the least iterations of each, whatever the budget."""
_SIZES = 4


@dataclass(frozen=True)
class ProfileRequest:
    """Request for a profile of a job on this machine's processor.

    Attributes:
        job: the job.
        workers: workers of the planned run.
        threads: threads of each worker.
        budget_s, rounds: approximate seconds to time layers, and rounds through the microbatch sizes.
        folder: folder with kept profiles; empty if none is kept.
        written: folder for a new profile.
        again: True to measure even if a profile is kept.
    """

    job: JobSpec
    workers: int
    threads: int = 1
    budget_s: float = BUDGET_S
    rounds: int = ROUNDS
    folder: str = ""
    written: str = ""
    again: bool = False

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    @property
    def neighbours(self) -> int:
        """Busy processes during the measurement: the other workers, as far as there are cores for them."""
        return min(usual_neighbours(threads=self.threads), self.workers - 1)

    @classmethod
    def read(cls, path: str | Path) -> "ProfileRequest":
        """Read a request file (JSON); unknown keys are refused.

        Raises:
            InputError: there is no such file, or its text is no valid request.
        """
        return read_as(cls, parse_json(read_bytes(path), str(path)), str(path))


def sizes_to_measure(batch_size: int, workers: int) -> tuple[int, ...]:
    """Choose microbatch sizes that plans for some workers can use, ascending.

    Each divides the batch, and a worker's share of the batch if that is a whole number. The largest is at most this
    share. From one to the next, the size about doubles.
    """
    share = max(1, batch_size // workers)
    whole = share if batch_size % workers == 0 else batch_size
    found: list[int] = []
    for size in range(share, 0, -1):
        if whole % size == 0 and (not found or 2 * size <= found[-1]) and len(found) < _SIZES:
            found.append(size)
    return tuple(reversed(found))


def machine() -> dict[str, Any]:
    """Describe the processor and memory of this machine; measurements hold for machines with the same description."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def versions() -> dict[str, str]:
    """Return the versions of torch and of Hocket, without importing torch."""
    from importlib.metadata import version

    return {"torch": version("torch"), "hocket": hocket.__version__}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
