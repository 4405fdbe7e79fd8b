"""check, simulate and train agree on every plan.

All of them accept it, or all refuse it with the same error.
"""

import contextlib
import io
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.cli import main
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.make_plan import make_plan
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import members, strategy
from hocket.training.run_plan import RunPlan
from hocket.training.worker.monitor.listener import RunSummary
from hocket.util.documents import parse_yaml, write_yaml
from tests.tiers import examples

LAYERS = 4
PROFILE = chain(
    LAYERS, forward_s=0.01, backward_s=0.02, weights_bytes=1e6, activation_bytes=1e5, device_type="cpu-core"
)
NAMES = [layer.name for layer in PROFILE.layers]
CLUSTER = Cluster("two", (Level("server", 2, 1e9, 1e-5),), "cpu-core", memory_bytes=1e9, host_memory_bytes=1e9)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the profile and a job file that nothing loads."""
    folder = tmp_path_factory.mktemp("agreement")
    PROFILE.save(folder / "profile.json")
    (folder / "job.py").write_text("raise RuntimeError('no worker is to load this')\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _no_workers() -> Any:
    """Launches that begin are taken for runs: what is asked before is what is tested.

    A launch begins with the check of its plan.
    """

    def launch(job: object, run_plan: RunPlan, *_: object) -> RunSummary:
        assert run_plan.checked
        return RunSummary(1)

    with pytest.MonkeyPatch.context() as patch:
        import hocket.training.launch.local as module

        patch.setattr(module, "launch", launch)
        yield


def said(*words: object) -> tuple[int, str]:
    """Exit code of a command in this process, and what it says on both outputs."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([str(word) for word in words])
    return code, out.getvalue()


def agree(folder: Path, data: dict[str, Any]) -> str:
    """The error of all three, empty if all go on; fails where they disagree."""
    plan = folder / "plan.yaml"
    plan.write_text(write_yaml(data))
    proof, words = said("check", plan)
    simulated, simulation = said("simulate", plan)
    trained, run = said("train", folder / "job.py", plan, "--steps", 1)
    assert "Traceback" not in words + simulation + run
    assert (simulated, trained) == (proof, proof), f"check: {words}\nsimulate: {simulation}\ntrain: {run}"
    if proof == 0:
        return ""
    assert simulation == run
    for line in words.splitlines():
        assert line in simulation
    return words


def plan_of(**changed: Any) -> dict[str, Any]:
    """Return a plan file's data: gpipe in two stages, with changed keys.

    A key whose new value is None is left out.
    """
    data = {
        "format": "hocket-plan-1",
        "strategy": "gpipe",
        "model": "chain",
        "profile": "profile.json",
        "profile_digest": PROFILE.digest,
        "batch_size": 4,
        "microbatch_size": 1,
        "stages": [{"layers": NAMES[:2], "devices": [0]}, {"layers": NAMES[2:], "devices": [1]}],
        "cluster": CLUSTER,
        **changed,
    }
    data["cluster"] = _data(data["cluster"])
    return {key: value for key, value in data.items() if value is not None}


def _data(cluster: Cluster) -> Any:
    return parse_yaml(cluster.to_yaml(), "cluster")


HAND = {"policy": "next_use", "device_bytes": "100MB", "host_bytes": "500MB", "prefetch": 1}


def test_a_swap_section_by_hand_trains(place: Path) -> None:
    """A swap section written by hand trains.

    As in docs/explanation/harmony.md, it has no bytes of stages. They are computed from the profile, also for workers.
    """
    data = plan_of(strategy="harmony", options={"mode": "pipeline"}, swap=HAND)
    assert agree(place, data) == ""


def test_what_is_refused_in_the_same_words(place: Path) -> None:
    """All commands refuse a plan with the same words.

    Cases: too little memory, limits that are too low, lists of other lengths, and another profile.
    """
    small = plan_of(cluster=replace(CLUSTER, memory_bytes=1e5))
    assert "device 0" in agree(place, small)
    assert "swap.device_bytes of device 0" in agree(place, plan_of(swap={**HAND, "device_bytes": 1e5}))
    assert "found 3 numbers" in agree(place, plan_of(swap={**HAND, "device_bytes": [1e8, 1e8, 1e8]}))
    stages = [{"weights_bytes": 1e6, "gradients_bytes": [1e6, 1e6]}] * 2
    assert "swap.stages.0.gradients_bytes" in agree(place, plan_of(swap={**HAND, "stages": stages}))
    assert "swap.stages" in agree(place, plan_of(swap={**HAND, "stages": stages[:1]}))
    assert "profile_digest" in agree(place, plan_of(profile_digest="0" * 64))
    assert "stages.0.layers" in agree(place, plan_of(stages=[{"layers": ["other"], "devices": [0]}]))


