"""Options of `hocket.train` and `hocket train`.

No torch.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hocket.errors import InputError, nearest
from hocket.training.calibrate.buckets.random_buckets import BucketSampling

DEVICES = ("auto", "cpu", "cuda")
ON_NAN = ("stop", "skip", "go")
# Exit code of a run that was asked to stop, saved or not.
INTERRUPTED = 130
_MAX_THREADS = 1024  # of a worker: with some more no library can start them


@dataclass(frozen=True)
class Options:
    """Options of a training run; every field can be written as JSON.

    Attributes:
        steps: train until so many steps are done in all, those before a resume included.
        checkpoint: folder of checkpoints; every: steps between two of them (None: a tenth of what is to do), rounded up to
            what the program can express; keep: how many of the newest stay.
        resume: True: go on from the newest whole checkpoint, of which there must be one. "auto": start at step 0 where the folder has no
            checkpoint (damaged ones count: where there are only such, neither goes on).
        on_nan: what a loss or gradient that is nan or infinite does: "stop" ends the run, with the place where it arose; "skip" leaves
            the update out on all devices; "go" goes on, with one warning. Weights that are not finite are never saved.
        device: where tensors live: auto (as the plan's cluster says), cpu or cuda.
        threads: of each worker on a CPU; pin: keep each local worker on
            cores of its own; unasked where they need more than half of the cores.
        silence_s: a worker whose heart has not beaten for so long is lost; stall_s: so are workers that all have not
            moved to another instruction for so long.
        trace: file for the measured trace.
        drawing: train with buckets and threads drawn at random instead, and leave what was noted in the file `notes` (run.py).
        batch_size: of the job instead of its own, where what is trained is thrown away (measure_waves.py).
        debug: show the whole traceback of a worker's error, and not only the frames of the job's own code.
        host_link_bytes_per_s: of a machine, each way: swaps of all its workers together wait as if its link to its devices were no
            faster (host_link.py).
    """

    steps: int
    checkpoint: str | None = None
    every: int | None = None
    keep: int = 3
    resume: bool | Literal["auto"] = False
    on_nan: str = "stop"
    device: str = "auto"
    threads: int = 1
    pin: bool | None = None
    silence_s: float = 60.0
    stall_s: float = 1800.0
    trace: str | None = None
    drawing: BucketSampling | None = None
    notes: str | None = None
    batch_size: int | None = None
    debug: bool = False
    host_link_bytes_per_s: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for name in ("steps", "keep", "threads"):
            if getattr(self, name) < 1:
                raise InputError(name, str(getattr(self, name)), ">= 1")
        if self.threads > _MAX_THREADS:
            raise InputError("threads", str(self.threads), f"at most {_MAX_THREADS}")
        if self.every is not None and self.every < 1:
            raise InputError("every", str(self.every), ">= 1 step")
        if self.every is not None and self.checkpoint is None:
            raise InputError("every", str(self.every), "a folder for checkpoints", "Give --checkpoint DIR as well.")
        if self.resume not in (True, False, "auto"):
            raise InputError("resume", repr(self.resume), "true, false or auto", nearest(str(self.resume), ("auto",)))
        if self.resume and self.checkpoint is None:
            raise InputError("resume", "no folder", "the folder of the checkpoints", "Give --checkpoint DIR as well.")
        if self.on_nan not in ON_NAN:
            raise InputError("on_nan", repr(self.on_nan), f"one of {', '.join(ON_NAN)}", nearest(self.on_nan, ON_NAN))
        if self.device not in DEVICES:
            raise InputError("device", repr(self.device), f"one of {', '.join(DEVICES)}", nearest(self.device, DEVICES))
        if self.host_link_bytes_per_s is not None and not self.host_link_bytes_per_s > 0:
            raise InputError("host_link_bytes_per_s", str(self.host_link_bytes_per_s), "> 0 bytes a second")
        for name in ("silence_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise InputError(name, str(getattr(self, name)), "> 0 seconds")
