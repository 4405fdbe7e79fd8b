"""Failures: a worker's error report, and the first cause of several failures.

If a worker dies, the others lose their connections a moment later. Their errors are consequences. They are marked
`peer`, and are shown only if no other cause is known. This file does not import torch.
"""

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket import errors
from hocket.errors import HocketError, InputError, WorkerLost
from hocket.profiling.checks.user_frames import is_own
from hocket.training.worker.options import Options

# Error texts of gloo, NCCL and the stores for a lost peer.
_BROKEN = re.compile(
    r"connection (closed|reset|refused|was|lost)|broken pipe|timed? ?out|timeout|gloo|nccl|socket|connectfullmesh"
    r"|key not found|peer|remote process",
    re.IGNORECASE,
)
_MAX_CHARACTERS = 20_000


def advice(options: Options) -> str:
    """Say how a run that lost a worker is begun again."""
    if options.drawing is not None:
        return "start again"
    if options.checkpoint is None:
        return "start again, with --checkpoint DIR to be able to resume"
    made = any(Path(options.checkpoint).glob("step-*"))
    return "resume with --resume" if made else "no checkpoint was made yet: start again"


@dataclass(frozen=True)
class Failure:
    """Error with which one worker ended.

    Attributes:
        rank: rank of the worker.
        at_s: time of the failure, in seconds: on the machine's monotonic clock for local workers, since 1970 under
            torchrun.
        peer: True if the worker only lost its connection to another worker, so that the cause is elsewhere.
        error: error to raise.
    """

    rank: int
    at_s: float
    peer: bool
    error: HocketError


def describe(error: BaseException, at_s: float, place: str, debug: bool = False) -> dict[str, Any]:
    """Convert an error to a report for JSON.

    Arguments:
        at_s: time of the error, in seconds (see `Failure`).
        place: position of the worker, from `Heartbeat.place`.
        debug: True to send the whole traceback; False for only the frames of the job's code.
    """
    found: dict[str, Any] = {"event": "error", "kind": type(error).__name__, "at_s": at_s, "place": place}
    if isinstance(error, InputError):
        return found | {"input": [error.place, error.found, error.expected, error.next_step], "peer": False}
    if isinstance(error, HocketError):
        return found | {"text": str(error), "peer": isinstance(error, WorkerLost)}
    text, trace = described_exception(error, debug)
    peer = isinstance(error, RuntimeError | OSError) and bool(_BROKEN.search(text))
    return found | {"text": text, "trace": trace, "peer": peer}


def described_exception(error: BaseException, debug: bool) -> tuple[str, str]:
    """Return the type and message of an exception, and its traceback.

    Arguments:
        debug: True for the whole traceback; False for only the frames of the user's code.
    """
    shown = traceback.TracebackException.from_exception(error)
    if not debug:
        _keep_own(shown)
    text = f"{type(error).__name__}: {error}"
    return text[:_MAX_CHARACTERS], "".join(shown.format())[-_MAX_CHARACTERS:]


def understand(rank: int, event: Mapping[str, Any], name: str = "") -> Failure:
    """Convert a worker's report to a failure.

    Arguments:
        event: report from `describe`.
        name: name of the worker in messages; by default its rank.
    """
    at_s, peer = float(event["at_s"]), bool(event["peer"])
    kind = getattr(errors, str(event["kind"]), None)
    if "input" in event:
        refused = kind if isinstance(kind, type) and issubclass(kind, InputError) else InputError
        return Failure(rank, at_s, peer, refused(*(str(part) for part in event["input"])))
    if "trace" not in event:
        ours = kind if isinstance(kind, type) and issubclass(kind, HocketError) else WorkerLost
        return Failure(rank, at_s, peer, ours(str(event["text"])))
    text = f"{name or f'worker {rank}'} failed {event['place']}: {event['text']}"
    # Repeat the first line below a long traceback, where people look first.
    last = text.strip().splitlines()[0]
    return Failure(rank, at_s, peer, WorkerLost(f"{text}\n{str(event['trace']).rstrip()}\n{last}"))


def _keep_own(shown: traceback.TracebackException) -> None:
    """Keep only frames of the user's code, in the error and all its causes.

    If there is no such frame, all frames are kept.
    """
    chain, at = [shown], 0
    while at < len(chain):
        context = None if chain[at].__suppress_context__ else chain[at].__context__
        chain += [cause for cause in (chain[at].__cause__, context) if cause is not None]
        at += 1
    own = [[frame for frame in part.stack if is_own(frame.filename)] for part in chain]
    if any(own):
        for part, frames in zip(chain, own, strict=True):
            part.stack = traceback.StackSummary.from_list(frames)


def first_cause(failures: list[Failure]) -> Failure:
    """Return the earliest failure that is not a consequence, else the earliest."""
    return min(failures, key=lambda failure: (failure.peer, failure.at_s, failure.rank))
