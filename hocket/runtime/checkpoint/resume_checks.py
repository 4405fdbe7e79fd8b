"""Checks of a checkpoint against the job that resumes from it: job, optimizer, batch size and order of the samples."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.errors import InputError
from hocket.profiling.checks.elementwise_step import kept_group_keys, kept_keys
from hocket.profiling.checks.group_state import group_key, is_group_key
from hocket.profiling.job.derived_model.subtasks import ParameterRows
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import rates_of
from hocket.profiling.job.optimizer import whole_optimizer
from hocket.profiling.job.weight_average import EMA
from hocket.runtime.checkpoint.checkpoint import Checkpoint, Position
from hocket.util.units import show_count


def check_optimizer(job: Job, path: Path, state: Mapping[str, Any], parts: Mapping[str, ParameterRows]) -> None:
    """Require optimizer state with the keys that the job's optimizer keeps.

    A parameter without optimizer state is accepted.

    Arguments:
        path: the checkpoint, for the error.
        parts: parameters of this worker that are rows of a whole parameter, by name.

    Raises:
        InputError: the state of another optimizer, or of other parameter groups.
    """
    wanted = kept_keys(job)
    for name, entries in state["optimizer"].items():
        kept, own = (
            {key for key, value in entries.items() if value is not None and not is_group_key(key)},
            wanted[parts[name].name if name in parts else name],
        )
        if kept and kept != own:
            found, expected = (", ".join(sorted(keys)) or "nothing" for keys in (kept, own))
            kind = type(whole_optimizer(job)).__name__
            step = "Use the optimizer of the checkpoint, or start from step 0 in another folder."
            if (EMA in kept) != (EMA in own):
                step = f"Use the same Job.ema: the checkpoint has {'' if EMA in kept else 'no '}averages of weights. {step}"
            told = f"{expected}, which {kind} keeps"
            raise InputError(f"checkpoint {path}: optimizer", f"{found} of {name!r}", told, step)


def without_group_state(job: Job, state: Mapping[str, Any]) -> list[str]:
    """Return the parameters with optimizer state that lacks state of their group, which the job's optimizer keeps."""
    keys = {group_key(key) for key in kept_group_keys(job) - rates_of(job).keys}
    return sorted(
        name for name, entries in state["optimizer"].items() if keys and entries and not keys & entries.keys()
    )


def first_step(found: Checkpoint, job: Job, batch_size: int) -> int:
    """Return the number of steps of a batch size that are trained already.

    Raises:
        InputError: a checkpoint of another job, or a batch size that does not divide the samples trained.
    """
    position = found.position
    if position.job != job.label:
        hint = "Choose the folder of this job's checkpoints."
        raise InputError(str(found.path), f"a checkpoint of job {position.job!r}", f"one of {job.label!r}", hint)
    if position.samples % batch_size:
        hint = f"Use a batch size that divides {position.samples}."
        raise InputError(str(found.path), f"{position.samples} samples trained", f"whole batches of {batch_size}", hint)
    return position.samples // batch_size


def other_order(position: Position, job: Job) -> str:
    """Describe why the samples after a checkpoint are not the ones that its run would have read.

    Returns:
        The difference of seed or data; empty if the order is the same, or unknown.
    """
    if position.seed is None or position.data_samples is None:
        return ""
    old, new = position.data_samples, job.samples
    before, after = position.shuffle is not False, job.shuffle is not False
    told = [f"with seed {position.seed}, and the job has seed {job.seed}"] if position.seed != job.seed else []
    told += [f"with shuffle={before}, and the job has shuffle={after}"] if before != after else []
    told += [f"on {show_count(old, 'sample')}, and the data has {new}"] if old != new else []
    if not told:
        return ""
    inside = position.samples % old or position.samples % new  # at the border of an epoch, none is lost
    lost = ", so of the epoch under way some are read again and others not at all" if inside else ""
    return f"{'; '.join(told)}: the order of the samples changes{lost}"
