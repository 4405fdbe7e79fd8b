"""CSV logger: one row for each step and each evaluation, as it is known."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from hocket.errors import InputError
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.figures import evaluation_names, figures_of, figures_of_evaluation
from hocket.training.callbacks.step_info import StepInfo
from hocket.util.files import read_text, write_atomic

NEEDS, TARGET = "", "FILE"
_FIGURES = ("gradient_norm", "step_s", "samples_per_s", "tokens_per_s", "mfu")


class CsvLogger:
    """Writes a CSV file with a header, one row for each step, and one for each evaluation.

    A resumed run continues the file: rows of steps after the checkpoint are removed, and new rows follow. A figure that
    is unknown is an empty cell. The columns of the learning rates follow from the first step.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._rows: list[list[str]] = []
        self._columns: list[str] = []
        self._file: TextIO | None = None

    def on_start(self, info: StepInfo) -> None:
        """Read the rows of the steps before a resume.

        Raises:
            InputError: the file to continue has no rows of this logger.
        """
        if info.step == 0 or not self._path.exists():
            return
        header, *rows = list(csv.reader(read_text(self._path).splitlines())) or [[]]
        if header[:1] != ["step"] or any(len(row) != len(header) or not row[0].isdecimal() for row in rows):
            expected = "a CSV file of an earlier part of this run"
            raise InputError(str(self._path), "another file", expected, "Name another file, or move this one away.")
        self._columns, self._rows = header, [row for row in rows if int(row[0]) <= info.step]

    def on_step(self, info: StepInfo) -> None:
        """Write the row of a step; the first step opens the file."""
        rates = len(info.learning_rates or ())
        columns = ["step", "samples", "loss", *(["lr"] if rates == 1 else [f"lr/{k}" for k in range(rates)]), *_FIGURES]
        columns += evaluation_names(info.evaluates)
        if self._file is None:
            self._file = self._opened(self._columns or columns)
        self._write(self._file, info.step, figures_of(info))

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Write the row of an evaluation, after that of the step before it."""
        if self._file is not None:
            self._write(self._file, info.step, {"samples": info.samples, **figures_of_evaluation(info)})

    def _write(self, file: TextIO, step: int, found: Mapping[str, float]) -> None:
        """Write a row with the figures that have a column."""
        row = (step if name == "step" else found.get(name, "") for name in self._columns)
        csv.writer(file, lineterminator="\n").writerow(row)
        file.flush()

    def on_end(self, info: StepInfo) -> None:
        """Close the file; its rows are then on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def _opened(self, columns: list[str]) -> TextIO:
        """Open the file for a run, with the header and the rows of earlier steps."""
        self._columns = columns
        write_atomic(self._path, "".join(",".join(row) + "\n" for row in (columns, *self._rows)))
        return self._path.open("a", newline="")


LOGGER = CsvLogger
