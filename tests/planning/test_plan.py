"""The plan file: round trip, and one clear error for each invalid edit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage, Predicted
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.borders import StageCut
from hocket.util.documents import parse_yaml, write_yaml
from tests.tiers import examples

PROFILE = chain(6, device_type="cpu-core")
CLUSTER = Cluster("four", (Level("server", 4, 1e9, 1e-5),), "cpu-core")
NAMES = tuple(layer.name for layer in PROFILE.layers)
PLAN = Plan(
    "flush",
    "chain",
    8,
    2,
    (
        PlanStage(NAMES[:3], (0, 1), buckets=((NAMES[2], NAMES[1]), (NAMES[0],)), threads=(1, 2)),
        PlanStage(NAMES[3:], (2, 3), True, buckets=(NAMES[3:],)),
    ),
    CLUSTER,
    profile="profile.json",
    profile_digest="ab" * 32,
    model_digest="cd" * 32,
    dtype="bfloat16",
    predicted=Predicted(0.25, 32.0, {0: 1e6, 1: 2e6, 2: 3e6, 3: 4.5e6}, 0.125),
)


@pytest.mark.parametrize(
    ("threads", "shard", "expected"),
    [
        ((1,), "none", "2, one for each bucket"),
        ((0, 1), "none", "numbers from 1 to 16 on a processor"),
        ((1, 17), "none", "numbers from 1 to 16 on a processor"),
        ((1, 2), "optimizer", "Leave threads out, or use shard: none"),
    ],
)
def test_wrong_threads(threads: tuple[int, ...], shard: str, expected: str) -> None:
    """Threads: one number for each bucket, within the device's limit, unsharded sums."""
    first = replace(PLAN.stages[0], threads=threads)
    with pytest.raises(InputError, match=expected) as found:
        replace(PLAN, stages=(first, PLAN.stages[1]), shard=shard)
    assert found.value.place == "stages.0.threads"


def test_a_gpu_has_more_threads() -> None:
    cluster = Cluster("four", (Level("server", 4, 1e9, 1e-5),), "v100-16gb")
    first = replace(PLAN.stages[0], threads=(2048, 64))
    assert replace(PLAN, stages=(first, PLAN.stages[1]), cluster=cluster).stages[0].threads == (2048, 64)


def test_text_and_back() -> None:
    """A plan is read back unchanged, and written again as the same bytes."""
    text = PLAN.to_yaml()
    assert Plan.from_yaml(text) == PLAN
    assert Plan.from_yaml(text).to_yaml() == text


@examples(30)
@given(
    batch=st.integers(1, 40),
    data=st.data(),
    recompute=st.booleans(),
    options=st.dictionaries(
        st.sampled_from(["in_flight", "naive"]), st.one_of(st.integers(-3, 3), st.booleans(), st.none())
    ),
    model=st.text(max_size=12),
)
def test_any_plan_is_read_back(
    batch: int, data: st.DataObject, recompute: bool, options: dict[str, Any], model: str
) -> None:
    """Also with odd names, options of every type and without a prediction."""
    size = data.draw(st.integers(1, batch))
    at = data.draw(st.integers(1, 5))
    stages = (PlanStage(NAMES[:at], (0,), recompute), PlanStage(NAMES[at:], (3, 1)))
    plan = Plan("gpipe", model, batch, size, stages, CLUSTER, options)
    assert Plan.from_yaml(plan.to_yaml()) == plan


def test_a_plan_on_disk(tmp_path: Path) -> None:
    """Save and read by path; a missing file is reported with the nearest name."""
    PLAN.save(tmp_path / "plan.yaml")
    assert Plan.read(tmp_path / "plan.yaml") == PLAN
    with pytest.raises(InputError, match=r"plam\.yaml: found no such file.*Did you mean 'plan\.yaml'"):
        Plan.read(tmp_path / "plam.yaml")


@given(batch=st.integers(1, 60), data=st.data())
def test_microbatches_make_up_the_batch(batch: int, data: st.DataObject) -> None:
    """All have one size but the last, which is never empty.

    Numbers continue over batches.
    """
    size = data.draw(st.integers(1, batch))
    plan = replace(PLAN, batch_size=batch, microbatch_size=size)
    samples = [plan.samples(m) for m in range(plan.microbatches)]
    assert sum(samples) == batch
    assert set(samples[:-1]) <= {size}
    assert 1 <= samples[-1] <= size
    assert [plan.samples(m + plan.microbatches) for m in range(plan.microbatches)] == samples


