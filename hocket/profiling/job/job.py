"""Job: the user's model with its data, loss and optimizer.

Rules of this file:
- The model is never edited.
- torch is imported only when a batch is made.
- The step number alone determines the samples of a step. A resumed or re-planned run therefore continues at the same
  position in the data.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hocket.errors import InputError, nearest
from hocket.profiling.data.batches import Collate
from hocket.profiling.data.evaluation import Evaluation, check_evaluation
from hocket.profiling.data.items import Receivers
from hocket.profiling.data.iterable import IterableSamples, by_position
from hocket.profiling.data.loader import settings_of
from hocket.profiling.data.source import SampleSource, samples_in
from hocket.profiling.job.callbacks import check_callbacks
from hocket.profiling.job.clip import check_clip_over
from hocket.profiling.job.learning_rate.named_schedules import check_lr_schedule
from hocket.profiling.job.loss_weight import Batch, LossWeight, check_loss_weight, loss_in
from hocket.profiling.job.origin import JobSource, Origin, makers_at_work, origin_of
from hocket.util.files import digest

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


# Compute types, in addition to the type of the model.
PRECISIONS = ("bfloat16", "float16")
_MISSING: Any = None  # default of what a job must have


@dataclass(frozen=True, eq=False)
class Job:
    """A training job.

    Attributes:
        model: `nn.Module` in training mode.
        loss: function called as `loss(output, *targets)`, a mean over samples unless `loss_weight` is set. None if the
            output of the model is the loss or has a `loss`.
        data: map-style dataset with `len(data)`. `data[i]` is one sample without batch dimension: a tensor, a tuple of
            tensors, or a dictionary of tensors, or anything that `collate` takes. Items that neither the model nor the
            loss gets may be texts or None, and are dropped. Several processes read the data, and every read of a sample
            must return equal values. The global generators of torch, numpy.random and random are seeded for each
            sample. Or a `torch.utils.data.DataLoader`: its dataset is used, and its batch size, order and `collate_fn`
            where the job has none. Its samplers must be those of `shuffle=True` or `shuffle=False`; `num_workers`,
            `pin_memory` and `drop_last` have no effect. Or a `torch.utils.data.IterableDataset`, also in a DataLoader:
            every process that needs samples iterates all of them, epoch after epoch, and picks its own. A resumed run
            reads the earlier samples again, unless the dataset has `state_dict` and `load_state_dict`. The attribute
            then is the stream of its samples (`hocket.profiling.data.iterable`).
        optimizer: function from the trainable parameters to the optimizer, such as
            `lambda params: torch.optim.SGD(params, lr=0.1)`. It may return several optimizers of different parameters,
            which step together. If the name of its first argument begins with `named`, the function receives (name,
            parameter) pairs.
        batch_size: global batch size, in samples per optimizer step; may be left out if the data is a DataLoader.
        inputs: number of leading tuple items that are positional arguments of the model; the other items go to the
            loss. For dictionaries, the keys in the signature of the forward go to the model, the others to the loss.
            Without a loss, a forward with `**kwargs` gets all keys.
        seed: seed of the data order and of the random numbers in the model and in `data[i]`.
        clip_grad_norm: maximum global gradient norm, over all parameters of the model. Larger gradients are scaled down
            before the step, as in `torch.nn.utils.clip_grad_norm_`.
        clip_grad_norm_over: "model": the norm is over all parameters of the model. "stage": each stage of a plan clips
            its own gradients by the norm over its own parameters, so no stage waits for the others and PipeDream and
            PipeDream-2BW can clip. The result then depends on where the plan cuts the model.
        loss_weight: weight of a microbatch in the loss of its batch; by default its number of samples. Either a
            function of the microbatch (a dictionary of tensors; tuple items are named item0, item1, ...), such as
            `hocket.tokens("labels")` for a mean over tokens, or "sum" for a loss that is a sum over samples.
        precision: compute type "bfloat16" or "float16", if shorter than the type of the model. Gradient accumulation,
            optimizer step and checkpoints use the type of the model (`hocket.profiling.job.derived_model.precision`).
            With float16, losses are scaled dynamically, as with `torch.amp.GradScaler`.
        subtask_bytes: bytes above which a linear layer or a convolution is split into subtasks of about this size or
            less. Rows of a weight are divided in multiples of 16 (`hocket.profiling.job.derived_model.subtasks`).
        lr_schedule: factor of the learning rates at each step. Either a function of the step (from 0), a list with one
            function per parameter group, a name, a dictionary such as
            {"name": "cosine", "steps": 1000, "warmup_steps": 100}, or a function of `optimizer` that returns a torch
            scheduler.
        callbacks: objects with some of the methods `on_start(info)`, `on_step(info)`, `on_evaluation(info)`,
            `on_checkpoint(info)` and `on_end(info)`, which `hocket.train` calls in the process that shows the run.
            `info` is a `hocket.StepInfo`, and for `on_evaluation` a `hocket.EvaluationInfo`. With a true attribute
            `wants_gradient_norm`, a synchronous plan computes the norm of all gradients.
        collate: function from a list of samples, of any type, to a batch: a tensor, a tuple of tensors, or a dictionary
            of tensors, with the samples along the first dimension, as `collate_fn` of torch's DataLoader. All batches
            must have one shape, whatever their number of samples, and the row of a sample must not depend on the other
            samples. By default samples of equal shapes are stacked.
        shuffle: True for another order in each epoch, which `seed` determines; False for the order of the data in each
            epoch. By default that of the DataLoader, or True.
        ema: decay of an exponential moving average of the weights, such as 0.999; None for no average. After each update
            the average is decay * average + (1 - decay) * weights. Checkpoints contain it; `hocket export --ema` writes
            it.
        evaluate: data and metrics of evaluations while the job trains (`hocket.Evaluation`); None for no evaluations.
        step: function called as `step(model, *items)`, or with the items of a dictionary by name, in place of the model
            and the loss. It returns the loss, or an output with a `loss`, and may call the model or its modules several
            times. It must use the model that it gets: this may be a copy. `inputs` has no effect. `model` is then a
            module with `step` as its forward and the same parameter names.
        path: job file, if `load_job` loaded the job. Other processes can load the job from this file.
        makers: call stack at construction. `origin` uses it to find how another process can rebuild the job.
        samples: length of the data, which must not change; of iterable data, the number of its first samples that
            checks and measurements read.
        own: for a job in a shorter precision, the original job with the master weights.
        written: for a job with a derived model (another precision, subtasks, a tensor-parallel shard), the user's job.
    """

    model: "nn.Module"
    loss: Callable[..., "Tensor"] | None = None
    data: Any = None
    optimizer: "Callable[..., Optimizer]" = _MISSING
    batch_size: int = _MISSING
    name: str = ""
    seed: int = 0
    inputs: int = 1
    clip_grad_norm: float | None = None
    clip_grad_norm_over: str = "model"
    loss_weight: LossWeight | None = None
    precision: str | None = None
    subtask_bytes: float | None = None
    lr_schedule: "Callable[..., Any] | Sequence[Callable[[int], float]] | str | Mapping[str, Any] | None" = None
    callbacks: "Sequence[Any]" = ()
    collate: Collate | None = None
    shuffle: bool | None = None
    evaluate: Evaluation | None = None
    ema: float | None = None
    step: Callable[..., Any] | None = None
    path: Path | None = field(default=None, init=False)
    makers: tuple[JobSource, ...] = field(default=(), init=False, repr=False)
    samples: int = field(default=0, init=False, repr=False)
    own: "Job | None" = field(default=None, init=False, repr=False)
    written: "Job | None" = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "makers", makers_at_work())
        own = {name: getattr(self, name) for name in ("batch_size", "shuffle", "collate")}
        for name, value in settings_of(self.data, own).items():
            object.__setattr__(self, name, value)
        if not callable(getattr(self.model, "named_parameters", None)):
            raise InputError("Job.model", type(self.model).__name__, "a torch.nn.Module")
        if self.step is not None:
            self._use_step(self.step)
        if self.loss is not None and not callable(self.loss):
            raise InputError("Job.loss", type(self.loss).__name__, "a callable loss(output, *targets), or None")
        if not callable(self.optimizer):
            hint = "Write for example: lambda params: torch.optim.SGD(params, lr=0.1)."
            raise InputError("Job.optimizer", type(self.optimizer).__name__, "a function from parameters", hint)
        for name, least in (("batch_size", 1), ("seed", 0), ("inputs", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                hint = "Only data that is a DataLoader has a batch size of its own." if value is None else ""
                raise InputError(f"Job.{name}", repr(value), f"a whole number >= {least}", hint)
        if not isinstance(self.name, str):
            raise InputError("Job.name", repr(self.name), "a text")
        if self.precision not in (None, *PRECISIONS):
            found, expected = repr(self.precision), f"one of {', '.join(PRECISIONS)}, or None for the model's own type"
            raise InputError("Job.precision", found, expected)
        if self.clip_grad_norm is not None and not _positive(self.clip_grad_norm):
            raise InputError("Job.clip_grad_norm", repr(self.clip_grad_norm), "a number > 0, or None for no clipping")
        check_clip_over(self.clip_grad_norm_over, self.clip_grad_norm)
        check_loss_weight(self.loss_weight)
        if self.ema is not None and not (_positive(self.ema) and self.ema < 1):
            expected = "a decay between 0 and 1, such as 0.999, or None for no average"
            raise InputError("Job.ema", repr(self.ema), expected)
        check_evaluation(self.evaluate, self.ema is not None)
        object.__setattr__(self, "callbacks", check_callbacks(self.callbacks, "Job.callbacks"))
        if self.subtask_bytes is not None and not _positive(self.subtask_bytes):
            raise InputError("Job.subtask_bytes", repr(self.subtask_bytes), "bytes > 0, or None for no subtasks")
        if self.collate is not None and not callable(self.collate):
            raise InputError("Job.collate", type(self.collate).__name__, "a function from a list of samples, or None")
        if self.lr_schedule is not None:
            check_lr_schedule(self.lr_schedule)
        object.__setattr__(self, "data", by_position(self.data, self.batch_size))
        object.__setattr__(self, "samples", samples_in(self.data, self.batch_size, self.shuffle))

    def _use_step(self, step: Callable[..., Any]) -> None:
        """Let the model's forward be the training step."""
        from hocket.profiling.job.derived_model.training_step import items_of, with_step

        if self.loss is not None:
            hint = "Compute the loss in the step, and leave Job.loss out."
            raise InputError("Job.loss", "a loss beside Job.step", "a step that returns the loss", hint)
        object.__setattr__(self, "model", with_step(self.model, step))
        object.__setattr__(self, "inputs", items_of(step))

    @property
    def label(self) -> str:
        """Name of the job, by default the class of the user's model."""
        from hocket.profiling.job.derived_model.training_step import user_module

        return self.name or type(user_module(self.model)).__name__

    @property
    def origin(self) -> Origin:
        """Location from which another process can rebuild the job.

        Raises:
            InputError: no such location exists; the error gives the next step.
        """
        return Origin(self.path) if self.path is not None else origin_of(self, self.makers)

    @property
    def iterates(self) -> bool:
        """True if the data is an IterableDataset: the index of a sample is its position in the stream."""
        return isinstance(self.data, IterableSamples)

    @property
    def as_written(self) -> "Job":
        """The job with the user's original model."""
        return self.written or self

    @property
    def model_digest(self) -> str:
        """SHA-256 over names, shapes and types of the parameters.

        A plan is valid for one model only.
        """
        rows = [f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in self.model.named_parameters()]
        return digest("\n".join(rows).encode())

    @property
    def dtype(self) -> str:
        """Compute type, such as "float32"."""
        return self.precision or str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def scales_loss(self) -> bool:
        """True if losses are multiplied by a loss scale: gradients in float16 would become zero without it."""
        return self.precision == "float16"

    def batch(self, indices: Sequence[int], positions: Sequence[int] | None = None) -> Batch:
        """Stack or collate samples into a batch.

        With `precision`, the model's floating-point inputs are cast to it in the compute copy of the job.

        Arguments:
            indices: indices of the samples in the data.
            positions: position of each sample in the sample stream; by default its index. The position seeds the random
                numbers in `data[i]`.

        Returns:
            Dictionary from names to tensors of shape (samples, ...).

        Raises:
            InputError: a sample cannot be read, has another shape, or is not made of tensors; the error names it. Or
                `collate` fails, or returns another shape than for the first batch.
        """
        import torch

        out = self._source.batch(indices, indices if positions is None else positions)
        if self.own is not None and self.precision is not None:
            short = getattr(torch, self.precision)
            ours = (
                list(out)[: self.inputs]
                if "item0" in out
                else [key for key in out if self._source.receivers.accepts(key)]
            )
            out.update({name: out[name].to(short) for name in ours if out[name].is_floating_point()})
        return out

    def split(self, batch: Batch) -> tuple[tuple[Any, ...], Batch, tuple[Any, ...], Batch]:
        """Split a batch into arguments of the model and arguments of the loss.

        Returns:
            (args of the model, kwargs of the model, args of the loss, kwargs of the loss).
        """
        return self._source.receivers.split(batch)

    def loss_of(self, batch: Batch) -> "Tensor":
        """Run the model and the loss on a batch.

        Raises:
            InputError: the job has no loss, and the model returns none.
        """
        args, kwargs, loss_args, loss_kwargs = self.split(batch)
        output = self.model(*args, **kwargs)
        if self.loss is not None:
            return self.loss(output, *loss_args, **loss_kwargs)
        return cast("Tensor", loss_in(output))

    def batch_at(self, position: int, count: int) -> Batch:
        """Read the next `count` samples of the sample stream, as a batch.

        Arguments:
            position: number of earlier samples in the stream, over all epochs.

        Raises:
            InputError: see `batch`; or the length of the data has changed since the job was made.
        """
        self._source.check_length()
        return self.batch(self.indices_at(position, count), range(position, position + count))

    def indices_at(self, position: int, count: int) -> list[int]:
        """Return the indices of the next `count` samples of the sample stream.

        Arguments:
            position: number of earlier samples in the stream, over all epochs.
        """
        return self._source.indices_at(position, count)

    def batch_of_step(self, step: int) -> Batch:
        """Return the global batch of one optimizer step."""
        return self.batch_at(step * self.batch_size, self.batch_size)

    @property
    def receivers(self) -> Receivers:
        """Model and loss, which get the items of the samples."""
        # In a shorter precision, the loss is a wrapper without the signature of the user's loss.
        return Receivers(self.model, self.loss if self.own is None else self.own.loss, self.inputs)

    @cached_property
    def _source(self) -> SampleSource:
        return SampleSource(self.data, self.samples, self.seed, self.shuffle, self.collate, self.receivers)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def check_device(name: str) -> None:
    """Validate a device name without importing torch.

    Raises:
        InputError: the name is neither a CPU nor a CUDA device.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError("device", repr(name), "cpu, cuda (the current GPU) or cuda:N", nearest(name, ("cpu", "cuda")))
