"""Loggers: each file is read back by the reader of its own format."""

import csv
import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.logger import logger
from hocket.training.callbacks.step_info import StepInfo


def step(number: int, **figures: Any) -> StepInfo:
    """A step of a run of five steps."""
    given = {"loss": 1 / (number + 2), "learning_rates": (0.1,), "step_s": 0.25, "samples_per_s": 32.0}
    return StepInfo(number, 5, 8 * number, **(given | figures))


def written(spec: str, steps: list[StepInfo], start: int = 0) -> None:
    """Let a logger write some steps, as a run does."""
    made = logger(spec)
    made.on_start(StepInfo(start, 5, 8 * start))
    for info in steps:
        made.on_step(info)
    made.on_end(steps[-1] if steps else StepInfo(start, 5, 8 * start))


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv(tmp_path: Path) -> None:
    """A CSV file has one row for each step; numbers are the same to the bit, and unknown figures are empty."""
    path = tmp_path / "run.csv"
    written(f"csv:{path}", [step(1), step(2, loss=math.nan, gradient_norm=0.1 + 0.2)])
    first, second = rows(path)
    assert list(first) == [
        "step", "samples", "loss", "lr", "gradient_norm", "step_s", "samples_per_s", "tokens_per_s", "mfu"
    ]  # fmt: skip
    assert (first["step"], first["samples"], float(first["loss"]), first["gradient_norm"]) == ("1", "8", 1 / 3, "")
    assert math.isnan(float(second["loss"]))
    assert float(second["gradient_norm"]) == 0.1 + 0.2


def test_csv_of_evaluations(tmp_path: Path) -> None:
    """An evaluation has a row of its own, with `eval_` before the names of its figures."""
    path = tmp_path / "run.csv"
    made = logger(f"csv:{path}")
    made.on_start(StepInfo(0, 2, 0))
    made.on_step(step(1, evaluates=("loss", "accuracy")))
    made.on_evaluation(EvaluationInfo(1, 2, 8, 0.1 + 0.2, {"accuracy": 0.5}))
    made.on_step(step(2, evaluates=("loss", "accuracy")))
    made.on_end(step(2))
    found = rows(path)
    assert [(row["step"], row["eval_accuracy"], row["lr"]) for row in found] == [
        ("1", "", "0.1"), ("1", "0.5", ""), ("2", "", "0.1")
    ]  # fmt: skip
    assert float(found[1]["eval_loss"]) == 0.1 + 0.2


def test_csv_of_a_resumed_run(tmp_path: Path) -> None:
    """A resumed run keeps the rows up to its checkpoint, and replaces the rows after it."""
    path = tmp_path / "run.csv"
    written(f"csv:{path}", [step(k) for k in (1, 2, 3)])
    before = rows(path)
    written(f"csv:{path}", [step(k, loss=9.0) for k in (3, 4)], start=2)
    assert rows(path)[:2] == before[:2]
    assert [(row["step"], row["loss"]) for row in rows(path)[2:]] == [("3", "9.0"), ("4", "9.0")]
    written(f"csv:{path}", [step(1)])
    assert [row["step"] for row in rows(path)] == ["1"], "a new run begins a new file"


def test_csv_leaves_other_files_alone(tmp_path: Path) -> None:
    """A resumed run refuses to continue a file that is not its own, and does not change it."""
    path = tmp_path / "run.csv"
    path.write_text("name,age\nada,36\n")
    with pytest.raises(InputError, match="found another file; expected a CSV file of an earlier part of this run"):
        written(f"csv:{path}", [step(3)], start=2)
    assert path.read_text() == "name,age\nada,36\n"


def test_csv_of_several_parameter_groups(tmp_path: Path) -> None:
    """Each parameter group has a column of its own."""
    path = tmp_path / "run.csv"
    written(f"csv:{path}", [step(1, learning_rates=(0.1, None))])
    assert [rows(path)[0][name] for name in ("lr/0", "lr/1")] == ["0.1", ""]


def test_tensorboard(tmp_path: Path) -> None:
    """TensorBoard's own reader finds each figure of each step in the event file."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the package tensorboard is not installed"
    )
    written(f"tensorboard:{tmp_path}", [step(1), step(2)])
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(one.step, one.value) for one in read.Scalars("loss")] == [
        (1, pytest.approx(1 / 3)),
        (2, pytest.approx(1 / 4)),
    ]
    assert set(read.Tags()["scalars"]) == {"samples", "loss", "lr", "step_s", "samples_per_s"}


def records_of(data: bytes) -> Iterator[bytes]:
    """Records of a file of Weights & Biases, which has LevelDB's log format after a header of 7 bytes."""
    at, begun = 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # the end of a block, too short for a record
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        begun += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield begun
            begun = b""


def test_wandb(tmp_path: Path) -> None:
    """The offline run of Weights & Biases has each step in its file of records."""
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="the package wandb is not installed")
    written(f"wandb:{tmp_path}", [step(1), step(2)])
    sys.modules["wandb"].teardown()  # its service process writes the file, and closes it a moment later
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    found = []
    for data in records_of(path.read_bytes()):
        record = records.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
            found.append((items["_step"], items["loss"]))
    assert found == [(1, 1 / 3), (2, 1 / 4)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own use of SQLAlchemy
def test_mlflow(tmp_path: Path) -> None:
    """MLflow's own client reads each step from the database."""
    tracking = pytest.importorskip("mlflow.tracking", reason="the package mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="the package sqlalchemy is not installed")
    written(f"mlflow:{tmp_path}", [step(1), step(2)])
    client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("hocket").experiment_id])
    found = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in found] == [(1, 1 / 3), (2, 1 / 4)]
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("cvs:run.csv", "found 'cvs'; expected FORMAT:PATH, with one of the formats csv, mlflow, tensorboard, wandb"),
        ("csv", "found no path; expected csv:FILE"),
        ("tensorboard:", "found no path; expected tensorboard:DIR"),
    ],
)
def test_a_wrong_name_of_a_logger(spec: str, said: str) -> None:
    """A wrong name or a missing path is refused before anything runs."""
    with pytest.raises(InputError) as caught:
        logger(spec)
    assert said in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which package a format needs."""
    monkeypatch.setattr("hocket.training.callbacks.logger.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"found no package tensorboard; .* Install it: pip install tensorboard"):
        logger("tensorboard:runs")
