"""Fingerprint of a job, to compare a rebuilt job with the original job.

Workers rebuild a job from its origin. Without a seed, with weights loaded or settings changed after construction, or
with other command-line arguments, a rebuilt job would silently differ from the original job, and from that of another
worker. Settings, a few values of every tensor, two samples and the loss of one sample reveal the difference. The last
digits of numbers may differ, because the order of sums depends on the number of threads.
"""

from collections.abc import Mapping
from math import isclose, isfinite
from typing import TYPE_CHECKING, Any

from hocket.errors import InputError
from hocket.profiling.data.checksums import Sums
from hocket.profiling.data.checksums import difference as other_item

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hocket.profiling.job.job import Job

SAME_EVERYWHERE = (
    "Every worker runs the code that creates the job. Seed it (torch.manual_seed), and load weights and change settings in that "
    'code: not under `if __name__ == "__main__":`, and not from command-line arguments, which local workers do not have.'
)
"""Next step of errors for jobs that differ."""
_VALUES = 8
_TOLERANCE = 1e-4
_SAMPLES = 2
_RATE_STEPS = (0, 1, 10, 100, 1000)  # a torch scheduler is replayed up to the last one
_SETTINGS = (
    "batch_size", "name", "seed", "inputs", "clip_grad_norm", "clip_grad_norm_over", "precision", "subtask_bytes"
)  # fmt: skip

Likeness = dict[str, Any]


def likeness(job: "Job") -> Likeness:
    """Compute the fingerprint of a job, as plain data for JSON.

    It contains settings of the job, its modules, its optimizer and its learning rates; some values of each parameter
    and buffer; checksums of two samples, and the loss of one (None if it is unknown, see `one_loss`).
    """
    from hocket.profiling.checks.one_loss import one_loss
    from hocket.profiling.job.derived_model.training_step import user_module

    tensors = [*job.model.named_parameters(), *job.model.named_buffers()]
    settings = {name: _plain(getattr(job, name)) for name in _SETTINGS}
    settings |= {
        "loss": value_or_name(job.loss),
        "loss_weight": value_or_name(job.loss_weight),
        "lr_schedule": value_or_name(job.lr_schedule),
    }
    settings |= {"samples": job.samples}
    if job.collate is not None:
        settings |= {"collate": value_or_name(job.collate)}
    if job.shuffle is False:
        settings |= {"shuffle": False}
    if job.ema is not None:
        settings |= {"ema": job.ema}
    if job.evaluate is not None:
        settings |= {
            "samples of evaluate": len(job.evaluate.data),
            "every of evaluate": job.evaluate.every,
            "batch_size of evaluate": job.evaluate.batch_size,
            "metrics of evaluate": list(job.evaluate.metrics),
        }
    if job.step is not None:
        settings |= {"step": value_or_name(job.step)}
    modules = [(name, user_module(module)) for name, module in job.model.named_modules()]
    return {
        "settings": settings,
        "tensors": {name: _of(tensor) for name, tensor in tensors},
        "modules": {f"module {name}" if name else "the model": module_text(m) for name, m in modules},
        "optimizer": _optimizer(job),
        "data": _data(job),
        "loss": one_loss(job),
    }


def _of(tensor: "Tensor") -> dict[str, Any]:
    from hocket.profiling.job.derived_model.placeholders import is_placeholder

    found: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "trained": tensor.requires_grad}
    found["values"] = []
    if tensor.is_meta or tensor.numel() == 0 or is_placeholder(tensor):
        return found
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // _VALUES)
    few = flat[::step][:_VALUES].cpu()
    numbers = (few.abs() if few.is_complex() else few).double().tolist()
    return found | {"values": [x if isfinite(x) else None for x in numbers]}


def module_text(module: "nn.Module") -> str:
    """Describe a module: its class and its mode, with the settings of modules of torch."""
    kind = type(module)
    # The text of another library may contain what differs between processes, such as addresses.
    settings = module.extra_repr() if kind.__module__.startswith("torch.nn.modules.") else "..."
    return f"{kind.__name__}({settings}) in {'training' if module.training else 'evaluation'} mode"


def _optimizer(job: "Job") -> dict[str, Any]:
    """Describe the optimizer's groups, and what the schedule writes into them at some steps.

    The result is empty for an optimizer that later checks refuse. A schedule may end: steps at which it fails are left
    out.
    """
    from hocket.profiling.job.learning_rate.learning_rates import LearningRates
    from hocket.profiling.job.optimizer import has_step_hooks, make_optimizer, optimizer_name, stand_ins

    given = stand_ins(job)
    if not given:
        return {}
    found: dict[str, Any] = {}
    try:
        optimizer = make_optimizer(job, given)
        found |= {"optimizer": optimizer_name(optimizer), "step hooks": has_step_hooks(optimizer)}
        names = {id(p): name for name, p in given.items()}
        for number, group in enumerate(optimizer.param_groups):
            settings = {key: value for key, value in group.items() if not key.startswith("param")}
            found |= {f"{key} of parameter group {number}": _plain(value) for key, value in settings.items()}
            found |= {f"parameter group of {names[id(p)]}": number for p in group["params"]}
        rates = LearningRates(job, optimizer)
        for step in _RATE_STEPS:
            for number, values in enumerate(rates.at(step)):
                found |= {
                    f"{key} of parameter group {number} at step {step}": _plain(value) for key, value in values.items()
                }
    except InputError:
        return found
    return found


