"""Optimizer of a worker's parameters, with the whole model's parameter groups.

Rules of this file:
- The job's function always receives all trainable parameters of the user's model, with their names and in their order,
  as in a single process.
- A worker may hold only some parameters, or shards of them (a pipeline stage, a tensor-parallel rank, a replica with a
  sharded optimizer step, a subtask). The function then receives placeholders of equal shape and type without memory.
- Afterwards, the local parameters and shards replace their placeholders in the groups.
- Groups therefore depend only on names and shapes, under every plan. Every worker has all groups; some may be empty.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hocket.errors import HocketError, InputError, InternalError
from hocket.profiling.job.derived_model.subtasks import parts_of
from hocket.profiling.job.job import Job
from hocket.profiling.job.weight_average import WeightAverage, keep_average

PLACE = "Job.optimizer"
NAMED = "named"
"""Prefix of the first argument's name in a function of (name, parameter) pairs."""
_EXAMPLE = "lambda params: torch.optim.SGD(params, lr=0.1)"
_SHOWN = 3

Here = Sequence[tuple[str, nn.Parameter, Tensor]]
"""For each local parameter: name, parameter, tensor passed to the job's function."""


class JoinedOptimizer(Optimizer):
    """Several optimizers of different parameters that step together, as one optimizer.

    It has the parameter groups of all of them, one after the other. Groups and state are the same objects as in each
    optimizer, so a change of either, such as a learning rate, counts in both.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__([group for one in optimizers for group in one.param_groups], {})
        self.optimizers = tuple(optimizers)
        for one in optimizers:
            self.state.update(one.state)
            one.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every optimizer, in order."""
        for one in self.optimizers:
            one.step()


