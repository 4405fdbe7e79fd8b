"""Collector: combines the workers' reports into steps and a summary.

It has no torch and no I/O. A report is a small dictionary from JSON. `event` is its kind:

    start       first, steps, checkpoint, callbacks, norms, tokens, evaluates, peak_step_s, at_s: from worker 0, when it
                knows the first step
    loss        step, microbatch, sum, weight, samples, lr, at_s: one microbatch, from a worker of the last stage
    norm        step, norm: from worker 0, the norm of all gradients of a step
    evaluation  step, loss, metrics, samples, evaluation_s, at_s: from worker 0, after an evaluation
    note        text: from worker 0, a message for the user
    not_finite  step, text, kind, halt: from a worker with a loss or gradient that is nan or infinite
    saved       step, path, at_s: from worker 0, when a checkpoint is written
    done        steps, iteration_s, warm_steps, queued_share, saving_s, skipped, optimizer, dtype, device_type,
                peak_memory_bytes, stopped, swaps, collectives, loss_scale: the last report of every worker
    error       see failures.py

start: `callbacks` is True if the job has callbacks, `norms` if each step has a report `norm`, and `tokens` if loss weights
count tokens. `evaluates` are the names of the figures of evaluations, if the job has any. `peak_step_s` are the seconds
of a step at the peak rates of the devices, if these are known. `at_s` is always the time of the report, in seconds since
1970.

loss: `microbatch` is its number in the step, `sum` is its loss times its weight, and `lr` are the step's learning rates
by parameter group.

not_finite: `kind` is "warning", "skipped" (the update was skipped), "overflow" (the same, in float16) or "halt". With
"halt", `halt` is True: all workers finish the microbatches in flight, and then search the operation that computed the
first nan or infinite number.

done: `RunSummary` (listener.py) explains the keys. `skipped` is the number of skipped updates, `stopped` is True if the
run ended early on request, and `swaps` are sums over this worker's copies between device and host memory (`LinkSums`).
`collectives` counts those of the tensor-parallel group inside forwards and backwards.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from statistics import median
from typing import Any

from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Plan
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.runner import CallbackRunner
from hocket.training.callbacks.step_info import StepInfo
from hocket.training.worker.monitor.listener import Listener, RunSummary, best_of
from hocket.training.worker.monitor.step_reports import StepReports, number

Event = Mapping[str, Any]


def plain(event: Event) -> dict[str, Any]:
    """Convert nan and infinity in a report to None, which becomes JSON's null."""
    return {key: _plain(value) for key, value in event.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


class Collector:
    """Receives the reports of all workers, in any order.

    Attributes:
        checkpoint: path of the newest checkpoint; None if there is none.
        checkpoint_steps: number of steps trained when it was written; None if there is none.
        done: last report of each worker, by rank.
    """

    def __init__(self, plan: Plan, listener: Listener, callbacks: CallbackRunner | None = None) -> None:
        self._plan, self._listener, self._callbacks = plan, listener, callbacks or CallbackRunner()
        self._steps: dict[int, StepReports] = {}
        self._end = 0
        self._norms = self._tokens = False
        self._peak_step_s: float | None = None
        # Of the start or newest step, and of the newest checkpoint or evaluation.
        self._times_s: tuple[float, ...] = ()
        self._evaluates: tuple[str, ...] = ()
        self._waiting: list[Event] = []  # evaluations after steps with losses that are not here yet
        self._evaluations: list[EvaluationInfo] = []
        self._next: int | None = None
        self._losses: list[float] = []
        self._odd: set[tuple[str, int | None]] = set()
        self.checkpoint: str | None = None
        self.checkpoint_steps: int | None = None
        self.done: dict[int, Event] = {}

    @property
    def halted(self) -> bool:
        """True if a callback has failed, so that all workers have to stop."""
        return self._callbacks.failure is not None

    def take(self, rank: int, event: Event) -> None:
        """Process one report of one worker."""
        match event.get("event"):
            case "start":
                self._next, self._end = int(event["first"]), int(event["steps"])
                self._norms, self._tokens = bool(event.get("norms")), bool(event.get("tokens"))
                self._evaluates = tuple(event.get("evaluates", ()))
                self._times_s = (float(event["at_s"]),) if "at_s" in event else ()
                self._peak_step_s = event.get("peak_step_s")
                predicted = self._plan.predicted.iteration_s if self._plan.predicted else None
                self._listener.started(self._next, self._end, predicted, self._peak_step_s)
                self.checkpoint = event.get("checkpoint")
                self.checkpoint_steps = self._next if self.checkpoint is not None else None
                self._callbacks.start(self._known(self._next), bool(event.get("callbacks")))
                self._emit()
            case "loss":
                self._steps.setdefault(int(event["step"]), StepReports()).add(event)
                self._emit()
            case "norm":
                self._steps.setdefault(int(event["step"]), StepReports()).gradient_norm = number(event["norm"])
                self._emit()
            case "evaluation":
                self._waiting.append(event)
                self._times_s = (*self._times_s[:1], float(event["at_s"]))
                self._emit()
            case "not_finite":
                # Several workers may report the same update; only the first report is shown. A warning is given once in
                # a run: bad weights soon make every loss bad, and a later warning would name innocent samples.
                kind = str(event["kind"])
                told = kind, None if kind == "warning" else int(event["step"])
                if told not in self._odd:
                    self._odd.add(told)
                    self._listener.note(str(event["text"]))
            case "note":
                self._listener.note(str(event["text"]))
            case "saved":
                self.checkpoint, self.checkpoint_steps = str(event["path"]), int(event["step"])
                self._listener.saved(self.checkpoint_steps, self.checkpoint)
                if "at_s" in event:
                    self._times_s = (*self._times_s[:1], float(event["at_s"]))
                samples = self.checkpoint_steps * self._plan.batch_size
                self._callbacks.checkpoint(
                    StepInfo(self.checkpoint_steps, self._end, samples, checkpoint=self.checkpoint)
                )
            case "done":
                self.done[rank] = event

    def stopped_at_once(self, folder: str | None) -> str:
        """Return the message for a run that ends without waiting for its workers.

        Arguments:
            folder: folder of checkpoints, if any.
        """
        where = f"after step {self._next}" if self._next else "before the first step was done"
        if folder is None:
            return f"stopped {where}; nothing was saved, because no --checkpoint DIR was given"
        if self.checkpoint is None:
            return f"stopped at once {where}; no checkpoint was made yet"
        return f"stopped at once {where}; the newest checkpoint is {self.checkpoint}; --resume goes on"

    def _emit(self) -> None:
        """Pass complete steps to the listener, in order.

        No step is passed on before the first step's number is known.
        """
        batch = self._plan.batch_size
        if self._next is None:
            return
        self._evaluated()
        while (found := self._steps.get(self._next)) is not None and found.samples >= batch:
            if self._norms and found.gradient_norm is None:
                return
            del self._steps[self._next]
            self._next += 1
            self._losses.append(found.loss)
            line: dict[str, Any] = {"step": self._next, "loss": found.loss, "samples": self._next * batch}
            if found.lr is not None:
                line["lr"] = found.lr
            if found.gradient_norm is not None:
                line["gradient_norm"] = found.gradient_norm
            if self._tokens:
                line["tokens"] = round(found.weight)
            self._listener.step(plain(line))
            self._callbacks.step(self._info(self._next, found))
            self._evaluated()

    def _evaluated(self) -> None:
        """Pass evaluations on, after the steps before them."""
        while self._waiting and self._next is not None and int(self._waiting[0]["step"]) <= self._next:
            event = self._waiting.pop(0)
            step, loss = int(event["step"]), number(event["loss"])
            best = best_of([*self._evaluations, EvaluationInfo(step, self._end, 0, loss)])
            info = EvaluationInfo(
                step,
                self._end,
                step * self._plan.batch_size,
                loss,
                {name: number(value) for name, value in event["metrics"].items()},
                best.loss,
                best.step,
                float(event["evaluation_s"]),
            )
            self._evaluations.append(info)
            self._listener.evaluated(info)
            self._callbacks.evaluation(info)

    def _known(self, step: int) -> StepInfo:
        """Return what is known of a step without its reports."""
        samples = step * self._plan.batch_size
        return StepInfo(step, self._end, samples, checkpoint=self.checkpoint, evaluates=self._evaluates)

    def _info(self, step: int, found: StepReports) -> StepInfo:
        """Return what callbacks see of a complete step."""
        took_s = None
        if found.at_s is not None:
            # A checkpoint or an evaluation may be reported later than steps that came after it.
            before = [at_s for at_s in self._times_s if at_s < found.at_s]
            took_s = found.at_s - max(before) if before else None
            self._times_s = (found.at_s, *self._times_s[1:])
        known = found.info(self._known(step), self._plan.batch_size, took_s, self._tokens)
        return replace(known, mfu=self._peak_step_s / took_s) if took_s and self._peak_step_s else known

    def _told(self, name: str) -> Iterator[str]:
        """Yield one field of the workers' last reports as text, in order of rank."""
        return (str(event[name]) for _, event in sorted(self.done.items()) if name in event)

    def summary(self, devices: tuple[int, ...]) -> RunSummary:
        """Summarize the run, when every worker is done.

        Arguments:
            devices: device of each worker in the plan, by rank.
        """
        paces = [float(event["iteration_s"]) for event in self.done.values() if event["iteration_s"] is not None]
        # In the steady state all workers have the same pace. The median is least disturbed by noise.
        iteration_s = median(paces) if paces else None
        predicted, tensor = self._plan.predicted, self._plan.tensor
        peaks = predicted.peak_memory_bytes if predicted else {}
        return RunSummary(
            steps=max(int(event["steps"]) for event in self.done.values()),
            losses=tuple(self._losses),
            evaluations=tuple(self._evaluations),
            iteration_s=iteration_s,
            samples_per_s=self._plan.batch_size / iteration_s if iteration_s else None,
            predicted_iteration_s=predicted.iteration_s if predicted else None,
            mfu=self._peak_step_s / iteration_s if iteration_s and self._peak_step_s else None,
            predicted_peak_memory_bytes={d: peaks[d // tensor] for d in devices if d // tensor in peaks},
            peak_memory_bytes={devices[rank]: int(e["peak_memory_bytes"]) for rank, e in sorted(self.done.items())},
            stopped=any(event["stopped"] for event in self.done.values()),
            warm_steps=min((float(event.get("warm_steps", 0)) for event in self.done.values()), default=0.0),
            queued_share=max((float(event.get("queued_share", 0)) for event in self.done.values()), default=0.0),
            saving_s=max((float(event.get("saving_s", 0)) for event in self.done.values()), default=0.0),
            optimizer=next((name for name in self._told("optimizer") if name), ""),
            dtype=next(self._told("dtype"), ""),
            device_types=tuple(dict.fromkeys(self._told("device_type"))),
            checkpoint=self.checkpoint,
            checkpoint_steps=self.checkpoint_steps,
            skipped=max((int(event.get("skipped", 0)) for event in self.done.values()), default=0),
            loss_scale=next((float(e["loss_scale"]) for e in self.done.values() if e.get("loss_scale")), None),
            swaps={devices[rank]: LinkSums(**e["swaps"]) for rank, e in sorted(self.done.items()) if e.get("swaps")},
        )
