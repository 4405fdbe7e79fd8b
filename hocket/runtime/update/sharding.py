"""Sharded optimizer state: gather the replicas' shards into whole state.

Replicas exchange only bytes, nothing pickled. A replica without any element of a weight learns from the others which
optimizer state the weight has.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.errors import RefusedError
from hocket.profiling.checks.elementwise_step import check_optimizer
from hocket.profiling.job.job import Job
from hocket.program.instruction import Instruction, ValueKind
from hocket.runtime.update.flat_buffer import Flat
from hocket.util.compatibility import Feature

Entries = Mapping[str, object]
"""An optimizer's state of one parameter: tensors and numbers by key."""
Gather = Callable[[Tensor], list[Tensor]]
"""All-gather of equally shaped tensors of all replicas, in order of shards."""


def made_by(collective: Instruction, thing: Any) -> Any:
    """Return the object into which a collective writes, with allocated memory.

    Arguments:
        collective: the collective, which begins.
        thing: its input: the engine's object for the value that it reads.
    """
    value = collective.writes[0]
    if value.what is ValueKind.GATHERED:
        return thing.gathered(value)
    if value.what is ValueKind.PART:
        thing.own_part()
    return thing


def over(collective: Instruction, made: Any) -> None:
    """Free memory that is not needed after a collective.

    Arguments:
        made: result of `made_by`.
    """
    if collective.writes[0].what is ValueKind.PART:
        made.drop_whole()


_TRIED = 8  # rows per replica, and columns, of the weights on which an optimizer is tried


def check_sharing(job: Job, replicas: int, way: Feature) -> None:
    """Refuse a job with an optimizer that replicas cannot shard.

    Arguments:
        way: kind of sharding, for the error.

    Raises:
        RefusedError: the optimizer's step of a shard differs from that of the whole weight.
    """
    shapes = ((_TRIED * replicas, _TRIED), (_TRIED * replicas,))
    check_optimizer(job, shapes, lambda tensor: tensor.flatten().chunk(replicas), way)


def whole_state(
    names: Sequence[str],
    flat: Flat,
    number: int,
    own: Mapping[str, Entries],
    device: torch.device,
    gather: Gather,
) -> dict[str, dict[str, object]]:
    """Gather unsharded optimizer state by parameter name, with tensors on the CPU.

    This is a collective call of the replicas.

    Arguments:
        names: parameters in `flat`, in order.
        flat: layout of the parameters.
        number: number of this replica's shard.
        own: state of this replica's shard, by parameter name. Parameters without an element in the shard are missing.
        device: torch device for the collectives.
        gather: all-gather between the replicas.

    Raises:
        RefusedError: an entry is neither a number nor has the shape of its weight.
    """
    kept: dict[str, dict[str, list[Any]]] = {}
    for text in _texts(json.dumps(_kept(names, flat, number, own)), device, gather):
        for name, keys in json.loads(text).items():
            kept.setdefault(name, {}).update(
                {key: found for key, found in keys.items() if key not in kept.get(name, {})}
            )
    whole = {name: {key: _plain(*found) for key, found in keys.items()} for name, keys in kept.items()}
    places = dict(zip(names, zip(flat.places, flat.runs(number), strict=True), strict=True))
    # (memory, key, dtype), sorted: all replicas need the same order.
    sorts = {(places[n][0].memory, key, f[1]) for n, keys in kept.items() for key, f in keys.items() if f[0] == _PART}
    for memory, key, dtype in sorted(sorts):
        size = flat.sizes[memory] // flat.parts
        part = torch.zeros(size, dtype=getattr(torch, dtype), device=device)
        mine = [n for n in names if n in kept and kept[n].get(key) == [_PART, dtype] and places[n][0].memory == memory]
        for name in mine:
            place, (first, last) = places[name]
            if last > first:
                at = place.at + first - number * size
                value = own[name][key]
                assert isinstance(value, Tensor)
                part[at : at + last - first] = value
        gathered = torch.cat([each.cpu() for each in gather(part)])
        for name in mine:
            place = places[name][0]
            whole[name][key] = gathered[place.at : place.end].view(place.shape).clone()
    return whole


_PART, _SCALAR, _NUMBER = "part", "scalar", "number"


def _kept(names: Sequence[str], flat: Flat, number: int, own: Mapping[str, Entries]) -> dict[str, dict[str, list[Any]]]:
    """Describe the optimizer state of each parameter by key, as [kind, dtype, value].

    Kinds are "part" (a tensor with the shard's elements; it has no value here), "scalar" (a tensor) and "number".
    """
    found: dict[str, dict[str, list[Any]]] = {}
    for name, (first, last) in zip(names, flat.runs(number), strict=True):
        for key, value in own.get(name, {}).items():
            if not isinstance(value, Tensor):
                entry = [_NUMBER, "", value]
            elif value.dim() == 0:
                entry = [_SCALAR, str(value.dtype).removeprefix("torch."), value.item()]
            elif tuple(value.shape) == (last - first,):
                entry = [_PART, str(value.dtype).removeprefix("torch.")]
            else:
                shape = f"{key}, of shape {tuple(value.shape)}, for {last - first} numbers of {name}"
                raise RefusedError(
                    "Job.optimizer",
                    shape,
                    "state with one element for each element of a weight, or a plan with shard: none",
                )
            found.setdefault(name, {})[key] = entry
    return found


def _plain(sort: str, dtype: str, value: Any = None) -> object:
    return torch.tensor(value, dtype=getattr(torch, dtype)) if sort == _SCALAR else value


def _texts(text: str, device: torch.device, gather: Gather) -> list[str]:
    """All-gather a text of each replica."""
    data = text.encode()
    lengths = [int(each) for each in gather(torch.tensor([len(data)], device=device))]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    return [bytes(each[:n].tolist()).decode() for each, n in zip(gather(padded), lengths, strict=True)]