def optimizers_in(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return the optimizers that the job's function returned."""
    return optimizer.optimizers if isinstance(optimizer, JoinedOptimizer) else (optimizer,)


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the class of an optimizer, or the classes of joined ones, such as "Muon, AdamW"."""
    return ", ".join(type(one).__name__ for one in optimizers_in(optimizer))


def written_parameters(job: Job) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of the user's model, by name.

    A tied parameter has its first name.
    """
    return {name: p for name, p in job.as_written.model.named_parameters() if p.requires_grad}


def stand_ins(job: Job) -> dict[str, nn.Parameter]:
    """Return placeholders for all trainable parameters of the user's model, by name."""
    return {name: _stand_in(p, p.device) for name, p in written_parameters(job).items()}


def optimizer_of(job: Job, own: Mapping[str, nn.Parameter]) -> Optimizer:
    """Return the job's optimizer of the local parameters.

    Arguments:
        own: local parameters by name; shards of any shape for sharded parameters.

    Raises:
        InputError: the job's function does not return optimizers of exactly the given parameters.
    """
    parts = parts_of(job.model)
    device = next(iter(own.values())).device
    here: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, p in own.items():
        here.setdefault(parts[name].name if name in parts else name, []).append((name, p))
    given = {}
    for name, p in written_parameters(job).items():
        mine = here.get(name, [])
        whole = len(mine) == 1 and mine[0][0] == name and mine[0][1].shape == p.shape
        given[name] = mine[0][1] if whole else _stand_in(p, device)
    if not here.keys() <= given.keys():
        raise InternalError(f"parameters {sorted(here.keys() - given.keys())} that the job's model does not have")
    optimizer = make_optimizer(job, given)
    names = {id(p): name for name, p in given.items()}
    for group in optimizer.param_groups:
        refill(optimizer, group, [(n, q, p) for p in group["params"] for n, q in here.get(names[id(p)], [])])
    return optimizer


def whole_optimizer(job: Job) -> Optimizer:
    """Return the job's optimizer of placeholders, to inspect the parameter groups.

    Raises:
        InputError: the job's function does not return optimizers of exactly the given parameters.
    """
    return make_optimizer(job, stand_ins(job))


def group_names(job: Job) -> list[list[str]]:
    """Return the parameter names of each group of the job's optimizer.

    Raises:
        InputError: the job's function does not return optimizers of exactly the given parameters.
    """
    given = stand_ins(job)
    names = {id(p): name for name, p in given.items()}
    return [[names[id(p)] for p in group["params"]] for group in make_optimizer(job, given).param_groups]


def make_optimizer(job: Job, given: Mapping[str, nn.Parameter]) -> Optimizer:
    """Call the job's function, and validate the optimizer that it returns; several optimizers are joined.

    Raises:
        InputError: the function fails, does not return optimizers, or returns optimizers of other parameters.
    """
    named = first_argument(job.optimizer).startswith(NAMED)
    made: Any = called(PLACE, job.optimizer, list(given.items()) if named else list(given.values()))
    if isinstance(made, (list, tuple)) and made and all(isinstance(one, Optimizer) for one in made):
        made = _joined(made, {id(p): name for name, p in given.items()})
    if isinstance(made, LRScheduler) or not _is_optimizer(made):
        hint = f"Write for example: {_EXAMPLE}."
        if isinstance(made, LRScheduler):
            hint = "Return the optimizer, and give the schedule as Job.lr_schedule."
        elif isinstance(made, (list, tuple)) and made:
            schedulers = [one for one in made if isinstance(one, LRScheduler)]
            if schedulers and len(made) == 2 and _is_optimizer(made[0]):
                told = f"an optimizer with a {type(schedulers[0]).__name__}"
                hint = "Return the optimizer alone, and give the schedule as Job.lr_schedule."
                raise InputError(PLACE, told, "a torch.optim.Optimizer from the function", hint)
            hint = "Return one optimizer, or several of different parameters."
        raise InputError(PLACE, _told(made), "a torch.optim.Optimizer from the function", hint)
    _check_parameters(job, made, given)
    for one in optimizers_in(made):
        for p in list(inspect.signature(type(one).step).parameters.values())[1:]:
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                found = f"{type(one).__name__}, whose step() needs {p.name!r}"
                raise InputError(PLACE, found, "an optimizer whose step() needs gradients only")
    if job.ema is not None:
        keep_average(made, job.ema)
    return made


def refill(optimizer: Optimizer, group: dict[str, Any], new: Here) -> None:
    """Replace the parameters of a group, and transfer their optimizer state.

    Arguments:
        new: the new parameters (second entries) with the old ones of the group that they stand for (third entries).

    Raises:
        InputError: the optimizer has computed state from the values of a sharded weight.
    """
    old = list(group["params"])
    for _, p, given in new:
        if p is not given and given in optimizer.state:
            optimizer.state[p] = {key: _of_shape(value, given, p) for key, value in optimizer.state[given].items()}
    group["params"][:] = [p for _, p, _ in new]
    if "param_names" in group:
        group["param_names"] = [name for name, _, _ in new]
    kept = {id(p) for _, p, _ in new}
    for p in old:
        if id(p) not in kept:
            optimizer.state.pop(p, None)


def first_argument(function: Callable[..., Any]) -> str:
    """Return the name of a function's first argument; empty if unknown."""
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return ""


def called(place: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the job.

    Raises:
        InputError: the function fails; the error names the line.
    """
    try:
        return function(*arguments)
    except HocketError:
        raise
    except Exception as error:
        raise InputError(
            place, f"{type(error).__name__}: {error}{_line(function, error)}", "a function that runs"
        ) from error


def has_step_hooks(optimizer: Optimizer) -> bool:
    """True if the job's function has registered step hooks."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    held = {id(one): one for one in (optimizer, *optimizers_in(optimizer))}.values()
    hooks = (hook for one in held for name in names for hook in getattr(one, name, {}).values())
    return any(not isinstance(hook, WeightAverage) for hook in hooks)


def has_scheduler(optimizer: Optimizer) -> bool:
    """True if the job's function has attached a torch scheduler."""
    wrapped = any(hasattr(one.step, "_wrapped_by_lr_sched") for one in optimizers_in(optimizer))
    return wrapped or any("initial_lr" in group for group in optimizer.param_groups)


def some_of(names: Sequence[str]) -> str:
    """Format the first of some names and the number of the others, for an error."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _stand_in(p: Tensor, device: torch.device) -> nn.Parameter:
    # No computation uses a placeholder. NaN exposes an optimizer that computes state from the values.
    return nn.Parameter(torch.full((), float("nan"), dtype=p.dtype, device=device).expand(p.shape))


def _of_shape(value: Any, given: Tensor, p: Tensor) -> Any:
    """Return one entry of a shard's optimizer state, from that of the whole weight."""
    if not isinstance(value, Tensor) or value.shape != given.shape:
        return value.clone() if isinstance(value, Tensor) else value
    first = value.flatten()[:1]
    if type(value) is Tensor and not value.is_meta and not bool((value == first).all()):
        raise InputError(
            PLACE,
            "state that is computed from the weight's values",
            "state with the same initial value for every element",
        )
    return first.expand(p.numel()).reshape(p.shape).clone().to(p.device)


def _is_optimizer(made: Any) -> bool:
    if isinstance(made, type):
        return False
    return callable(getattr(made, "step", None)) and hasattr(made, "state") and hasattr(made, "param_groups")


def _joined(optimizers: Sequence[Optimizer], names: Mapping[int, str]) -> Optimizer:
    """Join optimizers, of which no two have the same parameter."""
    seen: set[int] = set()
    for one in optimizers:
        own = [id(p) for group in one.param_groups for p in group["params"]]
        if twice := [repr(names.get(key, "a tensor")) for key in own if key in seen]:
            raise InputError(PLACE, f"{some_of(twice)} in two optimizers", "each parameter in one optimizer")
        seen.update(own)
    return JoinedOptimizer(optimizers) if len(optimizers) > 1 else optimizers[0]


def _told(made: Any) -> str:
    if made is None:
        return "None"
    if isinstance(made, (list, tuple)):
        return f"a {type(made).__name__} of {len(made)}"
    return f"the class {made.__name__}" if isinstance(made, type) else f"a {type(made).__name__}"


def _check_parameters(job: Job, made: Optimizer, given: Mapping[str, nn.Parameter]) -> None:
    """Check that an optimizer has exactly the given parameters."""
    held = {id(p): p for group in made.param_groups for p in group["params"]}
    known = {id(p): name for name, p in given.items()}
    foreign = [p for key, p in held.items() if key not in known]
    if foreign:
        models = {id(p): name for name, p in job.as_written.model.named_parameters()}
        told = [repr(models.get(id(p), f"a tensor of shape {tuple(p.shape)}")) for p in foreign]
        found = f"an optimizer of {some_of(told)}, which are not among the parameters passed to the function"
        hint = (
            f"Use the function's argument, not the model's parameters: {_EXAMPLE}; for names write "
            "lambda named_parameters: ..., which receives (name, parameter) pairs."
        )
        raise InputError(PLACE, found, "an optimizer of exactly the parameters that the function receives", hint)
    missing = [repr(name) for key, name in known.items() if key not in held]
    if missing:
        hint = "To freeze parameters, call requires_grad_(False) on them where the model is created: the function does not receive them."
        expected = "an optimizer of exactly the parameters that the function receives"
        raise InputError(PLACE, f"no {some_of(missing)} in its groups", expected, hint)


def _line(function: Callable[..., Any], error: Exception) -> str:
    """Return the location of an error in the function's own file."""
    own = getattr(getattr(function, "__code__", None), "co_filename", None)
    found, trace = "", error.__traceback__
    while trace is not None:
        if own is not None and trace.tb_frame.f_code.co_filename == own:
            found = f" ({own}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
