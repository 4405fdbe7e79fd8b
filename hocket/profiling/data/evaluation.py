"""Evaluation: data and metrics by which a job is judged while it trains; no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hocket.errors import InputError
from hocket.profiling.data.batches import Collate
from hocket.profiling.data.iterable import IterableSamples, by_position
from hocket.profiling.data.loader import dataset_and_collate

LOSS = "loss"
"""Name of the loss among the figures of an evaluation; no metric has this name."""


@dataclass(frozen=True)
class Evaluation:
    """Data and metrics of the evaluations of a job (`Job.evaluate`).

    The model is in evaluation mode: dropout is off, and batch normalisation uses its running statistics. Samples are
    read in the order of the data, each once.

    Attributes:
        data: map-style dataset, with samples like those of `Job.data`; or a DataLoader of torch. Of a loader, the
            dataset and the collate function are used. An IterableDataset is refused: a worker reads only some samples.
        every: steps between two evaluations, rounded up to a number that the program supports; None for one evaluation
            at the end of the run. There is always one at the end.
        metrics: functions by name, called as the loss of the job: `metric(output, *targets)`. Each returns one number
            for a microbatch, as a tensor. Their mean has the weights of the loss: the numbers of samples, or those of
            `Job.loss_weight`. If the loss is computed by the model, a metric is called with the output, and with all
            items of the samples by name.
        batch_size: samples of a microbatch of the evaluation; None for the microbatch size of the plan.
        stop_after: number of evaluations in a row without a lower loss after which the run ends; None to train all
            steps. Evaluations before a resume do not count.
        keep_best: True to save a checkpoint after each evaluation with a lower loss than all before, and to never
            remove the best one.
        collate: function from a list of samples to a batch; by default that of the DataLoader, or that of the job.
        ema: True to evaluate the exponential moving average of the weights (`Job.ema`) in place of the weights.
    """

    data: Any
    every: int | None = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    batch_size: int | None = None
    stop_after: int | None = None
    keep_best: bool = False
    collate: Collate | None = None
    ema: bool = False

    def __post_init__(self) -> None:
        data, collate = dataset_and_collate(self.data)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "collate", self.collate or collate)
        if self.collate is not None and not callable(self.collate):
            found, expected = type(self.collate).__name__, "a function from a list of samples, or None"
            raise InputError("Evaluation.collate", found, expected)
        iterates = isinstance(by_position(data, 1), IterableSamples)
        if iterates or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            found = type(self.data).__name__
            raise InputError(
                "Evaluation.data", found, "a map-style dataset (len(data) and data[i]), or a DataLoader of one"
            )
        if len(self.data) == 0:
            raise InputError("Evaluation.data", "no samples", "at least one sample")
        for name in ("every", "batch_size", "stop_after"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"Evaluation.{name}", repr(value), "a whole number >= 1, or None")
        for name in ("keep_best", "ema"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"Evaluation.{name}", repr(getattr(self, name)), "True or False")
        if not isinstance(self.metrics, Mapping):
            found, expected = type(self.metrics).__name__, "functions by name, such as {'accuracy': accuracy}"
            raise InputError("Evaluation.metrics", found, expected)
        for name, metric in self.metrics.items():
            if not isinstance(name, str) or not name or name == LOSS:
                raise InputError("Evaluation.metrics", f"the name {name!r}", f"a text other than {LOSS!r}")
            if not callable(metric):
                found = type(metric).__name__
                raise InputError(f"Evaluation.metrics[{name!r}]", found, "a function metric(output, *targets)")


def check_evaluation(given: Any, averages: bool) -> None:
    """Refuse a value of `Job.evaluate` that is neither an Evaluation nor None.

    Arguments:
        averages: True if the job averages its weights.

    Raises:
        InputError: it is something else, such as a dataset; or it evaluates an average that the job does not have.
    """
    if given is not None and not isinstance(given, Evaluation):
        step = "Write hocket.Evaluation(data, every=100)."
        raise InputError("Job.evaluate", type(given).__name__, "a hocket.Evaluation, or None", step)
    if given is not None and given.ema and not averages:
        raise InputError("Evaluation.ema", "True, in a job without `ema`", "a job such as Job(..., ema=0.999)")
