"""Refusals of candidates: exceptions, bugs and missing memory.

Rules of this file: one candidate that fails never ends the search.
- The input does not suit the candidate (InputError): it is refused, like a candidate that does not fit.
- Any other error, including an invalid program of Hocket's own, is a bug. The candidate is refused, and the user is
  told, since it may have been the best.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import InputError, ProgramError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.planning.search.result import Refused
from hocket.program.program import StageShape
from hocket.strategies.base.search_space import Candidate
from hocket.strategies.base.strategy import config as config_of
from hocket.util.units import show_shortage

_PACKAGE = Path(__file__).parents[2]
_MOST = 400  # characters of a bug's text, since the error of an invalid program contains its diagram


def failed(strategy: str, config: str, error: Exception, swaps: bool = False) -> Refused:
    """Refuse a candidate that raised an error.

    The error may come from the candidate's stages, program, memory proof or simulation.

    Raises:
        MemoryError: re-raised, since the whole machine is short of memory, not one candidate.
    """
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, RefusedError):
        return Refused(strategy, config, f"{error.place}: {error.found}" if error.found else str(error), swaps=swaps)
    if isinstance(error, InputError) and not isinstance(error, ProgramError):
        return Refused(strategy, config, str(error), swaps=swaps)
    words = " ".join(str(error).split())
    words = words if len(words) <= _MOST else f"{words[:_MOST]}..."
    return Refused(strategy, config, f"{type(error).__name__}{_where(error)}: {words}", swaps=swaps, bug=True)


def _where(error: Exception) -> str:
    """Place of the innermost Hocket frame, as ' at planning/predict/predict.py:12'.

    Empty if no frame is in the package.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _PACKAGE in Path(frame.filename).parents:
            return f" at {Path(frame.filename).relative_to(_PACKAGE).as_posix()}:{frame.lineno}"
    return ""


@dataclass(frozen=True)
class RefusalReason:
    """Reason to refuse a candidate, with the missing memory if that is the reason."""

    text: str
    missing_bytes: float = 0.0


def too_large(cluster: Cluster, peaks: Mapping[int, float], how: str) -> RefusalReason | None:
    """Reason with the device that lacks most memory; None if all devices have enough.

    Arguments:
        peaks: bytes that each device needs.
        how: words before these bytes, such as "at least ".
    """
    capacity = {device: cluster.capacity_bytes(device) for device in sorted(peaks)}
    device = max(capacity, key=lambda d: peaks[d] - capacity[d])
    missing = peaks[device] - capacity[device]
    if missing <= 0:
        return None
    needed, available = show_shortage(peaks[device], capacity[device])
    return RefusalReason(f"device {device} needs {how}{needed} and has {available}", missing)


def label(shapes: tuple[StageShape, ...], candidate: Candidate) -> str:
    """Short label of a candidate, such as '2-2 b4 recompute'."""
    recompute = " recompute" if any(stage.recompute for stage in candidate.stages) else ""
    options = "".join(f" {key}={value}" for key, value in candidate.options.items())
    return f"{configuration(shapes)} b{candidate.microbatch_size}{recompute}{options}"


def configuration(shapes: tuple[StageShape, ...]) -> str:
    """Configuration with its sharding; FSDP units already imply full sharding."""
    found = config_of(shapes)
    return found if found.endswith("units") else found + next((f" shard={s.shard}" for s in shapes if s.sharded), "")