def test_stages_as_indices() -> None:
    """Layers in any order become ascending indices; buckets keep their order."""
    shuffled = replace(PLAN, stages=(replace(PLAN.stages[0], layers=(NAMES[2], NAMES[0], NAMES[1])), PLAN.stages[1]))
    assert shuffled.cuts(PROFILE) == (
        StageCut((0, 1, 2), (0, 1), False, ((2, 1), (0,)), (1, 2)),
        StageCut((3, 4, 5), (2, 3), True, ((3, 4, 5),)),
    )
    assert PLAN.compile(PROFILE).name == "flush 2-2"


Edit = Callable[[dict[str, Any]], object]


def bad(name: str, edit: Edit, place: str, *words: str) -> Any:
    """An edit of the plan's data, with the error's place and text."""
    return pytest.param(edit, place, words, id=name)


@pytest.mark.parametrize(
    ("edit", "place", "words"),
    [
        bad("unknown key", lambda d: d.update(stratgy="x"), "plan: stratgy", "unknown key", "Did you mean 'strategy'"),
        bad("unknown key of a stage", lambda d: d["stages"][0].update(device=1), "plan: stages.0.device", "devices"),
        bad("misspelt key", lambda d: d.update(batchsize=d.pop("batch_size")), "plan: batchsize", "'batch_size'"),
        bad("missing key", lambda d: d.pop("model"), "plan: model", "nothing"),
        bad("missing cluster", lambda d: d.pop("cluster"), "plan: cluster", "nothing"),
        bad("wrong type", lambda d: d.update(batch_size="many"), "plan: batch_size", "'many'", "a whole number"),
        bad("a fraction", lambda d: d.update(batch_size=2.5), "plan: batch_size", "2.5", "a whole number"),
        bad("a batch beyond all use", lambda d: d.update(batch_size=10**30), "plan: batch_size", "10", "1,048,576"),
        bad("no batch", lambda d: d.update(batch_size=0), "plan: batch_size", "0", ">= 1"),
        bad("microbatch too large", lambda d: d.update(microbatch_size=9), "plan: microbatch_size", "9", "1 to"),
        bad("microbatch of nothing", lambda d: d.update(microbatch_size=0), "plan: microbatch_size", "0"),
        bad("no stages", lambda d: d.update(stages=[]), "plan: stages", "none"),
        bad("stages of another kind", lambda d: d.update(stages="all"), "plan: stages", "'all'"),
        bad("no devices", lambda d: d["stages"][0].update(devices=[]), "plan: stages.0.devices", "[]"),
        bad("a device twice", lambda d: d["stages"][1].update(devices=[3, 3]), "plan: stages.1.devices", "[3, 3]"),
        bad("a device too many", lambda d: d["stages"][1].update(devices=[2, 4]), "plan: stages.1.devices", "0 to 3"),
        bad(
            "a device below zero", lambda d: d["stages"][1].update(devices=[-1]), "plan: stages.1.devices", "device -1"
        ),
        bad("a bucket too few", lambda d: d["stages"][0]["buckets"].pop(), "plan: stages.0.buckets", "'layer0'"),
        bad(
            "a bucket twice", lambda d: d["stages"][1]["buckets"].append(["layer4"]), "plan: stages.1.buckets", "layer4"
        ),
        bad("another version", lambda d: d.update(format="hocket-plan-9"), "plan: format", "'hocket-plan-9'"),
        bad(
            "a wrong cluster",
            lambda d: d["cluster"]["levels"][0].update(width=0),
            "plan: cluster.levels.0.width",
            ">= 1",
        ),
        bad("a key of a level", lambda d: d["cluster"]["levels"][0].update(bandwith=1), "bandwith", "unknown key"),
        bad(
            "no such policy",
            lambda d: d.update(swap={"policy": "nextuse"}),
            "plan: swap.policy",
            "Did you mean 'next_use'",
        ),
        bad(
            "a policy without a budget",
            lambda d: d.update(swap={"policy": "lru"}),
            "plan: swap.device_bytes",
            "nothing",
        ),
        bad(
            "budgets of other devices",
            lambda d: d.update(swap={"policy": "lru", "device_bytes": [1e9] * 17}),
            "plan: swap.device_bytes",
            "17 numbers",
        ),
        bad(
            "a budget below zero",
            lambda d: d.update(swap={"policy": "lru", "device_bytes": [1e9, -1.0]}),
            "plan: swap.device_bytes",
            "-1.0",
        ),
        bad("no host", lambda d: d.update(swap={"policy": "task", "host_bytes": 0}), "plan: swap.host_bytes", "> 0"),
        bad("looking back", lambda d: d.update(swap={"policy": "task", "prefetch": -1}), "plan: swap.prefetch", "-1"),
        bad(
            "bytes below zero",
            lambda d: d.update(swap={"policy": "task", "stages": [{"weights_bytes": -5.0}]}),
            "plan: swap.stages.0.weights_bytes",
            "-5.0",
        ),
        bad("a wrong prediction", lambda d: d["predicted"].update(iteration_s="soon"), "plan: predicted", "'soon'"),
    ],
)
def test_a_plan_edited_into_nonsense(edit: Edit, place: str, words: tuple[str, ...]) -> None:
    """One error names the place, the value and what is expected."""
    data = parse_yaml(PLAN.to_yaml(), "plan")
    edit(data)
    with pytest.raises(InputError) as caught:
        Plan.from_yaml(write_yaml(data), "plan")
    assert caught.value.exit_code == 2
    assert place in caught.value.place
    assert caught.value.found
    assert caught.value.expected
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "an empty file"),
        ("{}", "no keys"),
        ("just words", "a text"),
        ("[1, 2]", "a list"),
        ('{"format": "hocket-profile-1", "layers": []}', "what seems to be a profile"),
        ('{"format": "other-1"}', "a file of format 'other-1'"),
        ("a: 1", "keys 'a'"),
        ("name: c\nlevels: []\ndevice_type: cpu-core\n", "what seems to be a cluster"),
    ],
)
def test_a_file_that_is_no_plan(text: str, found: str) -> None:
    """The error says what the file is and how to make a plan.

    It does not list missing keys.
    """
    with pytest.raises(InputError) as caught:
        Plan.from_yaml(text, "x.yaml")
    assert (caught.value.place, caught.value.found) == ("x.yaml", found)
    assert "hocket-plan-1" in caught.value.expected
    assert "hocket plan" in caught.value.next_step


