"""Optimizer state in parameter groups, such as a step counter that all parameters of a group share.

torch's own optimizers keep state by parameter only. Others change entries of their groups: FusedAdam of apex, schedule-free
optimizers, Prodigy. Stages of a pipeline may have other values for one group. So a checkpoint stores these entries
with the state of each parameter of the group, under the key `group:KEY`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hocket.errors import InputError

_PREFIX = "group:"
_PARAMETERS = ("params", "param_names")

Groups = Sequence[Mapping[str, Any]]
"""Entries of each parameter group, without its parameters."""


def is_group_key(key: str) -> bool:
    """True for a key of a parameter's optimizer state that belongs to its group."""
    return key.startswith(_PREFIX)


def group_key(key: str) -> str:
    """Return the key under which a group's entry is stored with a parameter's state."""
    return _PREFIX + key


def group_entries(optimizer: Optimizer) -> Groups:
    """Return copies of the entries of each parameter group."""
    return [{k: _copied(v) for k, v in group.items() if k not in _PARAMETERS} for group in optimizer.param_groups]


def changed_entries(optimizer: Optimizer, before: Groups, left_out: Collection[str] = ()) -> Groups:
    """Return the entries of each parameter group that differ from earlier ones.

    Arguments:
        before: earlier entries.
        left_out: keys to leave out.
    """
    return [
        {k: v for k, v in now.items() if k not in left_out and not (k in old and _same(v, old[k]))}
        for now, old in zip(group_entries(optimizer), before, strict=True)
    ]


def load_entries(optimizer: Optimizer, names: Mapping[Tensor, str], state: Mapping[str, Mapping[str, Any]]) -> None:
    """Set the entries of parameter groups from the state of their parameters.

    Arguments:
        names: names of the parameters.
        state: entries of the optimizer state by parameter name; those of groups have keys of `group_key`.

    Raises:
        InputError: parameters of one group have different entries.
    """
    for group in optimizer.param_groups:
        found: dict[str, tuple[str, Any]] = {}
        for p in group["params"]:
            for stored, value in state.get(names[p], {}).items():
                if not is_group_key(stored):
                    continue
                key = stored.removeprefix(_PREFIX)
                first, other = found.setdefault(key, (names[p], value))
                if not _same(value, other):
                    raise InputError(
                        f"checkpoint: {key!r} of a parameter group",
                        f"{other} for {first} and {value} for {names[p]}",
                        "one value for all parameters of the group",
                        "Resume with the stages of the plan that wrote the checkpoint.",
                    )
        for key, (name, value) in found.items():
            now = group.get(key)
            if isinstance(now, Tensor) and isinstance(value, Tensor):
                now.copy_(value)
            elif isinstance(value, Tensor):
                group[key] = value.to(next(p.device for p in group["params"] if names[p] == name), copy=True)
            else:
                group[key] = value


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and one.shape == other.shape and bool((one == other.to(one.device)).all())
    return type(one) is type(other) and bool(one == other)
