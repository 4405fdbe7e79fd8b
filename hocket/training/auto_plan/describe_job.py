"""Description of a job by everything that decides its profile.

A kept profile is used again for a job with the same description. Values that change no seconds and no bytes are left
out: the values of weights, the learning rate and the seed. The code of a function that the model calls, and that is no
method of a module, is not compared; `--replan` measures again after such a change.
"""

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

from hocket.errors import InputError
from hocket.profiling.job.derived_model.training_step import user_module
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import module_text, value_or_name
from hocket.profiling.job.optimizer import make_optimizer, optimizer_name, stand_ins
from hocket.util.files import digest

_SETTINGS = (
    "batch_size", "name", "inputs", "precision", "clip_grad_norm", "clip_grad_norm_over", "subtask_bytes"
)  # fmt: skip
_OF_TORCH = ("torch.", "builtins", "hocket.")


def describe_job(job: Job) -> dict[str, Any]:
    """Describe a job, as plain data for JSON: equal descriptions have equal profiles.

    It contains the settings of the job; names, shapes and types of parameters, buffers and of the first sample; the
    modules with their code, and the optimizer.

    Raises:
        InputError: the first sample cannot be read.
    """
    tensors = [*job.model.named_parameters(), *job.model.named_buffers()]
    modules = [(name, user_module(module)) for name, module in job.model.named_modules()]
    step = {} if job.step is None else {"step": [value_or_name(job.step), _code_digest([job.step])]}
    return step | {
        "settings": {name: getattr(job, name) for name in _SETTINGS},
        "loss": [value_or_name(job.loss), value_or_name(job.loss_weight), _code_digest([job.loss, job.loss_weight])],
        "tensors": {name: [*_shape(tensor), tensor.requires_grad] for name, tensor in tensors},
        "sample": {name: _shape(tensor) for name, tensor in job.batch([0]).items()},
        "modules": {name: module_text(module) for name, module in modules},
        "code": _code_digest(
            [thing for kind in {type(module): 0 for _, module in modules} for thing in _methods(kind)]
        ),
        "optimizer": [*_optimizer(job), *(["ema"] if job.ema is not None else [])],
    }


def _shape(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype), *tensor.shape]


def _optimizer(job: Job) -> list[Any]:
    """Describe the optimizer's groups: numbers count only as zero or not, as momentum does.

    The result is empty for an optimizer that the measurement refuses.
    """
    given = stand_ins(job)
    try:
        optimizer = make_optimizer(job, given) if given else None
    except InputError:
        optimizer = None
    if optimizer is None:
        return []
    groups = [
        {key: _kind(value) for key, value in group.items() if key != "params"} | {"weights": len(group["params"])}
        for group in optimizer.param_groups
    ]
    return [optimizer_name(optimizer), *groups]


def _kind(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    return value != 0 if isinstance(value, int | float) else type(value).__name__


def _methods(kind: type) -> Iterator[Any]:
    """Iterate over the methods of a class and of its bases, without those of torch."""
    for base in kind.__mro__:
        if not f"{base.__module__}.".startswith(_OF_TORCH):
            yield from vars(base).values()


def _code_digest(things: list[Any]) -> str:
    """Compute a digest of the code of functions; other values are ignored."""
    codes = [thing.__code__ for thing in things if isinstance(thing, FunctionType)]
    return digest("\n".join(map(_code_text, codes)).encode())


def _code_text(code: CodeType) -> str:
    """Write compiled code as text, without line numbers and file names."""
    constants = [_constant(value) for value in code.co_consts]
    return f"{code.co_name}({code.co_varnames}) {code.co_code.hex()} {code.co_names} {code.co_freevars} {constants}"


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code_text(value)
    # The order of a set differs between processes.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