def test_a_file_that_is_no_yaml() -> None:
    """The error names the line and its content, and describes a plan."""
    with pytest.raises(InputError) as caught:
        Plan.from_yaml("strategy: flush\nstages: [a: b: c]\n", "x.yaml")
    assert caught.value.place == "x.yaml, line 2"
    assert caught.value.found.startswith("'stages: [a: b: c]'")
    assert "hocket-plan-1" in caught.value.expected
    assert "hocket plan" in caught.value.next_step


def test_layers_of_another_model() -> None:
    """An unknown layer is named, with the nearest name or a hint at another model."""
    odd = replace(
        PLAN,
        stages=(replace(PLAN.stages[0], layers=("layer0", "layer1", "leyer2"), buckets=(), threads=()), PLAN.stages[1]),
    )
    with pytest.raises(InputError, match=r"stages\.0\.layers.*'leyer2'.*Did you mean 'layer2'"):
        odd.cuts(PROFILE)
    foreign = replace(PLAN, stages=(PlanStage(("conv.weight",), (0,)), PLAN.stages[1]))
    with pytest.raises(InputError, match="may belong to another model"):
        foreign.cuts(PROFILE)
    part = replace(PLAN, stages=(PlanStage(("layer0.1",), (0,)), PLAN.stages[1]))
    with pytest.raises(
        InputError, match="a subtask of layer0, which this job does not cut: set the job's subtask_bytes"
    ):
        part.cuts(PROFILE)
    cut = replace(PROFILE, layers=tuple(replace(layer, name=f"{layer.name}.0") for layer in PROFILE.layers))
    with pytest.raises(InputError, match="profile the job and plan again, or leave subtask_bytes out"):
        PLAN.cuts(cut)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((NAMES[:3], NAMES[2:]), r"'layer2', which is already in stage 0"),
        ((NAMES[:2], NAMES[3:]), r"no stage for layer 'layer2' \(1 missing\)"),
        ((NAMES[3:], NAMES[:3]), r"back to stage 0.*Move layer"),
        (((), NAMES), r"stages\.0\.layers.*no layers"),
    ],
    ids=["twice", "missing", "backwards", "empty"],
)
def test_layers_that_are_no_partition(stages: tuple[tuple[str, ...], ...], words: str) -> None:
    """Each layer once, none missing, tensors forward only."""
    plan = replace(PLAN, stages=tuple(PlanStage(names, (s,)) for s, names in enumerate(stages)))
    with pytest.raises(InputError, match=words):
        plan.compile(PROFILE)


def test_a_strategy_that_does_not_take_it() -> None:
    """Unknown strategies and options, wrong types and refusals name valid values."""
    with pytest.raises(InputError, match=r"'flesh'; expected one of .*Did you mean 'flush'"):
        replace(PLAN, strategy="flesh").compile(PROFILE)
    with pytest.raises(InputError, match=r"options\.in_flight.*flush has none"):
        replace(PLAN, options={"in_flight": 2}).compile(PROFILE)
    with pytest.raises(InputError, match=r"options\.in_flight: found 'two'; expected a value of type int"):
        replace(PLAN, strategy="pipedream", options={"in_flight": "two"}).compile(PROFILE)
    with pytest.raises(RefusedError, match="2 stages; data parallelism has one"):
        replace(PLAN, strategy="data_parallel").compile(PROFILE)
