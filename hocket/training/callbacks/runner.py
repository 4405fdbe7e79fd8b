"""Callback runner: calls callbacks in the process that shows the run.

The calls are made by a thread of their own, in the order of the run. So a slow callback delays neither the training nor
the heartbeats. An exception of a callback stops the run as Ctrl-C does: all workers stop after the same period, and
save a checkpoint if there is a folder for it. This file does not import torch.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.errors import CallbackFailed, HocketError
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.step_info import StepInfo
from hocket.training.launch.failures import described_exception

_LOOK_S = 0.1
# Wait for callbacks that still work after the run has failed.
_END_S = 30.0
# Newest steps that are kept, because a checkpoint may be reported later than the steps after it.
_KEPT = 256


class CallbackRunner:
    """Calls the callbacks of one run.

    Attributes:
        failure: error of the first callback that raised an exception; None if there is none.
    """

    def __init__(self, callbacks: Sequence[Any] = (), job: Job | str | Path | None = None, debug: bool = False) -> None:
        """Prepare the callbacks of a run; nothing is called yet.

        Arguments:
            callbacks: further callbacks, which are called after the callbacks of the job.
            job: job, or path of its file, with callbacks; None to call no callbacks of the job. A file is loaded only
                if a worker reports that its job has callbacks.
            debug: True to show whole tracebacks of callbacks; False for only the frames of the user's code.
        """
        self._given, self._job, self._debug = tuple(callbacks), job, debug
        self._queue: queue.SimpleQueue[tuple[str, StepInfo | EvaluationInfo]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._infos: dict[int, StepInfo] = {}
        self._early: StepInfo | None = None
        self._last: StepInfo | None = None
        self.failure: HocketError | None = None

    def __enter__(self) -> "CallbackRunner":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the callbacks of a run that failed."""
        if error is not None and self._ends(str(error) or type(error).__name__):
            assert self._thread is not None
            self._thread.join(_END_S)

    def use(self, job: Job) -> None:
        """Take the callbacks of a loaded job instead of loading its file again."""
        if self._job is not None:
            self._job = job

    # -- what the collector calls

    def start(self, info: StepInfo, job_has_callbacks: bool) -> None:
        """Begin the run; `on_start`."""
        job = self._job
        if not (job.callbacks if isinstance(job, Job) else job_has_callbacks):
            job = None
        if self._thread is not None or not (self._given or job is not None):
            return
        self._last = info
        self._thread = threading.Thread(target=self._run, args=(job,), name="callbacks", daemon=True)
        self._thread.start()
        self._queue.put(("on_start", info))

    def step(self, info: StepInfo) -> None:
        """Call `on_step`; and `on_checkpoint`, if the checkpoint of this step was reported before."""
        if self._thread is None:
            return
        self._last = self._infos[info.step] = info
        self._infos.pop(info.step - _KEPT, None)
        self._queue.put(("on_step", info))
        if self._early is not None and self._early.step == info.step:
            self._queue.put(("on_checkpoint", replace(info, checkpoint=self._early.checkpoint)))
            self._early = None

    def evaluation(self, info: EvaluationInfo) -> None:
        """Call `on_evaluation`; `step` was called before with the step of the evaluation."""
        if self._thread is not None:
            self._queue.put(("on_evaluation", info))

    def checkpoint(self, info: StepInfo) -> None:
        """Call `on_checkpoint`, after `on_step` of the same step.

        Arguments:
            info: step and path of the checkpoint.
        """
        if self._thread is None or self._last is None:
            return
        self._last = replace(self._last, checkpoint=info.checkpoint)
        if info.step > self._last.step:
            self._early = info
        else:
            known = self._infos.get(info.step, info)
            self._queue.put(("on_checkpoint", replace(known, checkpoint=info.checkpoint)))

    # -- what the launchers call

    def finish(self, error: str | None = None) -> None:
        """Call `on_end`, and wait until all calls have returned.

        Arguments:
            error: reason why the run was stopped, if it was.

        Raises:
            HocketError: a callback raised an exception in this run.
        """
        if self._ends(error):
            assert self._thread is not None
            while self._thread.is_alive():  # not one long wait, in which Ctrl-C would not be noticed everywhere
                self._thread.join(_LOOK_S)
        if self.failure is not None:
            raise self.failure

    def _ends(self, error: str | None) -> bool:
        """Request `on_end`, once; return False if there is nothing to wait for."""
        if self._thread is None or self._last is None:
            return False
        last, self._last = self._last, None
        if self._early is not None:
            last = replace(last, checkpoint=self._early.checkpoint)
        self._queue.put(("on_end", replace(last, error=error)))
        return True

    # -- the thread

    def _run(self, job: Job | str | Path | None) -> None:
        callbacks: list[Any] = []
        try:
            if job is not None:
                callbacks += (job if isinstance(job, Job) else load_job(job)).callbacks
        except HocketError as error:
            self.failure = error
        callbacks += self._given
        while True:
            method, info = self._queue.get()
            for callback in tuple(callbacks):
                called: Callable[[Any], Any] | None = getattr(callback, method, None)
                if called is None or (self.failure is not None and method != "on_end"):
                    continue
                told = info
                if self.failure is not None and isinstance(info, StepInfo):
                    told = replace(info, error=str(self.failure).splitlines()[0])
                try:
                    called(told)
                except BaseException as error:
                    callbacks.remove(callback)
                    self.failure = self.failure or self._failed(callback, method, info.step, error)
            if method == "on_end":
                return

    def _failed(self, callback: Any, method: str, step: int, error: BaseException) -> CallbackFailed:
        name = type(callback).__name__
        text = f"callback {name} failed in {method} at step {step}: "
        if isinstance(error, HocketError):
            return CallbackFailed(f"{text}{error}")
        said, trace = described_exception(error, self._debug)
        # Repeat the first line below a long traceback, where people look first.
        first = (text + said).strip().splitlines()[0]
        return CallbackFailed(f"{text}{said}\n{trace.rstrip()}\n{first}")