def _data(job: "Job") -> dict[str, Sums]:
    """Return the checksums of the first samples, by index; empty if they cannot be read."""
    from hocket.profiling.data.checksums import sums_of

    indices = job.indices_at(0, min(_SAMPLES, job.samples))
    try:
        return {str(i): sums_of(job.batch([i], [position]))[0] for position, i in enumerate(indices)}
    except InputError:
        return {}


def value_or_name(given: Any) -> Any:
    """Describe a loss, a loss weight, a schedule or a collate function: its value, or the name of the function."""
    from hocket.profiling.job.loss_weight import Tokens

    if given is None or isinstance(given, str):
        return given
    return repr(given) if isinstance(given, Tokens | Mapping) else getattr(given, "__qualname__", type(given).__name__)


def _plain(value: Any) -> Any:
    """Convert a setting to plain data for JSON; a value of another kind to the name of its type."""
    from torch import Tensor

    if isinstance(value, Tensor):
        value = value.tolist() if not value.is_meta and value.numel() <= _VALUES else type(value).__name__
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    return type(value).__name__


def check_likeness(job: "Job", wanted: Likeness) -> None:
    """Refuse a rebuilt job that differs from the original job.

    Raises:
        InputError: the jobs differ; the error names the first difference.
    """
    from hocket.profiling.data.repeatable import SEED, check_repeatable

    found = likeness(job)
    told, step = difference(wanted, found), SAME_EVERYWHERE
    if not told and (index := _other_sample(wanted, found)):
        check_repeatable(job)  # a sample that differs at every read is not a matter of where the job is created
        told, step = f"Job.data[{index}] has other values", f"{SAME_EVERYWHERE} {SEED}"
    if told:
        raise InputError("job", f"a different job when its file was loaded again: {told}", "the original job", step)


def difference(wanted: Likeness, found: Likeness) -> str:
    """Return the first difference of two jobs, as "batch_size is 8 and not 4".

    The result is empty if the jobs are alike, except for their samples. If the samples differ, losses are not compared.
    """
    return (
        _other_setting(wanted["settings"], found["settings"])
        or _other_tensor(wanted["tensors"], found["tensors"])
        or _other_setting(wanted["modules"], found["modules"])
        or _other_setting(wanted["optimizer"], found["optimizer"])
        or ("" if _other_sample(wanted, found) else _other_loss(wanted, found))
    )


def _other_setting(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    for name, value in wanted.items():
        if name not in found:
            return f"there is no {name}"
        if found[name] != value:
            return f"{name} is {found[name]} and not {value}"
    return next((f"there is {name} as well" for name in found if name not in wanted), "")


def _other_tensor(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    for name, tensor in wanted.items():
        other = found.get(name)
        if other is None:
            return f"there is no {name}"
        if (other["shape"], other["dtype"]) != (tensor["shape"], tensor["dtype"]):
            return f"{name} is {other['dtype']} {other['shape']} and not {tensor['dtype']} {tensor['shape']}"
        if not _alike(tensor["values"], other["values"]):
            return f"{name} has other values"
        if tensor["trained"] != other["trained"]:
            return f"{name} {'requires' if other['trained'] else 'does not require'} a gradient"
    return next((f"there is {name} as well" for name in found if name not in wanted), "")


def _other_sample(wanted: Likeness, found: Likeness) -> str:
    """Return the index of the first sample that differs; empty if there is none."""
    both = [index for index in wanted["data"] if index in found["data"]]
    return next((index for index in both if other_item(wanted["data"][index], found["data"][index])), "")


def _other_loss(wanted: Likeness, found: Likeness) -> str:
    one, other = wanted["loss"], found["loss"]
    if one is None or other is None or isclose(one[0], other[0], rel_tol=one[1], abs_tol=one[1] ** 2):
        return ""
    return f"the loss of its first sample is {other[0]:.6g} and not {one[0]:.6g}"


def _alike(one: list[float | None], other: list[float | None]) -> bool:
    scale = max((abs(x) for x in one if x is not None), default=0.0)
    return all(
        x is y if x is None or y is None else isclose(x, y, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * scale)
        for x, y in zip(one, other, strict=True)
    )
