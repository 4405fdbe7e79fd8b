"""Start from files: a worker loads the weights of its own stages, under the names of `model.state_dict()`."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.runtime.checkpoint.entries import in_parts, nested, tensors_of, unheld_by, wanted
from hocket.runtime.checkpoint.initial_weights.weight_files import FileTensor, open_weights
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.kv_exchange import KVExchange
from hocket.util.units import show_count

_STEP = "Load them in the job file, where names can be changed: model.load_state_dict(..., strict=False)."


def start_from(
    path: str | Path, engine: Worker, job: Job, board: KVExchange, speak: Callable[[dict[str, Any]], None]
) -> None:
    """Load initial weights; a collective call of all workers.

    Floating-point weights are converted to the model's dtype. Buffers that the files lack keep the job's values.

    Arguments:
        path: a file, or a Hugging Face folder.
        job: the prepared job.
        speak: called with messages for the user, as events of kind "note".

    Raises:
        InputError: the files cannot be read, lack a parameter, or have another shape. Every worker raises it.
    """
    files = open_weights(path)
    names = _names(str(path), files, job)
    held, parts = engine.described(), engine.device.captured.parts
    needs = wanted(held, parts)
    dtypes = {name: tensor.dtype for kind in ("weights", "frozen", "buffers") for name, tensor in held[kind].items()}
    dtypes |= {parts[name].name: dtype for name, dtype in dtypes.items() if name in parts}
    own = {entry: name for name in names if needs(entry := f"model.{name}")}
    found: dict[str, Any] = {entry: _like(files[names[name]], dtypes.get(name)) for entry, name in own.items()}
    buffers = {f"model.{name}": tensor for name, tensor in engine.device.model.buffers().items()}
    state = nested(in_parts(buffers | found, held, parts), held)
    engine.load(state)
    _load_unheld(names, files, held, parts, job, board)
    unknown = sorted(files.keys() - set(names.values()) - tensors_of(job.as_written.model).keys())
    if unknown:
        speak(
            {
                "event": "note",
                "text": f"{path} has {show_count(len(unknown), 'tensor')} that the model does not have, such as {unknown[0]}",
            }
        )


def _names(place: str, files: Mapping[str, FileTensor], job: Job) -> dict[str, str]:
    """Name in the files for each name of the model that the files have.

    A tied tensor may be in the files under any of its names, and is found for all of them.

    Raises:
        InputError: a parameter is missing, or a tensor has another shape.
    """
    model = job.as_written.model
    every, alike = tensors_of(model), defaultdict[int, list[str]](list)
    for name, tensor in every.items():
        alike[id(tensor)].append(name)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found, lacking = dict[str, str](), list[str]()
    for name, tensor in every.items():
        there = next((one for one in (name, *alike[id(tensor)]) if one in files), None)
        if there is None:
            lacking += [name] if name in parameters else []
            continue
        shape = files[there].shape
        if shape != tuple(tensor.shape):
            raise InputError(
                f"{place}: {there}", f"shape {shape}", f"{tuple(tensor.shape)}, as in the job's model", _STEP
            )
        found[name] = there
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        has = f"the file has {sorted(files)[0]}, for example"
        raise InputError(place, f"no {lacking[0]}{more}; {has}", "every parameter of the job's model", _STEP)
    return found


def _like(stored: FileTensor, dtype: torch.dtype | None) -> Tensor:
    """Read a tensor, converted between floating-point types if necessary."""
    tensor = stored.read()
    floats = dtype is not None and dtype.is_floating_point and tensor.is_floating_point()
    return tensor.to(dtype) if floats else tensor


def _load_unheld(
    names: Mapping[str, str],
    files: Mapping[str, FileTensor],
    held: Mapping[str, Any],
    parts: Mapping[str, Any],
    job: Job,
    board: KVExchange,
) -> None:
    """Load tensors that no stage uses, which the first worker writes to checkpoints."""
    own = [name for kind in ("weights", "frozen", "buffers") for name in held[kind]]
    facts = board.share({"names": sorted({parts[name].name if name in parts else name for name in own})})
    if board.rank == 0:
        with torch.no_grad():
            for name, tensor in unheld_by({name for fact in facts for name in fact["names"]}, job).items():
                if name in names:
                    tensor.copy_(files[names[name]].read())
