"""The order of calls of callbacks, whatever order the reports of the workers come in."""

from typing import Any

import pytest

from hocket.errors import CallbackFailed
from hocket.training.callbacks.runner import CallbackRunner
from hocket.training.callbacks.step_info import StepInfo
from hocket.training.worker.monitor.collector import Collector
from tests.system.tiny import Recorder, plan


class Calls:
    """A callback that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, StepInfo]] = []

    def on_start(self, info: StepInfo) -> None:
        """Keep the call."""
        self.calls.append(("start", info))

    def on_step(self, info: StepInfo) -> None:
        """Keep the call."""
        self.calls.append(("step", info))

    def on_checkpoint(self, info: StepInfo) -> None:
        """Keep the call."""
        self.calls.append(("checkpoint", info))

    def on_end(self, info: StepInfo) -> None:
        """Keep the call."""
        self.calls.append(("end", info))


def loss(step: int, at_s: float, tokens: float = 16.0) -> dict[str, Any]:
    """A report of a whole step of 8 samples."""
    return {
        "event": "loss", "step": step, "microbatch": 0, "sum": 2.0 * tokens, "weight": tokens, "samples": 8, "at_s": at_s
    }  # fmt: skip


def test_early_and_late_reports() -> None:
    """A step waits for its norm, a checkpoint for its step; the time of a checkpoint belongs to no step."""
    seen, listener = Calls(), Recorder()
    runner = CallbackRunner((seen,))
    collector = Collector(plan("flush"), listener, runner)
    start = {"event": "start", "first": 0, "steps": 9, "checkpoint": None, "norms": True, "tokens": True, "at_s": 100.0}
    collector.take(0, start)
    collector.take(1, loss(0, 100.5))
    assert listener.lines == []
    collector.take(0, {"event": "saved", "step": 1, "path": "there", "at_s": 103.5})
    collector.take(0, {"event": "norm", "step": 0, "norm": 0.75})
    collector.take(1, loss(1, 104.0))
    collector.take(0, {"event": "norm", "step": 1, "norm": None})
    collector.take(0, {"event": "norm", "step": 2, "norm": 1.0})
    collector.take(1, loss(2, 106.0, tokens=4.0))
    collector.take(0, {"event": "saved", "step": 2, "path": "later", "at_s": 107.0})
    runner.finish()
    assert [(name, info.step, info.checkpoint) for name, info in seen.calls] == [
        ("start", 0, None), ("step", 1, "there"), ("checkpoint", 1, "there"), ("step", 2, "there"),
        ("step", 3, "there"), ("checkpoint", 2, "later"), ("end", 3, "later"),
    ]  # fmt: skip
    steps = [info for name, info in seen.calls if name == "step"]
    assert [info.step_s for info in steps] == [0.5, 0.5, 2.0]
    assert [info.samples_per_s for info in steps] == [16.0, 16.0, 4.0]
    assert [info.tokens_per_s for info in steps] == [32.0, 32.0, 2.0]
    assert [line["gradient_norm"] for line in listener.lines] == [0.75, None, 1.0]
    assert [line["tokens"] for line in listener.lines] == [16, 16, 4]


@pytest.mark.parametrize("method", ["on_start", "on_checkpoint", "on_end"])
def test_a_failure_in_any_method(method: str) -> None:
    """An exception in any method is raised at the end of the run, with the names of the callback and the method."""

    class Fails:
        """A callback with one method, which raises an exception."""

        def __getattr__(self, name: str) -> Any:
            if name == method:
                return lambda info: 1 / 0
            raise AttributeError(name)

    runner = CallbackRunner((Fails(),))
    collector = Collector(plan("flush"), Recorder(), runner)
    collector.take(0, {"event": "start", "first": 4, "steps": 9, "checkpoint": None})
    collector.take(1, loss(4, 1.0))
    collector.take(0, {"event": "saved", "step": 5, "path": "there"})
    with pytest.raises(CallbackFailed, match=rf"callback Fails failed in {method} at step [45]: ZeroDivisionError"):
        runner.finish()
    assert collector.halted


def test_a_run_that_failed_ends_its_callbacks() -> None:
    """`on_end` is called with the error of the run; the error itself is raised."""
    seen = Calls()

    def run() -> None:
        with CallbackRunner((seen,)) as runner:
            runner.start(StepInfo(0, 9, 0), False)
            raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        run()
    assert [(name, info.error) for name, info in seen.calls] == [("start", None), ("end", "lost")]
