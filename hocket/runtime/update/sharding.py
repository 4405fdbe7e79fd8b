"""Sharded optimizer state: gathers the replicas' parts into whole state.

Rules of this file: only bytes go between replicas, nothing pickled. A replica that has nothing of a weight learns from the others
what its optimizer keeps of it.
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
"""A tensor as those of all replicas, all of one shape and type, by number of part."""


def made_by(collective: Instruction, thing: Any) -> Any:
    """Output of a collective that begins, from its inputs, with memory."""
    value = collective.writes[0]
    if value.what is ValueKind.GATHERED:
        return thing.gathered(value)
    if value.what is ValueKind.PART:
        thing.own_part()
    return thing


def over(collective: Instruction, made: Any) -> None:
    """A collective is over: what it has made needs no other memory."""
    if collective.writes[0].what is ValueKind.PART:
        made.drop_whole()


_TRIED = 8  # numbers of one replica in the rows of weights on which an optimizer is tried


def check_sharing(job: Job, replicas: int, way: Feature) -> None:
    """Refuse a job with an optimizer that these replicas cannot shard.

    Raises:
        RefusedError: the job's optimizer does something else to a part of a weight.
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
    """Whole optimizer state by name, tensors on the CPU.

    A collective call of the replicas.

    Arguments:
        names: of the parameters in `flat`, in its order; number: of this replica's part.
        own: state of what this replica has of them; parameters of which it has nothing are left out.
        device: where it lies.

    Raises:
        RefusedError: state that is neither a number nor shaped as its weight.
    """
    kept: dict[str, dict[str, list[Any]]] = {}
    for text in _texts(json.dumps(_kept(names, flat, number, own)), device, gather):
        for name, keys in json.loads(text).items():
            kept.setdefault(name, {}).update(
                {key: found for key, found in keys.items() if key not in kept.get(name, {})}
            )
    whole = {name: {key: _plain(*found) for key, found in keys.items()} for name, keys in kept.items()}
    places = dict(zip(names, zip(flat.places, flat.runs(number), strict=True), strict=True))
    # In the same order everywhere: which memory, key and type.
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


def part_of(value: object, shape: Sequence[int], run: tuple[int, int]) -> object:
    """Part of an optimizer entry that belongs to a range of a weight's elements."""
    if isinstance(value, Tensor) and tuple(value.shape) == tuple(shape) and value.dim():
        return value.reshape(-1)[slice(*run)]
    return value


_PART, _SCALAR, _NUMBER = "part", "scalar", "number"


def _kept(names: Sequence[str], flat: Flat, number: int, own: Mapping[str, Entries]) -> dict[str, dict[str, list[Any]]]:
    """Kinds of the entries of each parameter.

    Each is [kind, dtype, value unless it is a part].
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
    """Texts of all replicas."""
    data = text.encode()
    lengths = [int(each) for each in gather(torch.tensor([len(data)], device=device))]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    return [bytes(each[:n].tolist()).decode() for each, n in zip(gather(padded), lengths, strict=True)]
