"""Job: a model with its data, loss and optimizer, as the user wrote them.

Rules of this file: the model is never edited, torch is imported only when a batch is made, and which samples a step
trains on follows from its number alone, so that a resumed or re-planned run goes on at the same place.
"""

import inspect
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hocket.errors import InputError, nearest
from hocket.profiling.data.order import indices_at
from hocket.profiling.data.samples import read_samples
from hocket.profiling.job.loss_weight import Batch, LossWeight, check_loss_weight
from hocket.profiling.job.lr_schedules import check_lr_schedule
from hocket.profiling.job.origin import NAMES, JobSource, Origin, look_up, makers_at_work, origin_of
from hocket.util.files import digest
from hocket.util.units import show_count

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


# What compute may work in, besides the model's own type.
PRECISIONS = ("bfloat16",)
# Our own files, which as Python would fail with an error about Python.
_NO_CODE = (".json", ".yaml", ".yml", ".gz")


@dataclass(frozen=True, eq=False)
class Job:
    """A training job.

    Attributes:
        model: an ordinary module, in training mode.
        loss: called as `loss(output, *targets)`, a mean over samples; None when the model's output has a `loss`. `loss_weight` says
            what else it is.
        data: map-style: `len(data)`, and `data[i]` is one sample without batch dimension: a tensor, a tuple of
            tensors, or a dictionary of tensors. Several processes read it: each read must give the same, for which the global
            generators of torch, numpy.random and random are seeded for each sample.
        optimizer: makes the optimizer from the model's trainable parameters, such as `lambda params: torch.optim.SGD(params,
            lr=0.1)`. A function whose first argument's name begins with `named` is given (name, parameter) pairs.
        batch_size: samples of one optimizer step, over all devices.
        inputs: of a tuple, how many leading items are the model's positional arguments; the others go to the loss.
            Of a dictionary, the keys that the model's forward accepts go to the model, the others to the loss.
        seed: of the data order and of the random numbers inside the model and inside `data[i]`.
        clip_grad_norm: the most that the norm of all gradients of an update may be, over all of the model's parameters:
            above it they are scaled down before the step, as `torch.nn.utils.clip_grad_norm_` does.
        loss_weight: by what the loss of a microbatch counts in the loss of its batch, where that is not its number of samples: a
            function of the microbatch (names of its tensors to tensors; items of a tuple are item0, item1, ...), such as
            `hocket.tokens("labels")` for a mean over tokens; or "sum", for a loss that is a sum over samples.
        precision: the type that compute works in, "bfloat16", where it is shorter than the model's: weights and their gradients
            are added up, stepped and saved in the model's own (see `hocket.profiling.job.precision`).
        subtask_bytes: a linear layer with larger weights is computed in subtasks of at most so many bytes (`hocket.profiling.job.subtasks`).
        lr_schedule: by what learning rates are multiplied at each step: a function of the step (from 0), a list of one for each
            parameter group, a name or a dictionary such as {"name": "cosine", "steps": 1000, "warmup_steps": 100}; or a function of
            `optimizer` that makes a torch scheduler.
        path: the file that it came from, when `load_job` loaded it: another process can load the same.
        makers: who was at work when it was made, from where `origin` knows how another process can make the same.
        samples: the length of the data, which must stay as it is.
        own: of a job as compute sees it in another precision, the job itself, whose model keeps the weights.
        written: of a job with another model than its user's (another precision, subtasks, a member's part), the user's job.
    """

    model: "nn.Module"
    loss: Callable[..., "Tensor"] | None
    data: Any
    optimizer: "Callable[..., Optimizer]"
    batch_size: int
    name: str = ""
    seed: int = 0
    inputs: int = 1
    clip_grad_norm: float | None = None
    loss_weight: LossWeight | None = None
    precision: str | None = None
    subtask_bytes: float | None = None
    lr_schedule: "Callable[..., Any] | Sequence[Callable[[int], float]] | str | Mapping[str, Any] | None" = None
    path: Path | None = field(default=None, init=False)
    makers: tuple[JobSource, ...] = field(default=(), init=False, repr=False)
    samples: int = field(default=0, init=False, repr=False)
    own: "Job | None" = field(default=None, init=False, repr=False)
    written: "Job | None" = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "makers", makers_at_work())
        if not callable(getattr(self.model, "named_parameters", None)):
            raise InputError("Job.model", type(self.model).__name__, "a torch.nn.Module")
        if self.loss is not None and not callable(self.loss):
            raise InputError("Job.loss", type(self.loss).__name__, "a callable loss(output, *targets), or None")
        if not callable(self.optimizer):
            hint = "Write for example: lambda params: torch.optim.SGD(params, lr=0.1)."
            raise InputError("Job.optimizer", type(self.optimizer).__name__, "a function from parameters", hint)
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InputError("Job.batch_size", repr(self.batch_size), "a whole number >= 1")
        if self.precision not in (None, *PRECISIONS):
            hint = "float16 needs a loss that is scaled, which is not done here." if self.precision == "float16" else ""
            found, expected = repr(self.precision), f"one of {', '.join(PRECISIONS)}, or None for the model's own type"
            raise InputError("Job.precision", found, expected, hint)
        if self.clip_grad_norm is not None and not _positive(self.clip_grad_norm):
            raise InputError("Job.clip_grad_norm", repr(self.clip_grad_norm), "a number > 0, or None for no clipping")
        check_loss_weight(self.loss_weight)
        if self.subtask_bytes is not None and not _positive(self.subtask_bytes):
            raise InputError("Job.subtask_bytes", repr(self.subtask_bytes), "bytes > 0, or None for no subtasks")
        if self.lr_schedule is not None:
            check_lr_schedule(self.lr_schedule)
        if self.inputs < 1:
            raise InputError("Job.inputs", str(self.inputs), ">= 1")
        if not hasattr(self.data, "__len__") or not hasattr(self.data, "__getitem__"):
            raise InputError("Job.data", type(self.data).__name__, "a map-style dataset: len(data) and data[i]")
        object.__setattr__(self, "samples", len(self.data))
        if self.samples < self.batch_size:
            hint = "Lower batch_size or give more data."
            raise InputError(
                "Job.data", show_count(self.samples, "sample"), f"at least batch_size = {self.batch_size}", hint
            )

    @property
    def origin(self) -> Origin:
        """Where another process can have the same job.

        Raises:
            InputError: nowhere, with what to do.
        """
        return Origin(self.path) if self.path is not None else origin_of(self, self.makers)

    @property
    def as_written(self) -> "Job":
        """The job with the model that its user wrote."""
        return self.written or self

    @property
    def model_digest(self) -> str:
        """SHA-256 over names, shapes and types of the model's parameters: a plan is for one model."""
        rows = [f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in self.model.named_parameters()]
        return digest("\n".join(rows).encode())

    @property
    def dtype(self) -> str:
        """The type that compute works in, such as "float32"."""
        return self.precision or str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def batch(self, indices: Sequence[int], positions: Sequence[int] | None = None) -> Batch:
        """The samples of these indices, stacked: names of the batch's tensors to tensors of shape (samples, ...).

        Arguments:
            positions: where each stands in the stream of samples, from which the random numbers inside `data[i]` follow; by
                default its index.

        Raises:
            InputError: a sample cannot be read; samples differ in their shapes, or are not tensors; names the sample.
        """
        import torch

        samples = read_samples(self.data, indices, indices if positions is None else positions, self.seed)
        first = samples[0]
        out: Batch = {}
        for name in first:
            column = []
            for i, sample in zip(indices, samples, strict=True):
                if sample.keys() != first.keys():
                    raise InputError(f"Job.data[{i}]", f"items {list(sample)}", f"{list(first)}, as the others have")
                if sample[name].shape != first[name].shape or sample[name].dtype != first[name].dtype:
                    found = f"{name} of shape {tuple(sample[name].shape)} and type {sample[name].dtype}"
                    expected = f"{tuple(first[name].shape)} and {first[name].dtype}, as sample {indices[0]} has"
                    raise InputError(f"Job.data[{i}]", found, expected, "Pad or crop the samples to one shape.")
                column.append(sample[name])
            out[name] = torch.stack(column)
        if self.own is not None and self.precision is not None:
            short = getattr(torch, self.precision)
            ours = list(out)[: self.inputs] if "item0" in out else [key for key in out if self._accepts(key)]
            out.update({name: out[name].to(short) for name in ours if out[name].is_floating_point()})
        return out

    def split(self, batch: Batch) -> tuple[tuple[Any, ...], Batch, tuple[Any, ...], Batch]:
        """A batch as the model's and the loss's arguments: (args, kwargs, loss args, loss kwargs)."""
        if "item0" in batch:
            values = tuple(batch.values())
            if len(values) < self.inputs:
                raise InputError("Job.inputs", str(self.inputs), f"at most {len(values)}, the items of a sample")
            return values[: self.inputs], {}, values[self.inputs :], {}
        to_model = {key: value for key, value in batch.items() if self._accepts(key)}
        to_loss = {key: value for key, value in batch.items() if key not in to_model}
        return (), to_model, (), to_loss

    def loss_of(self, batch: Batch) -> "Tensor":
        """Run the model and its loss on a batch.

        Raises:
            InputError: there is neither.
        """
        args, kwargs, loss_args, loss_kwargs = self.split(batch)
        output = self.model(*args, **kwargs)
        if self.loss is not None:
            return self.loss(output, *loss_args, **loss_kwargs)
        found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if found is None:
            hint = "Give Job.loss, or put the labels into the samples."
            raise InputError("Job.loss", "None, and the output has no `loss`", "an output with a loss", hint)
        return cast("Tensor", found)

    def batch_at(self, position: int, count: int) -> Batch:
        """So many samples of the stream from a position on, which counts the samples before over all epochs.

        Raises:
            InputError: as `batch`; the data have another length than when the job was made.
        """
        if len(self.data) != self.samples:
            found, expected = show_count(len(self.data), "sample"), f"{self.samples}, as when the job was made"
            hint = "The order of the samples follows from the length of the data, which must stay as it is."
            raise InputError("Job.data", found, expected, hint)
        indices = indices_at(position, count, self.samples, self.seed)
        return self.batch(indices, range(position, position + count))

    def batch_of_step(self, step: int) -> Batch:
        """The whole batch of one optimizer step."""
        return self.batch_at(step * self.batch_size, self.batch_size)

    def _accepts(self, key: str) -> bool:
        known, takes_all = self._signature
        return key in known or (takes_all and self.loss is None)

    @cached_property
    def _signature(self) -> tuple[frozenset[str], bool]:
        parameters = inspect.signature(self.model.forward).parameters.values()
        known = frozenset(p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
        return known, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def check_device(name: str) -> None:
    """Refuse what no job can be measured on, without torch.

    Raises:
        InputError: neither a CPU nor a CUDA device.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError("device", repr(name), "cpu, cuda (the current GPU) or cuda:N", nearest(name, ("cpu", "cuda")))


def check_job_file(path: str | Path) -> Path:
    """The path, if a job file may be there.

    Raises:
        InputError: no such file, or one of data.
    """
    path = Path(path)
    expected = "a Python file that defines `job` or `make_job()`"
    if not path.is_file():
        raise InputError(str(path), "a folder" if path.is_dir() else "no such file", expected)
    if path.suffix in _NO_CODE:
        raise InputError(str(path), f"a file of data ({path.suffix})", expected)
    return path


def load_job(path: str | Path, names: Sequence[str] = NAMES) -> Job:
    """Run a job file and take its `job` (a Job) or the result of its `make_job()`.

    It can import what lies beside it, as under `python FILE`, from now on; a file of a package also what lies in the package.

    Arguments:
        names: others to take instead; the first that the file defines is the job, or makes it when it is called.

    Raises:
        InputError: no such file, it fails, or it defines neither.
    """
    path = check_job_file(path)
    _running.append(path)
    try:
        defined = runpy.run_path(str(path), run_name=_name_to_run(path))
        made = next((thing for name in names if (thing := look_up(defined, name)) is not None), None)
        if not isinstance(made, Job) and callable(made):
            made = made()
    except InputError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        step = _known_keyword(error) or f"Try: python {path}"
        raise InputError(str(path), text, "a job file that runs", step) from error
    finally:
        _running.pop()
    if not isinstance(made, Job):
        told = " and no ".join(f"`{name}`" for name in names)
        found = f"no {told}" if made is None else f"a value of type {type(made).__name__}"
        step = 'What stands behind `if __name__ == "__main__":` is left out.' if made is None else ""
        raise InputError(str(path), found, "`job`, a hocket.Job, or `make_job()` that returns one", step)
    object.__setattr__(made, "path", path.absolute())
    return made


def _known_keyword(error: Exception) -> str:
    """The nearest keyword of a Job, where an unknown one was given."""
    match = re.search(r"Job\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    known = [one.name for one in fields(Job) if one.init]
    return "" if match is None else nearest(match.group(1), known) or f"A Job has {', '.join(known)}."


def _name_to_run(path: Path) -> str:
    """Under which name a job file is run; what it is to import from is made known."""
    folder, package = path.absolute().parent, ["hocket_job"]
    while (folder / "__init__.py").is_file():
        package.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return ".".join(package)


# Job files that are being run for their jobs, the innermost last.
_running: list[Path] = []


def refuse_in_job_file(what: str) -> None:
    """Refuse what takes long and starts processes where a file is only run for its job, once in every process.

    Raises:
        InputError: this is such a place.
    """
    if _running:
        expected = 'a call behind `if __name__ == "__main__":`, which is left out when the file is run for its job'
        raise InputError(str(_running[-1]), f"a call of {what}", expected)
