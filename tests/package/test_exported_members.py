"""What the package offers: its public face, and words for every public thing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hocket

PACKAGE = Path(hocket.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("name", hocket.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name of `hocket.__all__` can be reached and says in a docstring what it is."""
    thing = getattr(hocket, name)
    assert thing is not None
    assert isinstance(thing, str) or (thing.__doc__ or "").strip()


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as a name of any module does."""
    with pytest.raises(AttributeError, match=r"^module 'hocket' has no attribute 'plann'"):
        _ = hocket.plann


def test_importing_the_package_loads_next_to_nothing() -> None:
    """`import hocket` brings along neither torch nor numpy nor pydantic: the face is loaded on first use."""
    script = "import sys, hocket; print([m for m in ('torch', 'numpy', 'pydantic', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def public(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_public_thing_has_a_docstring(path: Path) -> None:
    """Each module, public class and public function says what it is, so that `help()` answers."""
    tree = ast.parse(path.read_text())
    missing = [f"{node.name} (line {node.lineno})" for node in public(tree) if not ast.get_docstring(node)]
    if not ast.get_docstring(tree):
        missing.insert(0, "the module itself")
    assert not missing, ", ".join(missing)


def test_the_package_lists_the_names_of_its_interface() -> None:
    """Both lists are written out, because `import hocket` does not import the interface."""
    from hocket import api

    assert sorted(hocket.__all__) == sorted([*api.__all__, "__version__"])
