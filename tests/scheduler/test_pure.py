"""The scheduler core uses no clock and no I/O: a check of its source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "hocket" / "scheduler"
# Clocks, other programs and other machines: no file of the room reaches them.
NEVER = ("time", "socket", "threading", "asyncio", "multiprocessing", "subprocess", "concurrent", "signal", "torch")
# What only readers and the journal need; dates are read there. Draws have a seed everywhere.
SOME = ("os", "datetime", "pathlib", "io")
CLOCKS = ("now", "utcnow", "today", "time")
# What the core is made of.
CORE = (
    *(
        f"core/{name}"
        for name in (
            "core",
            "events",
            "job_table",
            "lease_table",
            "ledger",
            "policy_runner",
            "settings",
        )
    ),
    *(f"journal/{name}" for name in ("core_setup", "core_state", "serialization")),
    *(f"model/{name}" for name in ("allocation", "job", "lazy_property", "lease", "snapshot", "worker_types")),
    *(f"rounds/{name}" for name in ("knapsack", "placement", "priorities", "selection")),
)


def modules(tree: ast.Module) -> set[str]:
    """First parts of the modules that a file imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def unseeded(tree: ast.Module) -> list[str]:
    """Draws without a seed, and uses of a clock."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            given = bool(node.args or node.keywords)
            if owner == "random" and not (name == "Random" and given):
                found.append(f"random.{name}")
            if owner in ("np.random", "numpy.random") and not (name == "default_rng" and given):
                found.append(f"{owner}.{name}")
            if owner.split(".")[-1] in ("datetime", "date", "time") and name in CLOCKS:
                found.append(f"{owner}.{name}")
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_no_file_of_the_room_knows_a_clock_or_another_machine(path: Path) -> None:
    """No clock, socket, thread, process or torch, and no draw without a seed.

    This includes the readers.
    """
    tree = ast.parse(path.read_text())
    assert not modules(tree) & set(NEVER)
    assert not unseeded(tree)


@pytest.mark.parametrize("name", CORE)
def test_the_core_touches_nothing_outside(name: str) -> None:
    """The core's files open no files and import no module that does."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    assert not modules(tree) & {*NEVER, *SOME}
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"open", "input", "print", "exec", "eval", "read_bytes", "read_text", "write_atomic"}
    ours = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {f"hocket.scheduler.{one}".replace("/", ".") for one in (*CORE, "solver/lp/linear_program")} | {
        "hocket.errors",
        "hocket.util.documents",
        "hocket.util.schema",
    }
    assert not {module for module in ours if module and module.startswith("hocket.") and module not in allowed}


def test_the_core_loads_without_torch_and_without_threads() -> None:
    """Importing the core in a new process loads no torch, asyncio or multiprocessing."""
    script = "import hocket.scheduler.core.core, sys; print([m for m in ('torch', 'asyncio', 'multiprocessing') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("import time", True),
        ("from time import monotonic", True),
        ("def f():\n    import socket", True),
        ("import numpy as np\nnp.random.default_rng()", True),
        ("import numpy as np\nnp.random.default_rng((3, 4)).permutation(3)", False),
        ("import numpy as np\nnp.random.rand()", True),
        ("import random\nrandom.Random(3).random()", False),
        ("import random\nrandom.random()", True),
        ("from datetime import datetime\ndatetime.now()", True),
        ("from datetime import datetime\ndatetime.fromisoformat('2020-01-01')", False),
        ("from hocket.scheduler.model.job import Job", False),
        ("import timeit", False),
    ],
)
def test_this_test_can_fail(text: str, wrong: bool) -> None:
    """Each violation is detected, and similar code is not."""
    tree = ast.parse(text)
    assert bool(modules(tree) & set(NEVER) or unseeded(tree)) is wrong
