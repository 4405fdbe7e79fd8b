"""The order of the rooms, and what the package must never do: read from the source of every file."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hocket import ROOMS

TOP = Path(__file__).resolve().parents[2]
PACKAGE = TOP / "hocket"
FILES = sorted(PACKAGE.rglob("*.py"))

# These two tie the rooms together: they may import any room, inside a function, so that each command loads what it needs.
TIES = ("api", "cli")
# Where torch may be imported at the top of a file: what executes a model, or takes one apart and measures it. Everything
# else must start and be tested without it.
TORCH = (
    "runtime/",
    "models/",
    "profiling/tensor_parallel/discovery/",
    *(
        f"profiling/{name}.py"
        for name in (
            "analytic/aten_costs",
            "analytic/block_calls",
            "analytic/fake_tensors",
            "analytic/sketch",
            "capture/capture",
            "capture/captured_layer",
            "capture/compiled",
            "capture/record_forward",
            "capture/recorded_graph",
            "capture/recorder",
            "capture/replay",
            "capture/segmentation",
            "capture/stage",
            "capture/storage_tracker",
            "checks/batch_independence",
            "checks/loss_additivity",
            "checks/mean_draws",
            "checks/stable_calls",
            "checks/suggest_weight",
            "checks/verify",
            "job/clip",
            "job/learning_rates",
            "job/optimizer",
            "job/precision",
            "job/subtasks",
            "measure/assemble",
            "measure/compile_speedup",
            "measure/measure",
            "measure/memory",
            "measure/timing",
            "measure/worker_costs",
            "tensor_parallel/dropout",
            "tensor_parallel/group",
            "tensor_parallel/module_rules",
            "tensor_parallel/sequence_parallel",
            "tensor_parallel/sharded_logits",
            "tensor_parallel/sharded_modules",
            "tensor_parallel/threaded_group",
            "tensor_parallel/vocab_parallel",
        )
    ),
)
# Where torch may be imported inside a function as well.
TORCH_LAZILY = (
    *TORCH,
    *(
        f"profiling/{name}.py"
        for name in ("data/checksums", "data/samples", "data/seeding", "job/job", "measure/background_load")
    ),
    "api.py",
    "cli/",
)
UNPICKLERS = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib")
# Collectives of torch that unpickle what a peer sends.
OBJECT_COLLECTIVES = (
    "broadcast_object_list", "gather_object", "all_gather_object", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    path: str
    line: int
    module: str
    lazy: bool
    typing: bool = False  # under `if TYPE_CHECKING`, so never at run time

    def __str__(self) -> str:
        return f"hocket/{self.path}:{self.line} imports {self.module}"


def name_of(path: Path) -> str:
    """The file's path inside the package."""
    return path.relative_to(PACKAGE).as_posix()


def room_of(name: str) -> str:
    """The room that a file belongs to: its folder, or its own name."""
    return name.split("/")[0].removesuffix(".py")


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
        yield from (Import(path, node.lineno, m, lazy, typing) for m in modules)


@cache
def found_in_package() -> tuple[list[Import], list[str]]:
    """The imports of the whole package, and what it must never do: every file is read once, and no tree is kept."""
    imports, wrong = [], []
    for path in FILES:
        tree = ast.parse(path.read_text())
        seen, name = seen_in(tree), name_of(path)
        imports += imports_of(seen, name)
        wrong += forbidden_in(seen, name)
    return imports, wrong


def out_of_order(one: Import, rooms: tuple[str, ...] = ROOMS) -> bool:
    """Whether an import breaks the order of the rooms."""
    home = room_of(one.path)
    parts = one.module.split(".")
    if home in ("__init__", "__main__") or parts[0] != "hocket" or len(parts) == 1:
        return False  # the package's own face and its door for `python -m` are no rooms
    target = parts[1]
    if target == home or target not in rooms:
        return False  # a name of the package's face, such as __version__
    if home in TIES and one.lazy:
        return False
    return rooms.index(target) > rooms.index(home)


def test_every_file_belongs_to_a_room() -> None:
    """Each file and folder of the package is a room of `ROOMS`, and each name stands there once."""
    found = {room_of(name_of(path)) for path in FILES} - {"__init__", "__main__"}
    assert found <= set(ROOMS), f"add to ROOMS: {sorted(found - set(ROOMS))}"
    assert len(set(ROOMS)) == len(ROOMS)


