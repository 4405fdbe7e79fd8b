"""MLflow logger: metrics of a run in a local database."""

from pathlib import Path
from typing import Any

from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.figures import figures_of, figures_of_evaluation
from hocket.training.callbacks.step_info import StepInfo

NEEDS, TARGET = "mlflow", "DIR"
_EXPERIMENT = "hocket"


class MlflowLogger:
    """Writes the metrics of a run into the SQLite file `mlflow.db` of a folder.

    `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).absolute()
        self._client: Any = None
        self._run = ""

    def on_start(self, info: StepInfo) -> None:
        """Begin a run of the experiment "hocket"."""
        from mlflow.tracking import MlflowClient

        self._folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(f"sqlite:///{self._folder / 'mlflow.db'}")
        known = self._client.get_experiment_by_name(_EXPERIMENT)
        artifacts = (self._folder / "artifacts").as_uri()
        number = known.experiment_id if known else self._client.create_experiment(_EXPERIMENT, artifacts)
        self._run = self._client.create_run(number).info.run_id

    def on_step(self, info: StepInfo) -> None:
        """Write the figures of a step."""
        for name, value in figures_of(info).items():
            self._client.log_metric(self._run, name, value, step=info.step)

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Write the figures of an evaluation."""
        for name, value in figures_of_evaluation(info).items():
            self._client.log_metric(self._run, name, value, step=info.step)

    def on_end(self, info: StepInfo) -> None:
        """End the run; a run that ended early is marked as failed."""
        if self._run:
            self._client.set_terminated(self._run, "FINISHED" if info.error is None else "FAILED")


LOGGER = MlflowLogger
