"""Export of a checkpoint's weights: safetensors, `torch.save`, or a model's own `save_pretrained`."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.errors import InputError
from hocket.profiling.job.derived_model.training_step import user_module
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.entries import tensors_of
from hocket.runtime.checkpoint.export.model_names import WeightNames, load_into, names_as_stored, names_of_model
from hocket.runtime.checkpoint.export.output_folder import check_output, output_folder
from hocket.runtime.checkpoint.export.safetensors_files import write_safetensors
from hocket.runtime.checkpoint.export.stored_weights import StoredWeights
from hocket.runtime.checkpoint.listing import open_checkpoint

SAFETENSORS, TORCH, HF = FORMATS = ("safetensors", "torch", "hf")
TORCH_FILE = "model.pt"


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Attributes:
        checkpoint: folder of the exported checkpoint.
        step: steps trained in it.
        files: files of the output folder that were written.
        tensors: number of tensors.
        weights_bytes: size of the tensors.
        notes: messages for the user, such as damaged newer checkpoints.
    """

    checkpoint: Path
    step: int
    files: tuple[Path, ...]
    tensors: int
    weights_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export; they are explained by `hocket.export_weights`."""

    format: str = SAFETENSORS
    max_shard_bytes: float | None = None
    force: bool = False
    ema: bool = False


def export_weights(
    checkpoint: str | Path, output: str | Path, job: Job | str | Path | None, options: ExportOptions
) -> Exported:
    """Export a checkpoint's weights; arguments and errors are those of `hocket.export_weights`."""
    path, format, max_shard_bytes = Path(output), options.format, options.max_shard_bytes
    _check_options(format, job, max_shard_bytes)
    check_output(path, options.force)
    notes: list[str] = []
    weights = StoredWeights(open_checkpoint(checkpoint, notes.append), options.ema)
    model = None
    if job is not None:
        loaded = job if isinstance(job, Job) else load_job(job)
        _check_job(loaded, weights)
        model = user_module(loaded.as_written.model)
    if format == HF and not callable(getattr(model, "save_pretrained", None)):
        step = f"Use --format {SAFETENSORS} or {TORCH}."
        raise InputError("Job.model", type(model).__name__, "a model with a method `save_pretrained`", step)
    names = names_as_stored(weights) if model is None else names_of_model(model, weights)
    with output_folder(path) as part:
        if format == SAFETENSORS:
            write_safetensors(part, names, weights, max_shard_bytes or inf)
        elif format == TORCH:
            _write_torch(part / TORCH_FILE, model, names, weights)
        else:
            assert model is not None
            load_into(model, names, weights)
            _save_pretrained(model, part, max_shard_bytes)
        files = sorted(file.relative_to(part) for file in part.rglob("*") if file.is_file())
    return Exported(
        checkpoint=weights.checkpoint.path,
        step=weights.checkpoint.position.step,
        files=tuple(path / file for file in files),
        tensors=len(names.once),
        weights_bytes=sum(weights.size_bytes(stored) for stored in names.once.values()),
        notes=tuple(notes),
    )


def _check_options(format: str, job: Job | str | Path | None, max_shard_bytes: float | None) -> None:
    """Refuse options that conflict, before anything is read."""
    if format not in FORMATS:
        raise InputError("format", repr(format), f"one of {', '.join(FORMATS)}")
    if format == HF and job is None:
        raise InputError("job", "nothing", "the job file, which builds the model to save", "Pass --job job.py.")
    if max_shard_bytes is not None and format == TORCH:
        step = f"Use --format {SAFETENSORS} for shards."
        raise InputError("max_shard_bytes", "given", f"no shards: {TORCH} writes one file", step)
    if max_shard_bytes is not None and not 1 <= max_shard_bytes < inf:
        raise InputError("max_shard_bytes", str(max_shard_bytes), ">= 1")


def _check_job(job: Job, weights: StoredWeights) -> None:
    """Refuse a checkpoint of another job, as a resumed run does."""
    found, own = weights.checkpoint.position.job, job.label
    if found and found != own:
        step = "Pass the job file of this training."
        raise InputError(str(weights.checkpoint.path), f"a checkpoint of job {found!r}", f"one of {own!r}", step)


def _write_torch(path: Path, model: nn.Module | None, names: WeightNames, weights: StoredWeights) -> None:
    """Write a dictionary of tensors with `torch.save`; tied tensors share their storage in the file.

    All tensors are in memory once: those of the model are overwritten, if there is one.
    """
    if model is None:
        found = {stored: weights[stored] for stored in names.once.values()}
    else:
        load_into(model, names, weights)
        every = tensors_of(model)
        found = {stored: every[name].detach().cpu() for name, stored in names.once.items()}
    state = {name: found[stored] for name, stored in names.stored.items()}
    try:
        torch.save(state, path)
    except RuntimeError as error:  # torch's writer reports a full disk so
        why = f"torch.save failed: {str(error).splitlines()[0]}"
        raise InputError(path.name, why, "enough disk space", "Nothing was changed.") from None


def _save_pretrained(model: nn.Module, folder: Path, max_shard_bytes: float | None) -> None:
    """Call the model's own `save_pretrained`.

    Raises:
        InputError: the call failed.
    """
    save: Any = model.save_pretrained
    options = {} if max_shard_bytes is None else {"max_shard_size": int(max_shard_bytes)}
    try:
        save(str(folder), **options)
    except OSError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise InputError(f"{type(model).__name__}.save_pretrained", text, "a call that writes the model") from error
