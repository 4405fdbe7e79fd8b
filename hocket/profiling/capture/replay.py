"""Steps: recorded operations prepared for repeated execution.

Rules of this file: a step reads and writes numbered slots of a list. Constants already lie in slots, so that a
typical operation costs one lookup and one call. Decisions are made once, when the step is built.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from hocket.profiling.capture.memory_layout import inverse, memory_order
from hocket.profiling.capture.recorded_graph import Context, Ref

Step = Callable[[list[Any]], None]


def prepare(stride: tuple[int, ...], shape: tuple[int, ...], changed: bool) -> Callable[[Tensor], Tensor] | None:
    """Return a function that prepares an input of a stage; None if it needs none.

    The function gives the input the recorded memory layout, because a view may rely on the layout. It copies an input
    that operations change in place.

    Arguments:
        stride, shape: of the recorded input.
        changed: True if an operation of the stage changes the input in place.
    """
    order = memory_order(shape, stride)
    if order != tuple(sorted(order)):
        back = inverse(order)

        def laid_out(tensor: Tensor) -> Tensor:
            if tensor.stride() == stride and not changed:
                return tensor
            dense = tensor.permute(order).contiguous()
            return (dense.clone() if changed else dense).permute(back)

        return laid_out
    return copy_tensor if changed else None


def copy_tensor(tensor: Tensor) -> Tensor:
    """Return a copy that passes gradients on."""
    return tensor.clone()


def inside(context: Context, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function in the gradient and autocast modes of its recording."""

    def under(*args: Any, **kwargs: Any) -> Any:
        # Gradients are off if the model turned them off, or if they are off around the whole run.
        autocast = torch.autocast(context.device, context.dtype, enabled=context.autocast)
        with torch.set_grad_enabled(torch.is_grad_enabled() and context.gradients), autocast:
            return call(*args, **kwargs)

    return under


def has_ref(thing: Any) -> bool:
    """True if an object contains a `Ref`."""
    if isinstance(thing, Ref):
        return True
    if isinstance(thing, (tuple, list)):
        return any(has_ref(item) for item in thing)
    if isinstance(thing, dict):
        return any(has_ref(item) for item in thing.values())
    if isinstance(thing, slice):
        return has_ref((thing.start, thing.stop, thing.step))
    return False


def filled(thing: Any, env: list[Any] | dict[int, Any]) -> Any:
    """Return a structure with each `Ref` replaced by its value in `env`."""
    if isinstance(thing, Ref):
        return env[thing.value]
    if isinstance(thing, tuple):
        items = [filled(item, env) for item in thing]
        return type(thing)(*items) if hasattr(thing, "_fields") else tuple(items)
    if isinstance(thing, list):
        return [filled(item, env) for item in thing]
    if isinstance(thing, dict):
        return {key: filled(item, env) for key, item in thing.items()}
    if isinstance(thing, slice):
        return slice(filled(thing.start, env), filled(thing.stop, env), filled(thing.step, env))
    return thing


def _getter(path: tuple[Any, ...]) -> Callable[[Any], Any]:
    def get(thing: Any) -> Any:
        for how, key in path:
            thing = thing[key] if how == "item" else getattr(thing, key)
        return thing

    return itemgetter(path[0][1]) if len(path) == 1 and path[0][0] == "item" else get


def _storer(
    outputs: list[tuple[tuple[Any, ...], int]], aliases: list[tuple[int, int]]
) -> Callable[[list[Any], Any], None]:
    parts = [(_getter(path), slot) for path, slot in outputs]

    def store(env: list[Any], result: Any) -> None:
        for get, slot in parts:
            env[slot] = get(result)
        for before, after in aliases:
            env[after] = env[before]

    return store


def flat_step(
    call: Callable[..., Any],
    slots: tuple[int, ...],
    outputs: list[tuple[tuple[Any, ...], int]],
    aliases: list[tuple[int, int]],
    dead: tuple[int, ...],
) -> Step:
    """Return the step of an operation with positional arguments only.

    This is the typical case. The step is kept short because it runs for every operation.

    Arguments:
        call: function of the operation.
        slots: slot of each argument.
        outputs: for each result, its path in the returned object and its slot.
        aliases: pairs of slots: each first one is copied to the second one, for a tensor that changed in place.
        dead: slots to clear afterwards.
    """
    store = _storer(outputs, aliases)
    single = outputs[0][1] if len(outputs) == 1 and not aliases and outputs[0][0] == () else None
    if single is not None and len(slots) == 1:
        first = slots[0]

        def one(env: list[Any]) -> None:
            env[single] = call(env[first])
            for slot in dead:
                env[slot] = None

        return one
    fetch = itemgetter(*slots) if len(slots) > 1 else lambda env: tuple(env[slot] for slot in slots)

    def several(env: list[Any]) -> None:
        result = call(*fetch(env))
        if single is not None:
            env[single] = result
        else:
            store(env, result)
        for slot in dead:
            env[slot] = None

    return several


def general_step(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    outputs: list[tuple[tuple[Any, ...], int]],
    aliases: list[tuple[int, int]],
    dead: tuple[int, ...],
) -> Step:
    """Return the step of an operation with tensors in containers or named arguments.

    Arguments:
        args, kwargs: arguments, with a `Ref` in place of each tensor. The others are those of `flat_step`.
    """
    store = _storer(outputs, aliases)
    if len(outputs) == 1 and outputs[0][0] == () and not aliases:
        slot = outputs[0][1]

        def store(env: list[Any], result: Any) -> None:
            env[slot] = result

    def step(env: list[Any]) -> None:
        store(env, call(*filled(args, env), **filled(kwargs, env)))
        for slot in dead:
            env[slot] = None

    return step
