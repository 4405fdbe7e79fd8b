"""Check that parameter groups depend only on names and shapes.

Rules of this file: the job's optimizer function is tried on the model's own parameters and on placeholders. A worker
with a part of the model passes placeholders for the other parameters. Groups that the function chooses by the
identity or the values of parameters would silently differ there.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.profiling.job.optimizer import PLACE, make_optimizer, some_of, stand_ins, written_parameters

_APART = "has a part of the model"
_RULE = "groups that depend only on names and shapes of the parameters, which are equal on every worker"
_BY_NAME = (
    "Choose by p.ndim, or by name: lambda named_parameters: ... receives (name, parameter) pairs. For groups by module use the "
    "names of its parameters, not the parameters themselves. Compute settings that need parameter values outside of the function."
)


def check_groups(job: Job) -> None:
    """Refuse parameter groups that do not follow from names and shapes.

    Such groups would differ on a worker with a part of the model. The function must make the same groups of the
    model's own parameters and of placeholders.

    Raises:
        InputError: the groups differ. The error names a parameter. See also `optimizer_of`.
    """
    own = written_parameters(job)
    found, expected = (_settings(make_optimizer(job, given), given) for given in (own, stand_ins(job)))
    if moved := [repr(name) for name in own if found[name][0] != expected[name][0]]:
        raise InputError(PLACE, f"{some_of(moved)} in another parameter group where a worker {_APART}", _RULE, _BY_NAME)
    for name in own:
        for key, value in found[name][1].items():
            if not _equal(value, expected[name][1].get(key)):
                told = f"another {key} in the parameter group of {name!r} where a worker {_APART}"
                raise InputError(PLACE, told, _RULE, _BY_NAME)


def _settings(made: Optimizer, given: Mapping[str, nn.Parameter]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the group of each parameter, by name: its number and its settings."""
    names = {id(p): name for name, p in given.items()}
    return {
        names[id(p)]: (number, {key: value for key, value in group.items() if not key.startswith("param")})
        for number, group in enumerate(made.param_groups)
        for p in group["params"]
    }


def _equal(one: Any, other: Any) -> bool:
    """True if two settings of a group are equal.

    Settings that are not numbers, strings or tensors count as equal.
    """
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and (one.is_meta or torch.equal(one, other))
    if isinstance(one, (int, float, str)) and isinstance(other, (int, float, str)):
        return one == other
    return True
