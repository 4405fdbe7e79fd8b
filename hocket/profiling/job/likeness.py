"""Fingerprint of a job, to compare a rebuilt job with the original job.

Workers rebuild a job from its origin. Without a seed, or with weights loaded after construction, a rebuilt job would
silently differ from the original job, and from that of another worker. A few values of every tensor reveal the
difference. Their last digits may differ, because the order of sums depends on the number of threads.
"""

from math import isclose, isfinite
from typing import TYPE_CHECKING, Any

from hocket.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from hocket.profiling.job.job import Job

SAME_EVERYWHERE = (
    "Seed it (torch.manual_seed) and load its weights in the code that creates it: every worker runs that code."
)
"""Next step of errors for jobs that differ."""
_VALUES = 8
_TOLERANCE = 1e-4

Likeness = dict[str, Any]


def likeness(job: "Job") -> Likeness:
    """Compute the fingerprint of a job, as plain data for JSON.

    It contains settings of the job, and some values of each parameter and buffer.
    """
    tensors = [*job.model.named_parameters(), *job.model.named_buffers()]
    own = {name: getattr(job, name) for name in ("batch_size", "seed", "inputs", "clip_grad_norm", "precision")}
    weight = job.loss_weight
    own["loss_weight"] = weight if weight is None or isinstance(weight, str) else type(weight).__name__
    return {**own, "samples": len(job.data), "tensors": {name: _of(tensor) for name, tensor in tensors}}


def _of(tensor: "Tensor") -> dict[str, Any]:
    found: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "values": []}
    if tensor.is_meta or tensor.numel() == 0:
        return found
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // _VALUES)
    few = flat[::step][:_VALUES].cpu()
    numbers = (few.abs() if few.is_complex() else few).double().tolist()
    return found | {"values": [x if isfinite(x) else None for x in numbers]}


def check_likeness(job: "Job", wanted: Likeness) -> None:
    """Refuse a rebuilt job that differs from the original job.

    Raises:
        InputError: the jobs differ; the error names the first difference.
    """
    if told := difference(wanted, likeness(job)):
        found = f"a different job when its file was loaded again: {told}"
        raise InputError("job", found, "the original job", SAME_EVERYWHERE)


def difference(wanted: Likeness, found: Likeness) -> str:
    """Return the first difference of two jobs, as "batch_size is 8 and not 4".

    The result is empty if the jobs are alike.
    """
    for name, value in wanted.items():
        if name != "tensors" and found[name] != value:
            return f"{name} is {found[name]} and not {value}"
    for name, tensor in wanted["tensors"].items():
        other = found["tensors"].get(name)
        if other is None:
            return f"there is no {name}"
        if (other["shape"], other["dtype"]) != (tensor["shape"], tensor["dtype"]):
            return f"{name} is {other['dtype']} {other['shape']} and not {tensor['dtype']} {tensor['shape']}"
        if not _alike(tensor["values"], other["values"]):
            return f"{name} has other values"
    return next((f"there is {name} as well" for name in found["tensors"] if name not in wanted["tensors"]), "")


def _alike(one: list[float | None], other: list[float | None]) -> bool:
    scale = max((abs(x) for x in one if x is not None), default=0.0)
    return all(
        x is y if x is None or y is None else isclose(x, y, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * scale)
        for x, y in zip(one, other, strict=True)
    )
