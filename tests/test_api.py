"""The public face: five names that work in whatever order, and paths where files will do."""

import inspect
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

import hocket
from hocket import api
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.measure.request import MeasureRequest
from hocket.runtime.checkpoint.export.export import Exported
from hocket.runtime.checkpoint.listing import ListedCheckpoint
from hocket.training.worker.monitor.listener import RunSummary
from hocket.training.worker.options import Options

pytestmark = pytest.mark.workers

TOP = Path(__file__).resolve().parent.parent
PROFILE = chain(4, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
CLUSTER = Cluster("two", (Level("server", 2, 1e9, 1e-5),), "cpu-core")
NAMES = ("profile", "plan", "simulate", "train", "Job")
# Ways to come by the names; after each, all five must be callable and the rooms still rooms.
WAYS = (
    *(f"from hocket import {', '.join(order)}" for order in permutations(("profile", "plan", "simulate"))),
    *(f"import hocket; hocket.{name}" for name in NAMES),
    *(f"from hocket import {name}" for name in NAMES),
    "import hocket.profiling.profile",
    "import hocket.planning.search.search",
    "import hocket.simulation.simulator",
    "import hocket.api",
    "import hocket.cli.plan.plan; from hocket.planning.plan import Plan",
    "from hocket import *",
)
CHECK = """
import hocket, sys
for name in ("plan", "profile", "simulate", "train", "Job"):
    assert callable(getattr(hocket, name)), name
    try:
        getattr(hocket, name)()
    except TypeError as error:
        assert "missing" in str(error), error
import hocket.planning.search.search, hocket.profiling.profile, hocket.simulation.simulator
assert hocket.planning.search.search.search and hocket.profiling.profile.Layer and hocket.simulation.simulator.play
from hocket import plan, profile, simulate
assert (plan, profile, simulate) == (hocket.plan, hocket.profile, hocket.simulate)
"""


@pytest.mark.slow
def test_the_five_names_work_however_they_are_imported() -> None:
    """In fresh processes, each way of importing leaves all five names callable, and the rooms of three of them usable."""
    # One process forks for each way: nothing of the package is loaded before the fork.
    script = (
        "import os, sys\n"
        "import numba, numpy, pydantic, ruamel.yaml\n"  # what takes long and is not ours
        "for way in sys.argv[2:]:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        "            exec(way, {}); exec(sys.argv[1], {})\n"
        "        except BaseException as error:\n"
        "            print(way, '->', repr(error), flush=True)\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, CHECK, *WAYS], capture_output=True, text=True, cwd=TOP)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_a_room_shows_the_signature_of_its_function() -> None:
    """`inspect.signature` and editors see the arguments, not a pair of stars."""
    for name in ("plan", "profile", "simulate"):
        assert inspect.signature(getattr(hocket, name)) == inspect.signature(getattr(api, name))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a profile and a cluster."""
    PROFILE.save(tmp_path / "profile.json")
    CLUSTER.save(tmp_path / "cluster.yaml")
    return tmp_path


def test_paths_do_where_things_do(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From paths comes the same plan as from things, and the same prediction; a saved plan brings its profile along."""
    (files / "elsewhere").mkdir()
    monkeypatch.chdir(files)
    one = api.plan(PROFILE, CLUSTER, 8, ["flush"]).best.plan
    two = api.plan("profile.json", Path("cluster.yaml"), 8, ["flush"]).best.plan
    assert one.stages == two.stages
    two.save("elsewhere/plan.yaml")
    seconds = [
        api.simulate(*given)[1].iteration_s
        for given in (
            (one, PROFILE),
            (one, "profile.json"),
            (two,),
            ("elsewhere/plan.yaml",),
            (Path("elsewhere/plan.yaml"), PROFILE),
        )
    ]
    assert len(set(seconds)) == 1


def test_a_request_says_what_options_say() -> None:
    """The same plan, of a profile and of an analytic model; what is said twice, and what nobody knows, is refused."""
    options = {"strategies": ["flush"], "microbatch_sizes": [2], "buckets": "default"}
    request = hocket.PlanRequest(8, **options)  # type: ignore[arg-type]
    assert request.strategies == ("flush",)
    for model in (PROFILE, "bert-large"):
        cluster = CLUSTER if model is PROFILE else Cluster("two", (Level("server", 2, 1e11),), "a100-80gb")
        one, two = api.plan(model, cluster, request), api.plan(model, cluster, 8, **options)
        assert one.best.iteration_s == two.best.iteration_s
        assert [c.iteration_s for c in one.candidates] == [c.iteration_s for c in two.candidates]
    shared = api.plan(PROFILE, CLUSTER, 8, shard="optimizer", strategies=["data_parallel"])
    assert shared.best.plan.shard == "optimizer"
    with pytest.raises(
        InputError,
        match="plan: found a PlanRequest and strategies, shards; expected a PlanRequest alone, with these as its fields",
    ):
        api.plan(PROFILE, CLUSTER, request, ["gpipe"], shard="none")
    for model in (PROFILE, "bert-large"):
        with pytest.raises(TypeError, match="unexpected keyword argument 'swaps'"):
            api.plan(model, CLUSTER, 8, swaps="lru")


def test_a_plan_that_names_no_profile_needs_one() -> None:
    """The error names the argument that is missing."""
    found = api.plan(PROFILE, CLUSTER, 8, ["flush"])
    with pytest.raises(InputError, match="simulate: profile: found nothing"):
        api.simulate(found.best.plan)


def test_a_job_file_can_be_profiled_by_its_path(tmp_path: Path) -> None:
    """A path that is no job file is refused as such: the path has been understood as one."""
    with pytest.raises(InputError, match="no such file"):
        api.profile(tmp_path / "job.py")


def test_the_page_of_the_interface_has_every_name() -> None:
    """Public names, and the types of results and options, are explained in docs/reference/python.md."""
    page = (TOP / "docs" / "reference" / "python.md").read_text()
    found = [(name, getattr(hocket, name)) for name in api.__all__]
    found += [(kind.__name__, kind) for kind in (Options, MeasureRequest, RunSummary, ListedCheckpoint, Exported)]
    places = {name: {f"::: hocket.api.{name}\n", f"::: {one.__module__}.{one.__qualname__}\n"} for name, one in found}
    assert [name for name, ways in places.items() if not any(way in page for way in ways)] == []
