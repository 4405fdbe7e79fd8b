"""Weights & Biases logger: an offline run in a folder, which `wandb sync` uploads later."""

from pathlib import Path
from typing import Any

from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.figures import figures_of, figures_of_evaluation
from hocket.training.callbacks.step_info import StepInfo

NEEDS, TARGET = "wandb", "DIR"


class WandbLogger:
    """Writes an offline run of Weights & Biases; nothing is sent over the network.

    `wandb sync FOLDER/wandb/offline-run-*` uploads it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._run: Any = None

    def on_start(self, info: StepInfo) -> None:
        """Begin an offline run."""
        import wandb

        Path(self._folder).mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, x_disable_stats=True, console="off")
        self._run = wandb.init(dir=self._folder, mode="offline", settings=settings)

    def on_step(self, info: StepInfo) -> None:
        """Write the figures of a step."""
        self._run.log(figures_of(info), step=info.step)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Write the figures of an evaluation."""
        self._run.log(figures_of_evaluation(info), step=info.step)

    def on_end(self, info: StepInfo) -> None:
        """End the run; a run that ended early is marked as failed."""
        if self._run is not None:
            self._run.finish(exit_code=0 if info.error is None else 1)


LOGGER = WandbLogger
