"""Source of the repository's Python files: imports, calls and docstrings, read without importing anything."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
PACKAGE = TOP / "hocket"
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """Syntax tree of a file, parsed once."""
    return ast.parse(path.read_text())


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    path: str
    line: int
    module: str
    lazy: bool
    typing: bool = False  # under `if TYPE_CHECKING`, so never at run time
    names: tuple[str, ...] = ()  # imported from the module: attributes of it, or modules inside it

    def __str__(self) -> str:
        return f"hocket/{self.path}:{self.line} imports {self.module}"


def name_of(path: Path) -> str:
    """The file's path inside the package."""
    return path.relative_to(PACKAGE).as_posix()


@dataclass
class Seen:
    """What one walk over a file finds: imports, with whether they are inside a function and under TYPE_CHECKING, and calls."""

    imports: list[tuple[ast.Import | ast.ImportFrom, bool, bool]]
    calls: list[ast.Call]


def seen_in(tree: ast.Module) -> Seen:
    """Imports and calls of a file, in one walk."""
    seen = Seen([], [])
    left: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while left:
        node, lazy, typing = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            seen.imports.append((node, lazy, typing))
        elif isinstance(node, ast.Call):
            seen.calls.append(node)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        guard = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for field in node._fields:
            value = getattr(node, field, None)
            inside = typing or (guard and field == "body")
            if isinstance(value, ast.AST):
                left.append((value, lazy, inside))
            elif isinstance(value, list):
                left.extend((part, lazy, inside) for part in value if isinstance(part, ast.AST))
    return seen


def imports_of(seen: Seen, path: str) -> Iterator[Import]:
    """Every module that a file imports, at the top, under `if`, or inside a function."""
    package = ["hocket", *path.split("/")[:-1]]
    for node, lazy, typing in seen.imports:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # `from hocket import cost` imports a room, `from hocket.cost import transfer` a module of it.
            modules = [f"hocket.{alias.name}" for alias in node.names] if base == "hocket" else [base]
        names = () if isinstance(node, ast.Import) else tuple(alias.name for alias in node.names)
        yield from (Import(path, node.lineno, m, lazy, typing, names) for m in modules)


@cache
def imports_of_package() -> tuple[Import, ...]:
    """Every import of the package; each file is read once."""
    return tuple(one for path in FILES for one in imports_of(seen_in(tree_of(path)), name_of(path)))


def module_of(name: str) -> str:
    """Dotted name of the module in a file, by the file's path inside the package."""
    return "hocket." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text