def test_a_room_imports_only_rooms_above_it() -> None:
    """The order in hocket/__init__.py holds for every import, also those inside functions."""
    wrong = [str(one) for one in found_in_package()[0] if out_of_order(one)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        ("cost/transfer.py", "from hocket.program.order import Order", False),
        ("program/order.py", "from hocket.cost.transfer import Transfer", True),
        ("program/order.py", "def f():\n    from hocket.cost import transfer", True),
        ("program/order.py", "from hocket import cost", True),
        ("program/order.py", "from ..cost import transfer", True),
        ("program/order.py", "from . import instruction", False),
        ("program/order.py", "import hocket.cost.transfer as t", True),
        ("program/order.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hocket.cost", True),
        ("program/order.py", "from hocket import __version__\nimport os", False),
        ("cli.py", "def f():\n    from hocket import demo", False),
        ("cli.py", "from hocket import demo", True),
        ("util/files.py", "from hocket.errors import InputError", False),
        ("errors.py", "from hocket.util.files import digest", True),
    ],
)
def test_the_order_test_can_fail(path: str, text: str, wrong: bool) -> None:
    """Each form of import is seen, and told right from wrong."""
    rooms = ("errors", "util", "program", "cost", "cli", "demo")
    assert any(out_of_order(one, rooms) for one in imports_of(seen_in(ast.parse(text)), path)) is wrong


def test_every_exception_is_about_a_file() -> None:
    """The list of places for torch names only what exists."""
    assert [name for name in TORCH if not (PACKAGE / name).exists()] == []


def test_torch_is_imported_only_where_it_runs() -> None:
    """Planning, simulating and checking never load torch: only the rooms that execute do."""
    wrong = [
        str(one)
        for one in found_in_package()[0]
        if one.module.split(".")[0] in ("torch", "torchvision", "transformers")
        and not one.typing
        and not one.path.startswith(TORCH_LAZILY if one.lazy else TORCH)
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_everything_else_leaves_torch_alone() -> None:
    """In a fresh process, all modules outside the rooms that execute load without torch coming along."""
    modules = [
        "hocket." + name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in FILES
        if not name_of(path).startswith(TORCH) and name_of(path) != "__init__.py" and path.name != "__main__.py"
    ]
    script = (
        "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *modules], capture_output=True, text=True, cwd=TOP, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def forbidden_in(seen: Seen, name: str) -> Iterator[str]:
    """What a file does that the package must never do, with the line."""
    for one in imports_of(seen, name):
        if one.module.split(".")[0] in UNPICKLERS:
            yield f"hocket/{name}:{one.line} imports {one.module}: nothing is unpickled"
        if one.module.split(".")[0] == "yaml":
            yield f"hocket/{name}:{one.line} imports yaml: hocket.util.documents.parse_yaml reads YAML"
    for node in seen.calls:
        place = f"hocket/{name}:{node.lineno}"
        call = ast.unparse(node.func)
        keywords = {
            word.arg: ast.unparse(word.value) for word in node.keywords if word.arg in ("shell", "weights_only")
        }
        if call in ("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"):
            yield f"{place} calls {call}"
        if call.startswith("runpy.") and name != "profiling/job/job.py":
            yield f"{place} runs a file: only load_job, in profiling/job/job.py, does"
        if keywords.get("shell", "False") != "False" or call in ("os.system", "os.popen", "subprocess.getoutput"):
            yield f"{place} starts a shell"
        if call in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
            yield f"{place} calls {call}"
        if call == "torch.load" and keywords.get("weights_only") != "True":
            yield f"{place} calls torch.load without weights_only=True"
        if call.split(".")[-1] in OBJECT_COLLECTIVES:
            yield f"{place} calls {call}, which unpickles what a peer sends"


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    """No pickle, eval, exec, shell or unsafe YAML in the package; running a file is for `load_job` alone."""
    _, wrong = found_in_package()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("import pickle", True),
        ("def f():\n    from pickle import loads", True),
        ("eval('1')", True),
        ("model.eval()", False),
        ("exec('x')", True),
        ("import subprocess\nsubprocess.run('ls', shell=True)", True),
        ("import subprocess\nsubprocess.run(['ls'], shell=False)", False),
        ("import os\nos.system('ls')", True),
        ("import runpy\nrunpy.run_path('x')", True),
        ("import torch\ntorch.load('x')", True),
        ("import torch\ntorch.load('x', weights_only=True)", False),
        ("import torch.distributed as dist\ndist.all_gather_object([], 1)", True),
        ("import yaml", True),
    ],
)
def test_the_safety_test_can_fail(text: str, wrong: bool) -> None:
    """Each forbidden thing is seen, and its harmless relative is not."""
    assert bool(list(forbidden_in(seen_in(ast.parse(text)), "planning/plan.py"))) is wrong