AMOUNTS = st.sampled_from((1e5, 3e6, 6e6, 2e7, 5e8, 1e10))
SWAPS = st.fixed_dictionaries(
    {"policy": st.sampled_from(("task", "next_use", "next_use", "lru")), "device_bytes": AMOUNTS},
    optional={
        "host_bytes": AMOUNTS,
        "prefetch": st.integers(0, 2),
        "writes_clean": st.booleans(),
        "stages": st.sampled_from(
            ([], [{"weights_bytes": 1e6}], [{"weights_bytes": 1e6, "gradients_bytes": [2e6]}] * 2)
        ),
    },
)


@cache
def legal(name: str) -> tuple[dict[str, Any], ...]:
    """Plans of a strategy of the registry: its own choices for the profile."""
    space = SearchSpace(PROFILE, CLUSTER, 4)
    chosen = [
        make_plan(space, name, choice) for choice, _ in zip(strategy(name).choices(space), range(12), strict=False)
    ]
    assert chosen, name
    return tuple(parse_yaml(replace(plan, profile="profile.json").to_yaml(), "plan") for plan in chosen)


def option(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """One of a strategy's options, or one that it does not have."""
    values = {bool: st.booleans(), int: st.integers(0, 3), tuple: st.lists(st.integers(0, 3), max_size=3)}
    known = [
        st.fixed_dictionaries(
            {key: st.sampled_from(one.words) if one.words else values.get(one.kind, st.just("other"))}
        )
        for key, one in strategy(name).options.items()
    ]
    return st.one_of(*known, st.just({"unheard_of": 1}))


STAGE = {
    "recompute": st.booleans(),
    "compile": st.sampled_from(("inductor", "gcc")),
    "threads": st.sampled_from(([1], [2, 2])),
    "wave": st.just(1),
    "devices": st.sampled_from(([0], [1], [0, 1], [1, 0], [2])),
    "layers": st.sampled_from((NAMES, NAMES[:1], NAMES[1:])),
}
MEMORY = st.fixed_dictionaries(
    {}, optional={"memory_bytes": AMOUNTS, "host_memory_bytes": st.one_of(st.none(), AMOUNTS)}
)


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Draw plans of every strategy with up to three changes by hand.

    Some of them are legal and some are not.
    """
    name = draw(st.sampled_from(members()))
    plan = deepcopy(draw(st.sampled_from(legal(name))))
    whole: dict[str, st.SearchStrategy[Any]] = {
        "swap": SWAPS,
        "shard": st.sampled_from(("none", "optimizer", "full", "weights")),
        "tensor": st.just(2),
        "slices": st.booleans(),
        "options": option(name).map(lambda one: {**plan.get("options", {}), **one}),
        "microbatch_size": st.integers(1, 5),
        "batch_size": st.sampled_from((2, 3, 6)),
        "strategy": st.sampled_from(members()),
        "cluster": MEMORY.map(lambda one: _data(replace(CLUSTER, **one))),
        "profile_digest": st.just("0" * 64),
    }
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from(("swap", "swap", "cluster", "stage", *whole)))
        if key == "stage":
            key = draw(st.sampled_from(sorted(STAGE)))
            draw(st.sampled_from(plan["stages"]))[key] = draw(STAGE[key])
        else:
            plan[key] = draw(whole[key])
    return plan


@examples(60)
@given(data=plans())
@example(data=plan_of())
def test_check_simulate_and_train_agree(place: Path, data: dict[str, Any]) -> None:
    """check, simulate and train agree on plans of every strategy.

    The plans have swaps, shards, groups, recomputation, compilation and too little memory. No worker is started.
    """
    agree(place, data)
