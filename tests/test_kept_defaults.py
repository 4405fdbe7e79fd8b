"""Defaults of arguments and fields, and constants of modules, equal to those that are kept in defaults.txt.

A user relies on a default without naming it. A changed default or constant is seen in review, and never by accident. After a
change that is meant, write them again with --update-golden.
"""

import ast
import dataclasses
import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.kept import check
from tests.package.helpers.sources import FILES, TOP

MOST_ITEMS, MOST_LETTERS = 40, 30
# Modules that run when they are imported, or that need an extra.
LEFT_OUT = ("__main__", "fork_server_main", "worker_main", "profile_worker", "numba_kernels", "kernel_numba")


def plain(value: Any) -> bool:
    """True for numbers, words and short lists of them: their text is the same in every process.

    Sentences are left out: they are read where they are shown.
    """
    if isinstance(value, tuple | list):
        return len(value) <= MOST_ITEMS and all(map(plain, value))
    if isinstance(value, str):
        return len(value) <= MOST_LETTERS and not {" ", "/"} & set(value)
    return isinstance(value, bool | int | float | bytes | None | enum.Enum)


def defaults(name: str, thing: Any) -> Iterator[str]:
    """Lines of a function or a class with its methods."""
    if inspect.isclass(thing):
        for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
            if plain(field.default) and field.default is not dataclasses.MISSING:
                yield f"{name}.{field.name} = {field.default!r}"
        for own, member in vars(thing).items():
            if inspect.isfunction(inspect.unwrap(getattr(member, "__func__", member))) and own != "__init__":
                yield from defaults(f"{name}.{own}", inspect.unwrap(getattr(member, "__func__", member)))
        if not dataclasses.is_dataclass(thing) and inspect.isfunction(vars(thing).get("__init__")):
            yield from defaults(name, vars(thing)["__init__"])
    elif inspect.isfunction(thing):
        for parameter in inspect.signature(thing).parameters.values():
            if parameter.default is not parameter.empty and plain(parameter.default):
                yield f"{name}({parameter.name}={parameter.default!r})"


def lines_of(module: ModuleType) -> Iterator[str]:
    """Lines of what a module itself defines."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    targets = [one for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) for one in ast.walk(node)]
    assigned = {one.id for one in targets if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for name, thing in vars(module).items():
        if name.startswith("__"):
            continue
        own = inspect.unwrap(thing) if callable(thing) else thing
        if inspect.isclass(own) or inspect.isfunction(own):
            if own.__module__ == module.__name__:
                yield from defaults(f"{module.__name__}.{name}", own)
        elif name in assigned and name.upper() == name and plain(thing):
            yield f"{module.__name__}.{name} = {thing!r}"


def test_defaults(update_golden: bool) -> None:
    """Every default and constant of the package that is a number, a word, or a short list of them."""
    lines = []
    for path in FILES:
        parts = path.relative_to(TOP).with_suffix("").parts
        if parts[-1] in LEFT_OUT or "mlflow" in parts or "wandb" in parts or "tensorboard" in parts:
            continue
        lines += lines_of(importlib.import_module(".".join(parts).removesuffix(".__init__")))
    check(Path(__file__).with_name("defaults.txt"), "\n".join(sorted(lines)) + "\n", update_golden)
