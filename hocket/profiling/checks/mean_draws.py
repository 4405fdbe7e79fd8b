"""Mean draws: random operations replaced by their means.

Rules of this file: replacement happens only inside the mode. A replaced operation does not advance the generator.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_DROPOUT = ("dropout_p", "p")


class Means(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode without dropout; other random operations return their means.

    Attributes:
        unknown: names of random operations without a known mean, which run unchanged.
    """

    def __init__(self) -> None:
        """Start with no unknown operations."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.unknown: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or its deterministic replacement."""
        kwargs = kwargs or {}
        name, given = func._schema.name.removeprefix("aten::"), _named(func, args, kwargs)
        match name:
            case "bernoulli_" | "bernoulli":
                drawn = args[0] if name == "bernoulli_" else args[0].clone()
                return drawn if "p" not in given else _filled(drawn, given["p"])
            case "uniform_":
                return args[0].fill_((given["from"] + given["to"]) / 2)
            case "normal_":
                return args[0].fill_(given["mean"])
            case "rand" | "rand_like":
                return func(*args, **kwargs).fill_(0.5)
            case "randn" | "randn_like":
                return func(*args, **kwargs).zero_()
            case "native_dropout":
                return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
            case "native_dropout_backward":
                return args[0].clone()
        if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(given):
            self.unknown.add(name)
        return func(*args, **kwargs)


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return all arguments by name, including defaults."""
    found = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    found.update({a.name: value for a, value in zip(func._schema.arguments, args, strict=False)})
    return found | kwargs


def _filled(tensor: Any, p: Any) -> Any:
    return tensor.copy_(p) if isinstance(p, torch.Tensor) else tensor.fill_(p)


def _drops_nothing(given: dict[str, Any]) -> bool:
    """True if the arguments of an operation turn its own dropout off."""
    return any(given.get(key) == 0 for key in _DROPOUT) or given.get("train") is False
