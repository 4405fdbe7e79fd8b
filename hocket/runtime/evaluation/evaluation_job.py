"""Job of an evaluation: the model of a training job, with other data and with metrics beside the loss.

Rules of this file: the loss of the job is one function, which returns the loss and all metrics as one tensor. So they
are captured, replayed and reported like the loss of a training job.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import CaptureError, InputError
from hocket.profiling.data.evaluation import Evaluation
from hocket.profiling.data.items import Receivers
from hocket.profiling.job.derived_model.precision import own_type, widened
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import SUM, Batch, loss_in
from hocket.util.units import show_count


class EvaluationJob(Job):
    """A job that evaluates a training job's model.

    Attributes:
        trained: the training job, in its compute precision.
        evaluation: data and metrics.
    """

    trained: Job
    evaluation: Evaluation

    @classmethod
    def of(cls, trained: Job, evaluation: Evaluation) -> "EvaluationJob":
        """Make the evaluation of a training job.

        Arguments:
            trained: the training job, as it is captured: in its compute precision, or a rank's shard of it.
        """
        given = {one.name: getattr(trained, one.name) for one in fields(trained) if one.init}
        given |= {
            "data": evaluation.data,
            "shuffle": False,
            "collate": trained.collate if evaluation.collate is None else evaluation.collate,
            "batch_size": min(trained.batch_size, len(evaluation.data)),
            "loss": _measured(trained, evaluation),
            "step": None,  # the model runs it
            "loss_weight": None if trained.loss_weight == SUM else trained.loss_weight,
            "evaluate": None,
            "callbacks": (),
        }
        job = cls(**given)
        for name in ("path", "makers", "own", "written"):
            object.__setattr__(job, name, getattr(trained, name))
        object.__setattr__(job, "trained", trained)
        object.__setattr__(job, "evaluation", evaluation)
        return job

    def batch(self, indices: Sequence[int], positions: Sequence[int] | None = None) -> Batch:
        """Stack samples into a batch, as `Job.batch`; errors name the data of the evaluation."""
        try:
            return super().batch(indices, positions)
        except InputError as error:
            place = error.place.replace("Job.", "Evaluation.", 1)
            raise InputError(place, error.found, error.expected, error.next_step) from error

    def split(self, batch: Batch) -> tuple[tuple[Any, ...], Batch, tuple[Any, ...], Batch]:
        """Split a batch as the training job does; without a loss, metrics get all items by name."""
        args, kwargs, loss_args, loss_kwargs = self.trained.split(batch)
        return args, kwargs, loss_args, batch if self.trained.loss is None and not args else loss_kwargs

    @property
    def receivers(self) -> Receivers:
        """Model and loss of the training job: an evaluation needs the same items of the samples."""
        return self.trained.receivers

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context in which the model, and a loss that is a module, are in evaluation mode."""
        losses = (job.loss for job in (self.trained, self.trained.as_written))
        tops = [self.model, *(loss for loss in losses if isinstance(loss, nn.Module))]
        modules = {id(module): module for top in tops for module in top.modules()}
        modes = [(module, module.training) for module in modules.values()]
        for top in tops:
            top.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def _measured(job: Job, evaluation: Evaluation) -> Callable[..., Tensor]:
    """Function that returns the loss and all metrics in one tensor of shape (1 + metrics,)."""
    own = None if job.own is None else own_type(job.own.model)
    metrics = {name: metric if own is None else widened(metric, own) for name, metric in evaluation.metrics.items()}

    def loss(output: Any, *targets: Any, **named: Any) -> Tensor:
        found: Any = loss_in(output) if job.loss is None else job.loss(output, *targets, **named)
        numbers = [found.reshape(())]
        for name, metric in metrics.items():
            numbers.append(_number(name, metric, output, targets, named))
        # Sums over many microbatches: in the longest type, whatever the loss has.
        return torch.stack([number.double() for number in numbers])

    loss.numbers = 1 + len(metrics)  # type: ignore[attr-defined]
    return loss


def _number(name: str, metric: Callable[..., Any], output: Any, targets: Any, named: Any) -> Tensor:
    place = f"Evaluation.metrics[{name!r}]"
    try:
        found = metric(output, *targets, **named)
    except CaptureError as error:
        raise CaptureError(place, error.found, error.expected, "Compute the metric with tensors only.") from error
    except Exception as error:
        called = f"metric(output, {', '.join(named) or show_count(len(targets), 'target')}"
        found = f"{type(error).__name__}: {error}"
        raise CaptureError(place, found, f"a function that can be called as {called})") from error
    if not isinstance(found, Tensor) or found.numel() != 1:
        told = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise CaptureError(place, told, "a tensor with one number: the mean over the microbatch")
    return found.reshape(())
