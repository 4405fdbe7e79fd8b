"""Evaluations of a run, between its segments: their figures over all workers, as events."""

import time
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from hocket.profiling.data.evaluation import LOSS
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.evaluation.evaluator import Evaluator, evaluation_executable
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.progress.heartbeat import Heartbeat
from hocket.runtime.stage.executable import Executable
from hocket.training.worker.prepared import Prepared
from hocket.util.units import show_count

Report = Callable[[dict[str, Any]], None]


class Evaluations:
    """Evaluations of one run. Every worker has them, and makes the same calls.

    Attributes:
        names: names of the figures of an evaluation: "loss", and the metrics.
        every: steps between two evaluations; None for one at the end.
        loss: loss of the newest evaluation; nan before the first.
        improved: True if it is lower than all before.
    """

    def __init__(self, made: Prepared, board: KVExchange, clock: Callable[[], float] = time.perf_counter) -> None:
        """Prepare the evaluations of a job with `Job.evaluate`, before the engine is created.

        Arguments:
            board: exchange of JSON values among the workers.
            clock: current time in seconds.

        Raises:
            InputError: the model, a metric or the plan cannot be evaluated.
        """
        evaluation = made.job.evaluate
        assert evaluation is not None
        self.names = (LOSS, *evaluation.metrics)
        self._samples, self.every = len(evaluation.data), evaluation.every
        self._stop_after, self._keeps_best = evaluation.stop_after, evaluation.keep_best
        self._best: tuple[float, int] | None = None  # loss and step
        self._in_vain = 0  # newest evaluations without a lower loss
        self.loss, self.improved = float("nan"), False
        self._board, self._clock, self._counts = board, clock, made.member == 0
        self._executable: Executable = evaluation_executable(
            made.executable, made.plan.strategy, made.plan.microbatch_size
        )
        self._evaluator: Evaluator | None = None

    def begin(self, engine: Worker, progress: Heartbeat) -> None:
        """Take the engine of the training; a collective call.

        Arguments:
            progress: the worker's progress page.
        """
        self._evaluator = Evaluator(engine, self._executable, progress)

    @property
    def peak_memory_bytes(self) -> int:
        """Peak bytes of tensors on this worker's device during evaluations."""
        return self._evaluator.peak_memory_bytes if self._evaluator is not None else 0

    def run(self, step: int, speak: Report) -> None:
        """Evaluate the newest weights, and report the figures; a collective call.

        Arguments:
            step: number of steps trained.
            speak: called with an event "evaluation" (training/worker/monitor/collector.py).
        """
        assert self._evaluator is not None
        began_s = self._clock()
        weight, sums = self._evaluator.run(step)
        # All ranks of a tensor-parallel group have the same losses.
        found = self._board.share([weight, *map(_plain, sums)] if self._counts else [0.0, *([0.0] * len(sums))])
        figures = dict(zip(self.names, _means(found), strict=True))
        self._judge(figures.pop(LOSS), step)
        speak({
            "event": "evaluation", "step": step, "loss": _plain(self.loss), "samples": self._samples,
            "metrics": {name: _plain(value) for name, value in figures.items()},
            "evaluation_s": self._clock() - began_s, "at_s": time.time(),
        })  # fmt: skip

    def _judge(self, loss: float, step: int) -> None:
        """Compare the loss of an evaluation with the best one; all workers have the same losses."""
        self.loss, self.improved = loss, isfinite(loss) and (self._best is None or loss < self._best[0])
        self._in_vain = 0 if self.improved else self._in_vain + 1
        if self.improved:
            self._best = loss, step

    @property
    def saves(self) -> bool:
        """True if a checkpoint of the newest evaluation is wanted, because it is the best so far."""
        return self._keeps_best and self.improved

    @property
    def kept_loss(self) -> float | None:
        """Loss of the newest evaluation for its checkpoint; None if the run does not keep the best one."""
        return _plain(self.loss) if self._keeps_best else None

    @property
    def enough(self) -> str:
        """Reason to end the run, because evaluations no longer improve; empty to go on."""
        if self._stop_after is None or self._in_vain < self._stop_after:
            return ""
        best = f"; the best is {self._best[0]:.4f}, after step {self._best[1]}" if self._best is not None else ""
        return f"the eval loss has not improved in {show_count(self._in_vain, 'evaluation')}{best}"


def _means(found: Sequence[Sequence[float | None]]) -> list[float]:
    """Weighted means over all workers, from their sums, in the order of ranks.

    Arguments:
        found: for each worker, the sum of weights and the weighted sum of each figure; None is not finite.
    """
    columns = [[float("nan") if value is None else value for value in column] for column in zip(*found, strict=True)]
    weight = sum(columns[0])
    return [sum(column) / weight if weight else float("nan") for column in columns[1:]]


def _plain(value: float) -> float | None:
    """Convert a number for JSON: nan and infinity are None."""
    return value if isfinite(value) else None
