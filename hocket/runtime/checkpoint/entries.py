"""Entries of a checkpoint: conversion from and to an engine's state, and checks of entries.

Entries have the names that checkpoint.py describes.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.profiling.job.derived_model.placeholders import fill
from hocket.profiling.job.derived_model.subtasks import ParameterRows
from hocket.profiling.job.job import Job
from hocket.runtime.nan_guard.guard import faults

_MOST_NAMED = 100


def not_finite_in(state: Mapping[str, Any], job: Job) -> list[str]:
    """Describe the entries of a state that have nan or infinite elements, at most 100.

    Entries that have such elements in the job's own model too (such as a mask) are ignored. Optimizer state with
    infinite elements but no nan is ignored as well.

    Arguments:
        state: entries by checkpoint name.
    """
    own = {f"model.{name}": tensor for name, tensor in tensors_of(job.model).items()}
    found = []
    for key, value in state.items():
        if (
            isinstance(value, Tensor)
            and (told := faults(value))
            and not ("nan" not in told and key.startswith("optimizer."))
        ):
            before = own.get(key.partition("@")[0])
            if before is None or not faults(before):
                found.append(f"{key} has {told}")
    return found[:_MOST_NAMED]


def unheld_by(held: Collection[str], job: Job) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a model that no stage holds, by name.

    Tensors with several names have their first one, and are left out if they are held under any name.

    Arguments:
        held: names of the parameters and buffers that stages hold.
    """
    every = tensors_of(job.model)
    seen, stored = {id(every[name]) for name in held if name in every}, job.model.state_dict()
    found = {}
    for name, tensor in every.items():
        if id(tensor) not in seen and name in stored:
            seen.add(id(tensor))
            fill(tensor)
            found[name] = tensor.detach()
    return found


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers under all their names, also buffers that `state_dict` leaves out."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def like_in(found: Mapping[str, Any], held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those tensors of a checkpoint that have the shape and dtype of the given ones, by name.

    Arguments:
        found: entries by checkpoint name.
        held: tensors by their names in the model.
    """
    pairs = ((name, found.get(f"model.{name}"), tensor) for name, tensor in held.items())
    return {n: t for n, t, own in pairs if isinstance(t, Tensor) and (t.shape, t.dtype) == (own.shape, own.dtype)}


def flat(
    state: Mapping[str, Any], parts: Mapping[str, ParameterRows]
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Convert an engine's state to checkpoint entries.

    Arguments:
        state: {"weights": ..., "frozen": ..., "buffers": ..., "optimizer": ...}, each by global name.
        parts: parameters that are rows of a whole parameter, by name. Optimizer state of such a parameter's shape
            consists of the same rows.

    Returns:
        Entries by checkpoint name, and the whole shapes of tensors that are given in rows, by the whole tensor's name.
    """
    found: dict[str, Any] = {f"model.{name}": tensor for name, tensor in state["buffers"].items()}
    wholes: dict[str, tuple[int, ...]] = {}
    for name, tensor in {**state["weights"], **state.get("frozen", {})}.items():
        optimizer = {f"optimizer.{{}}.{key}": value for key, value in state["optimizer"].get(name, {}).items()}
        for form, value in ({"model.{}": tensor} | optimizer).items():
            if name not in parts:
                found[form.format(name)] = value
                continue
            key = form.format(parts[name].name)
            if isinstance(value, Tensor) and value.shape == tensor.shape:
                wholes[key] = parts[name].shape
                key = f"{key}@{','.join(map(str, (parts[name].first, *(0,) * (tensor.dim() - 1))))}"
            found[key] = value
    return found, wholes


def wanted(held: Mapping[str, Any], parts: Mapping[str, ParameterRows]) -> Callable[[str], bool]:
    """Return a predicate: True for the name of a checkpoint entry that a worker needs.

    Arguments:
        held: {"weights": ..., "frozen": ..., "buffers": ...} of the worker, each a dictionary of meta tensors by global
            name.
        parts: parameters that are rows of a whole parameter, by name.
    """
    weights, frozen = (
        {parts[name].name if name in parts else name for name in held.get(kind, {})} for kind in ("weights", "frozen")
    )
    model = {f"model.{name}" for name in (*weights, *frozen, *held["buffers"])}
    optimizer = {f"optimizer.{name}" for name in weights}
    return lambda name: name in model or name.rpartition(".")[0] in optimizer


def in_parts(found: Mapping[str, Any], held: Mapping[str, Any], parts: Mapping[str, ParameterRows]) -> dict[str, Any]:
    """Cut whole parameters of a checkpoint to the rows that this worker holds.

    Arguments:
        found: entries by checkpoint name.
        held: {"weights": ..., "frozen": ..., "buffers": ...} of the worker, each a dictionary of meta tensors by global
            name.
        parts: parameters that are rows of a whole parameter, by name.

    Returns:
        The entries, with the names of the rows in place of the whole parameter's name. Optimizer state is cut as well.
    """
    out, own_rows = dict(found), {**held["weights"], **held.get("frozen", {})}
    for name, part in ((name, parts[name]) for name in own_rows if name in parts):
        rows = slice(part.first, part.first + len(own_rows[name]))
        for key, value in found.items():
            if _weight_of(key) == part.name:
                own = value[rows] if isinstance(value, Tensor) and value.shape == part.shape else value
                out[key.replace(part.name, name, 1)] = own
    wholes = {part.name for part in parts.values()}
    return {k: v for k, v in out.items() if _weight_of(k) not in wholes}


def _weight_of(key: str) -> str:
    """Return the name of the weight to which a checkpoint's entry belongs."""
    kind, _, name = key.partition(".")
    return name if kind == "model" else name.rpartition(".")[0]


def nested(found: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """Convert checkpoint entries to an engine's state; check parameters and buffers.

    Checkpoints of earlier versions have no frozen parameters. The state then lacks them, too. With mixed precision, their
    buffers are in bfloat16.

    Arguments:
        found: entries by checkpoint name.
        held: the engine's parameters and buffers as meta tensors, to check shapes and dtypes.

    Raises:
        InputError: a weight or buffer is missing, or a parameter or buffer has another shape or dtype.
    """
    state: dict[str, Any] = {"weights": {}, "frozen": {}, "buffers": {}}
    state["optimizer"] = {name: {} for name in held["weights"]}
    for part in ("weights", "frozen", "buffers"):
        for name, tensor in held.get(part, {}).items():
            there = found.get(f"model.{name}")
            if there is None and part == "frozen":
                continue
            dtypes = (
                {tensor.dtype, torch.bfloat16} if part == "buffers" and tensor.is_floating_point() else {tensor.dtype}
            )
            if not isinstance(there, Tensor) or there.shape != tensor.shape or there.dtype not in dtypes:
                what = f"{tuple(there.shape)} of {there.dtype}" if isinstance(there, Tensor) else "nothing"
                expected = f"{tuple(tensor.shape)} of {tensor.dtype}, as in the model"
                raise InputError(f"checkpoint: {name}", what, expected, "It may belong to another model.")
            state[part][name] = there
    for entry, value in found.items():
        if entry.startswith("optimizer."):
            name, _, key = entry.removeprefix("optimizer.").rpartition(".")
            state["optimizer"][name][key] = value
    return state
