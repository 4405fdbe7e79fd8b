"""Loaders: processes that read and stack the samples of one device ahead, in the order of its program.

They are the worker processes of a `torch.utils.data.DataLoader`. Its dataset reads whole microbatches with the job's own
`batch_at`, and its sampler is the list of positions that the device loads. So samples, seeds and errors are those of a
read in the worker itself. Each process reads every N-th microbatch, and N processes are at most 2 N microbatches ahead.
On CUDA, a thread of the worker copies them into pinned memory.

A loader ends with its worker, at once on Linux. Ctrl-C does not end it: its worker decides when to stop. A loader that
dies ends the run.
"""

import ctypes
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hocket import errors
from hocket.errors import InputError, LoaderLost
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Batch
from hocket.program.instruction import Kind
from hocket.program.program import Program
from hocket.runtime.stage.data_stream import Stream

_PR_SET_PDEATHSIG = 1

Place = tuple[int, int]
"""Position of a microbatch's first sample in the stream of samples, and number of its samples."""


def loads_of(program: Program, device: int, repeats: int) -> Iterator[tuple[int, int]]:
    """Yield (first microbatch, number of merged microbatches) of a device's loads, in the order of the program.

    All loads of a device are in one lane: the load lane, or the compute lane.

    Arguments:
        repeats: number of repetitions of the period.
    """
    parts = [(program.prologue, 0), *((program.period, r) for r in range(repeats)), (program.epilogue, repeats)]
    for lanes, repetition in parts:
        for (own, _), instructions in lanes.items():
            for one in instructions if own == device else ():
                if one.kind is Kind.LOAD:
                    yield one.index + repetition * program.stride, program.stages[one.stage].merged


class _Read(NamedTuple):
    """A microbatch, or the error of reading it: its class and arguments."""

    position: int
    batch: Batch
    refused: tuple[str, ...] = ()


class _Microbatches(Dataset[_Read]):
    """Microbatches of a job by their place."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getitem__(self, place: Place) -> _Read:
        position, count = place
        try:
            return _Read(position, self._job.batch_at(position, count))
        except InputError as error:  # DataLoader could not create it again from its text
            parts = (error.place, error.found, error.expected, error.next_step)
            return _Read(position, {}, (type(error).__name__, *parts))


class _SegmentPlaces(Sampler[Place]):
    """Places of a segment's microbatches, in the order in which they are loaded."""

    def __init__(self) -> None:
        self.places: Iterable[Place] = ()

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places)


class Loaders:
    """Loader processes of one worker.

    They are started at the first segment, and stay for all others.
    """

    def __init__(self, job: Job, count: int, device: torch.device, folder: str | None = None) -> None:
        """Prepare the loaders; no process is started yet.

        Arguments:
            job: the job, with the samples.
            count: number of processes, at least 1.
            device: device of the worker.
            folder: folder for temporary files of the processes; None for the system's. Processes that are killed leave
                files there.
        """
        self._places = _SegmentPlaces()
        self._batches: Iterator[_Read] | None = None
        parent = os.getpid()
        # The worker may be pinned to a core. Loaders may use all cores that the worker's parent process may use.
        cores = os.sched_getaffinity(os.getppid()) if hasattr(os, "sched_getaffinity") else set[int]()
        with _unwarned():
            self._loader: DataLoader[_Read] | None = DataLoader(
                _Microbatches(job),
                batch_size=None,
                sampler=self._places,
                num_workers=count,
                collate_fn=_unchanged,
                pin_memory=device.type == "cuda",
                worker_init_fn=lambda _: _become_loader(parent, cores, folder),
                multiprocessing_context="fork",  # jobs need not be picklable, and loaders use no device
                generator=torch.Generator(),  # otherwise a number is drawn from the worker's own generator
                persistent_workers=True,
            )

    def begin(self, places: Iterable[Place]) -> None:
        """Begin to read the microbatches of a segment. Those of an earlier segment are dropped."""
        self._places.places = places
        assert self._loader is not None
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGCHLD)
        with _unwarned():
            self._batches = iter(self._loader)
        if main and before is not None:
            # Torch's handler would raise the death of a loader anywhere in the main thread, also while an error is
            # reported. `take` notices it within 5 s.
            signal.signal(signal.SIGCHLD, before)

    def take(self, stream: Stream, microbatch: int, merged: int) -> Batch:
        """Return the next microbatch; wait until it is read.

        If a segment ends early, its epilogue loads other microbatches than were announced. They are read here.

        Arguments:
            stream: data of the segment.
            microbatch: the first microbatch.
            merged: number of microbatches that begin with this one.

        Raises:
            InputError: a sample cannot be read (see `Job.batch`).
            LoaderLost: a loader died.
        """
        if self._batches is not None:
            found = self._next(self._batches)
            if found is not None and found.position == stream.position(microbatch):
                if found.refused:
                    raise getattr(errors, found.refused[0], InputError)(*found.refused[1:])
                return found.batch
            self._batches = None
        return stream.batch(microbatch, merged)

    def close(self) -> None:
        """End the processes."""
        self._loader = self._batches = None

    @staticmethod
    def _next(batches: Iterator[_Read]) -> _Read | None:
        """Wait for the next microbatch; None at the end of a segment.

        Raises:
            LoaderLost: a process died.
        """
        try:
            return next(batches, None)
        except (RuntimeError, OSError, EOFError) as error:  # a dead process also closes its connections
            if str(error).startswith("Caught "):  # an error in a process that lives
                raise
            found = f"{type(error).__name__}: {error}".strip().rstrip(".")
            raise LoaderLost(
                f"a process that reads samples (--loaders) died: {found}. If you did not end it, the machine may have "
                "run out of memory: use fewer loaders"
            ) from error


def _unchanged(read: Any) -> Any:
    """Leave out torch's conversion of a microbatch to tensors: it has tensors."""
    return read


@contextmanager
def _unwarned() -> Iterator[None]:
    """Context without warnings about forks, and about more processes than cores."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _become_loader(parent: int, cores: set[int], folder: str | None) -> None:
    """Set up a loader process, which was just forked.

    Arguments:
        parent: process id of the worker.
        cores: cores that the process may use; empty for those of the worker.
        folder: folder for temporary files; None for the system's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)  # the worker's own; a signal here is none of the worker
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)
    if cores:
        os.sched_setaffinity(0, cores)
    if folder is not None:
        tempfile.tempdir = folder


def places_of(stream: Stream, loads: Iterable[tuple[int, int]]) -> Iterator[Place]:
    """Yield the places of loads in a segment's stream.

    Arguments:
        loads: first microbatch and number of merged microbatches of each load (`loads_of`).
    """
    return ((stream.position(m), stream.samples(m, merged)) for m, merged in loads)
