"""Options of `hocket.train` and `hocket train`; no torch."""

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal

from hocket.errors import InputError, nearest
from hocket.profiling.data.source import check_loaders
from hocket.training.calibrate.buckets.random_buckets import BucketSampling

DEVICES = ("auto", "cpu", "cuda")
ON_NAN = ("stop", "skip", "go")
# Exit code of a run that was stopped, with or without a saved checkpoint.
INTERRUPTED = 130
_MAX_THREADS = 1024  # per worker; with many more, libraries fail to start them


@dataclass(frozen=True)
class Options:
    """Options of a training run; every field can be written as JSON.

    Attributes:
        steps: total number of steps, including steps before a resume.
        checkpoint: folder of checkpoints; None for no checkpoints.
        every: steps between two checkpoints, rounded up to a number that the program supports. None for a tenth of the
            remaining steps.
        keep: number of newest checkpoints to keep.
        async_save: True to write checkpoints while the next steps run; the state is copied to host memory first. Plans that
            swap write them before the next step, because they need the hosts' memory.
        resume: True to resume from the newest undamaged checkpoint; there must be one. "auto" to start at step 0 if the
            folder has no checkpoint. If all checkpoints are damaged, both refuse.
        weights: file of initial weights (safetensors, or a state dict of `torch.save`), or a Hugging Face folder; None for
            those of the job's model. A run that resumes has its checkpoint's weights.
        on_nan: reaction to a loss or gradient that is nan or infinite. "stop" ends the run and names the origin; "skip"
            skips the update on all devices; "go" continues, with one warning. Weights that are nan or infinite are
            never saved.
        device: torch device of tensors: auto (from the plan's cluster), cpu or cuda.
        threads: number of CPU threads of each worker.
        loaders: number of processes of each worker that read its samples ahead; 0 to read them in the worker. None for
            the plan's.
        pin: True to pin each local worker to its own cores. None to pin if the workers need more than half of the
            cores.
        silence_s: seconds without a heartbeat after which a worker counts as lost.
        stall_s: seconds without progress of any worker after which the run counts as lost.
        trace: file for the measured trace.
        drawing: settings to train with random gradient buckets instead, to measure overlap (calibrate/buckets/run.py).
        notes: file for the measurements of `drawing`.
        batch_size: replaces the job's batch size, for training that is discarded (measure_waves.py).
        debug: True to show whole tracebacks of workers' errors; False for only the frames of the job's code.
        host_link_bytes_per_s: bandwidth of a simulated host link, per machine and direction. Swaps of all workers of a
            machine share it (host_link.py).
    """

    steps: int
    checkpoint: str | None = None
    every: int | None = None
    keep: int = 3
    async_save: bool = True
    resume: bool | Literal["auto"] = False
    weights: str | None = None
    on_nan: str = "stop"
    device: str = "auto"
    threads: int = 1
    loaders: int | None = None
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

    @property
    def reads_weights(self) -> bool:
        """True if the weights of the first step may come from files."""
        return self.weights is not None or bool(self.resume)

    def __post_init__(self) -> None:
        for name in ("steps", "keep", "threads"):
            _check_count(name, getattr(self, name))
        if self.every is not None:
            _check_count("every", self.every)
        if self.threads > _MAX_THREADS:
            raise InputError("threads", str(self.threads), f"at most {_MAX_THREADS}")
        if self.loaders is not None:
            check_loaders(self.loaders)
        for name in ("checkpoint", "trace", "weights"):
            if getattr(self, name) == "":  # as a path, it is the working directory
                raise InputError(name, "an empty path", "a path, or None")
        if self.every is not None and self.checkpoint is None:
            found = f"{self.every}, without a folder for checkpoints"
            raise InputError("every", found, "a folder for checkpoints as well", "Give --checkpoint DIR as well.")
        if self.resume not in (True, False, "auto"):
            raise InputError("resume", repr(self.resume), "true, false or auto", nearest(str(self.resume), ("auto",)))
        if self.resume and self.checkpoint is None:
            expected = "the folder of the checkpoints to resume from"
            raise InputError("resume", "no --checkpoint DIR", expected, "Give --checkpoint DIR as well.")
        if self.on_nan not in ON_NAN:
            raise InputError("on_nan", repr(self.on_nan), f"one of {', '.join(ON_NAN)}", nearest(self.on_nan, ON_NAN))
        if self.device not in DEVICES:
            raise InputError("device", repr(self.device), f"one of {', '.join(DEVICES)}", nearest(self.device, DEVICES))
        for name in ("silence_s", "stall_s"):
            _check_amount(name, getattr(self, name), "seconds")
        if self.host_link_bytes_per_s is not None:
            _check_amount("host_link_bytes_per_s", self.host_link_bytes_per_s, "bytes a second")


def _check_count(name: str, value: Any) -> None:
    """Refuse a value that is not a whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(name, repr(value), "a whole number >= 1")


def _check_amount(name: str, value: Any, unit: str) -> None:
    """Refuse a value that is not a finite number above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < inf:
        raise InputError(name, repr(value), f"a finite number of {unit} > 0")