def texts() -> list[Path]:
    """Every text file of the repository that is ours."""
    skipped = {".git", ".venv", "build", "dist", "__pycache__"}
    found = []
    for path in TOP.rglob("*"):
        parts = path.relative_to(TOP).parts
        if path.is_file() and not any(
            p in skipped or p.endswith(("_cache", ".egg-info", ".hypothesis")) for p in parts
        ):
            content = path.read_bytes()
            if b"\0" not in content[:8192]:
                found.append(path)
    return found


# Written in pieces, so that this file passes its own test.
MACHINE = re.compile(
    r"(?<![\w.}])/(?:" + "|".join(("work", "root", "Users", r"home/\w+", "opt/" + "pypi", "opt/wheels")) + r")/"
)
HOSTS = re.compile(
    "|".join(("pypi" + r"\.org", "python" + r"hosted\.org", "download" + r"\.pytorch\.org", "index" + "-url"))
)


def test_nothing_names_a_machine_or_a_package_host() -> None:
    """No file of the repository holds a path of one particular machine or the address of a package host."""
    wrong = []
    for path in texts():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE.search(line) or HOSTS.search(line):
                wrong.append(f"{path.relative_to(TOP)}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)
    assert len(texts()) > 20


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("see /wo" + "rk/main", True),
        ("in /ho" + "me/anna/x", True),
        ("the fork/work/join model", False),
        ("/tmp/x", False),
    ],
)
def test_the_machine_test_can_fail(line: str, wrong: bool) -> None:
    """A path of a machine is seen inside a sentence; a slash between words is none."""
    assert bool(MACHINE.search(line)) is wrong


# Folders that hold members of one kind and nothing else: they may show more than twelve.
MEMBERS = (
    "hocket/strategies/schedules",
    "hocket/scheduler/policies",
    "hocket/hardware/catalog",
    "hocket/profiling/analytic/sizes",
    "tests/scheduler/policies",
    "tests/golden",
)
MOST_ENTRIES = 12


def entries(folder: Path) -> set[str]:
    """What a folder shows: files and folders, but for `__init__.py`, helpers of its tests and what tools leave behind."""
    hidden = {"__init__.py", "py.typed", "__pycache__", "helpers", "conftest.py"}
    return {path.name for path in folder.iterdir() if path.name not in hidden and not path.name.startswith(".")}


def test_a_folder_shows_at_most_twelve_entries() -> None:
    """Every room, sub-room and folder of tests, but for the two roots and folders of members."""
    folders = [path for top in ("hocket", "tests") for path in (TOP / top).rglob("*") if path.is_dir()]
    shown = {path.relative_to(TOP).as_posix(): len(entries(path)) for path in folders if path.name != "__pycache__"}
    assert {name: n for name, n in shown.items() if n > MOST_ENTRIES and name not in MEMBERS} == {}
    assert [name for name in MEMBERS if name not in shown] == []


def test_a_private_module_is_imported_only_in_its_folder() -> None:
    """`_module` helps its neighbours; what other folders need has no underscore."""
    wrong = []
    for one in found_in_package()[0]:
        parts = one.module.split(".")
        private = next((at for at, part in enumerate(parts) if part.startswith("_") and at), None)
        if parts[0] == "hocket" and private and not f"hocket/{one.path}".startswith("/".join(parts[:private]) + "/"):
            wrong.append(str(one))
    assert not wrong, "\n".join(wrong)
