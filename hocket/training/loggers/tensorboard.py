"""TensorBoard logger: scalars in an event file."""

from typing import Any

from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.figures import figures_of, figures_of_evaluation
from hocket.training.callbacks.step_info import StepInfo

NEEDS, TARGET = "tensorboard", "DIR"


class TensorBoardLogger:
    """Writes scalars, one for each figure and step, into an event file in a folder.

    A resumed run adds an event file. TensorBoard then ignores earlier events of steps that are trained again.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: Any = None

    def on_start(self, info: StepInfo) -> None:
        """Begin an event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(self._folder, purge_step=info.step + 1 if info.step else None)  # type: ignore[no-untyped-call]

    def on_step(self, info: StepInfo) -> None:
        """Write the figures of a step."""
        for name, value in figures_of(info).items():
            self._writer.add_scalar(name, value, info.step)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Write the figures of an evaluation."""
        for name, value in figures_of_evaluation(info).items():
            self._writer.add_scalar(name, value, info.step)

    def on_end(self, info: StepInfo) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


LOGGER = TensorBoardLogger
