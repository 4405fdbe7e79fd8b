"""The package unpickles nothing, evaluates nothing and names no machine: read from the source of every file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.helpers.sources import FILES, TOP, Seen, imports_of, name_of, seen_in, tree_of

UNPICKLERS = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib")
# Collectives of torch that unpickle what a peer sends.
OBJECT_COLLECTIVES = (
    "broadcast_object_list", "gather_object", "all_gather_object", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip


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
        if call.startswith("runpy.") and name != "profiling/job/job_file.py":
            yield f"{place} runs a file: only load_job, in profiling/job/job_file.py, does"
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
    wrong = [one for path in FILES for one in forbidden_in(seen_in(tree_of(path)), name_of(path))]
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


@pytest.mark.slow
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
