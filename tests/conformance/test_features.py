"""Every two features: those that go together train as their rule says, the others are refused with the reason that the table has."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.cli import main
from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.program.check.check import check
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from hocket.strategies.base.strategy import complete, in_use, strategy
from hocket.training.verify.reference_loop import rule_loop
from hocket.util.compatibility import REFUSED, Feature, conflict
from tests.runtime.engine.helpers import tensor_workers
from tests.runtime.engine.helpers.tensor_workers import PAIRS, WIDTH
from tests.runtime.helpers import tensor_pipeline_workers
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured, uneven_weight

TOP = Path(__file__).resolve().parents[2]
DOCUMENT = TOP / "docs" / "reference" / "feature-conflicts.md"
BEGIN, END = "| this | with | because |\n|---|---|---|\n", "\n\n"

MEMBERS = (Feature.TENSOR, Feature.SLICES, Feature.SEQUENCE_PARALLEL)
# What of a job cannot be asked for alone, and is tried where it is refused.
UNFIT = (
    Feature.SHORT_WEIGHTS,
    Feature.UNLIKE_WEIGHTS,
    Feature.WHOLE_STEPS,
    Feature.STAGES,
    Feature.COUPLED_STEPS,
)
# Neither a plan nor a job asks for it.
OF_RUNS = (Feature.SKIP, Feature.LOADERS)
ALONE = [feature for feature in Feature if feature not in (*MEMBERS, *UNFIT, *OF_RUNS, Feature.WAVES)]


class Tied(nn.Module):
    """A chain of small layers, the first and the last of which may share their weights; dropout between."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.middle = nn.Sequential(nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.2), nn.Linear(6, 6), nn.Tanh())
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """(samples, 6) to (samples, 6)."""
        return self.last(self.middle(self.first(x)))


@dataclass
class Ask:
    """A way to train that has some features, if there is one."""

    strategy: str = "flush"
    widths: tuple[int, ...] = (1, 1)
    shard: str = "none"
    options: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    tied: bool = False
    rounds: int = 1
    recompute: bool = False
    compile: str = ""
    swap: str = ""
    prefetch: int = 0
    read_once: bool = False

    @property
    def case(self) -> Case:
        """Stages, without a model."""
        kind = {"recompute": self.recompute, "rounds": self.rounds, "options": self.options, "shard": self.shard}
        kind |= {"prefetch": self.prefetch, "read_once": self.read_once}
        return Case(self.strategy, self.widths, 8, 2, compile=self.compile, swap=self.swap, **kind)

    def graph(self) -> Captured:
        """The model."""
        return model(self.tied, **self.job)


# By feature, what it changes in a plan or a job.
ASKS: dict[Feature, dict[str, Any]] = {
    Feature.ASYNCHRONOUS: {"strategy": "two_bw"},
    Feature.APART: {"strategy": "two_bw"},
    Feature.PIPEDREAM: {"strategy": "pipedream"},
    Feature.NAIVE: {"strategy": "pipedream", "options": {"naive": True}},
    Feature.VERTICAL_SYNC: {"strategy": "pipedream", "options": {"vertical_sync": True}},
    Feature.ROUNDS: {"strategy": "interleaved", "rounds": 2},
    Feature.RECOMPUTE: {"recompute": True},
    Feature.REPLICAS: {"widths": (2, 2)},
    Feature.UNEQUAL_REPLICAS: {"widths": (2, 1)},
    Feature.SHARD_OPTIMIZER: {"shard": "optimizer", "widths": (2, 2)},
    Feature.SHARD_FULL: {"shard": "full", "widths": (2, 2)},
    Feature.TIED: {"tied": True},
    Feature.CLIP: {"job": {"clip_grad_norm": 0.05, "clip_grad_norm_over": "model"}},
    Feature.CLIP_STAGES: {"job": {"clip_grad_norm": 0.05, "clip_grad_norm_over": "stage"}},
    Feature.LOSS_WEIGHT: {"job": {"loss_weight": uneven_weight}},
    Feature.PRECISION: {"job": {"precision": "bfloat16"}},
    Feature.LOSS_SCALE: {"job": {"precision": "float16"}},
    Feature.SUBTASKS: {"job": {"subtask_bytes": 100.0}},
    Feature.COMPILE: {"compile": "aot_eager"},
    Feature.SWAP: {"swap": "task"},
    Feature.PREFETCH: {"prefetch": 2},
    Feature.READ_ONCE: {"read_once": True},
}


@cache
def model(tied: bool, **job: Any) -> Captured:
    """The small job, captured."""
    draw = torch.Generator().manual_seed(1)
    data = [tuple(torch.randn(6, generator=draw) for _ in range(2)) for _ in range(16)]
    made = Job(Tied(tied), nn.MSELoss(), data, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 8, **job)
    return capture(made, 2)


def together(*features: Feature) -> Ask | None:
    """A way to train with all of these; None where one plan cannot say them all."""
    found: dict[str, Any] = {}
    for feature in features:
        for key, value in ASKS[feature].items():
            if key == "strategy" and {found.get(key, value), value} == {"two_bw", "pipedream"}:
                value = "pipedream"  # both are asynchronous
            if (
                key == "job"
                and len({value.get("clip_grad_norm_over"), found.get(key, {}).get("clip_grad_norm_over")} - {None}) > 1
            ):
                return None  # a job has one norm
            if key == "job" and value.get("precision") == "bfloat16":
                value = value | found.get(key, {})  # float16 is a precision as well
            elif key in ("options", "job"):
                value = {**found.get(key, {}), **value}
            elif key == "widths" and key in found:
                value = min(found[key], value)
            elif found.get(key, value) != value:
                return None
            found[key] = value
    if found.get("rounds", 1) > 1 and found.get("widths") == (2, 1):
        return None  # interleaved stages have equal numbers of replicas
    return Ask(**found)


def features_of(plan: Plan, graph: Captured) -> frozenset[Feature]:
    """All that a plan and a job ask for."""
    shapes, options = plan.shapes(graph), complete(plan.strategy, plan.options)
    rule = strategy(plan.strategy).rule(shapes, plan.microbatches, options)
    precise = {Feature.PRECISION} if graph.job.precision else set()
    subtasks = {Feature.SUBTASKS} if graph.parts else set()
    return plan.features | in_use(shapes, rule, options) | precise | subtasks


def pairs() -> Iterator[tuple[Feature, Feature]]:
    """Those that one plan and one job on whole devices can ask for."""
    for one, other in combinations(ALONE, 2):
        if together(one, other) is not None:
            yield one, other


def whole(pair: tuple[Feature, Feature]) -> set[Feature]:
    """Two features, and what they are a part of."""
    late = {Feature.APART, Feature.ASYNCHRONOUS}  # as two_bw, which is tried where either is asked for
    of = dict.fromkeys(late, late) | dict.fromkeys(
        (Feature.NAIVE, Feature.VERTICAL_SYNC, Feature.PIPEDREAM), late | {Feature.PIPEDREAM}
    )
    return set(pair).union(*(of.get(feature, ()) for feature in pair))


PAIRS_OF_PLANS = list(pairs())
ALLOWED = [pair for pair in PAIRS_OF_PLANS if conflict(whole(pair)) is None]
FORBIDDEN = [pair for pair in PAIRS_OF_PLANS if conflict(whole(pair)) is not None]


@pytest.mark.parametrize(("one", "other"), ALLOWED, ids=[f"{a}+{b}" for a, b in ALLOWED])
@pytest.mark.thinned
def test_what_goes_together_trains_as_its_rule_says(one: Feature, other: Feature) -> None:
    """A legal program, and losses and weights of the plain loop."""
    ask = together(one, other)
    assert ask is not None
    graph = ask.graph()
    plan = ask.case.plan(graph)
    assert {one, other} <= features_of(plan, graph)
    program = plan.compile(graph)
    assert check(program) == ()
    repeats = 1 + 8 // program.stride
    found = run_inline(Executable(graph, plan.layout(graph), program), repeats)
    expected = rule_loop(graph, plan, program.rule, program.microbatches(repeats))
    tolerance = 2e-2 if graph.job.precision else 1e-4
    assert_same_losses(found.losses, expected.losses, tolerance)
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, tolerance)


@pytest.mark.parametrize(("one", "other"), FORBIDDEN, ids=[f"{a}+{b}" for a, b in FORBIDDEN])
def test_what_does_not_is_refused_with_the_reason_of_the_table(one: Feature, other: Feature) -> None:
    """Where the plan is made into a program; of parts of a feature with the reason of the whole."""
    ask = together(one, other)
    assert ask is not None
    with pytest.raises(RefusedError) as caught:
        ask.case.plan(ask.graph()).compile(ask.graph())
    assert caught.value.found == conflict(whole((one, other)))


@pytest.mark.workers
@pytest.mark.slow
def test_members_of_groups_train_with_the_rest(tmp_path: Path) -> None:
    """With each other feature there is a run of tensor-parallel members, here or in the tests of the engine, that gives the losses
    of whole devices; with slices of either sort as well."""
    tensor_workers.run_cases(tmp_path, *PAIRS)
    for name, chosen in PAIRS.items():
        graph = chosen.whole()
        plan = chosen.case.plan(graph)
        expected = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), chosen.repeats)
        facts = [json.loads((tmp_path / name / f"{rank}.json").read_text()) for rank in range(chosen.workers)]
        for member in range(WIDTH):
            losses = sorted(tuple(loss) for fact in facts[member::WIDTH] for loss in fact["losses"])
            assert_same_losses(losses, expected.losses, 2e-2 if "float16" in chosen.job[0] else 1e-8)
    runs = [run for runs in (tensor_workers.RUNS, PAIRS) for run in runs.values()]
    used = [features_of(run.plan(), run.whole()) for run in runs]
    for case, job, optimizer, _ in tensor_pipeline_workers.RUNS:  # by test_two_stages_of_two_devices
        graph = captured(job, optimizer)
        used.append(features_of(case.plan(graph), graph) | {Feature.TENSOR})
    for feature in (one for one in ALONE if conflict((Feature.TENSOR, one)) is None):
        assert any({feature, Feature.TENSOR} <= found for found in used), feature
        assert any(feature in found and found & set(MEMBERS[1:]) for found in used), feature
    assert not any(conflict(found) for found in used)


REFUSED_ALONE = [pair for pair in REFUSED if together(*(f for f in pair if f in ALONE)) and set(pair) <= set(ALONE)]
MODEL = """
import torch
from torch import nn

from hocket import Job

class ByNorm(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad /= p.grad.norm()
        return super().step(closure)

class Clipping(torch.optim.SGD):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)

data = [(torch.full((4,), k / 8), torch.ones(4)) for k in range(8)]
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
{model}
job = Job(model, nn.MSELoss(), data, lambda p: {optimizer}(p, lr=0.1), 8{more})
"""


def write_job(path: Path, model: str = "", optimizer: str = "torch.optim.SGD", more: str = "") -> None:
    """A job file."""
    path.write_text(MODEL.format(model=model, optimizer=optimizer, more=more))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of an error of a command."""
    capsys.readouterr()
    assert main(list(words)) == 2
    found = capsys.readouterr().err
    assert "Traceback" not in found
    return " ".join(found.split())


def reason(one: Feature, other: Feature) -> str:
    """As the table has it."""
    found = conflict((one, other))
    assert found is not None
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("one", "other"), REFUSED_ALONE, ids=[f"{a}+{b}" for a, b in REFUSED_ALONE])
def test_a_plan_that_is_refused(one: Feature, other: Feature, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `hocket check`, and by `hocket plan` among what is refused, where it would choose both; never a candidate."""
    ask = together(one, other)
    assert ask is not None
    plain = chain(8, microbatch_sizes=(2,), device_type="cpu-core")
    layers = tuple(replace(layer, parameters=(f"w{k % 7 if ask.tied else k}",)) for k, layer in enumerate(plain.layers))
    ties = ((0, 7),) if ask.tied else ()
    by_stage = ask.job.get("clip_grad_norm_over") == "stage"
    norm = {"clip_stage_norm" if by_stage else "clip_grad_norm": ask.job.get("clip_grad_norm")}
    profile = replace(plain, layers=layers, ties=ties, **norm)
    profile = replace(profile, loss_weighted="loss_weight" in ask.job, loss_scaled="precision" in ask.job)
    profile.save("profile.json")
    cluster = Cluster("four", (Level("server", 4, 1e12),), "cpu-core", host_memory_bytes=1e12)
    cluster.save("cluster.yaml")
    made = replace(ask, prefetch=0).case.plan(profile)  # type: ignore[arg-type]
    replace(made, cluster=cluster, profile="profile.json").save("plan.yaml")
    if ask.prefetch:  # such a plan can only be written
        Path("plan.yaml").write_text(Path("plan.yaml").read_text() + f"prefetch: {ask.prefetch}\n")
    assert reason(one, other) in refused(capsys, "check", "plan.yaml")
    if ask.options or ask.read_once or (ask.swap and ask.shard != "none"):
        return  # which only a person writes; tests/planning/swapping/test_baselines.py
    words = ["plan", "profile.json", "cluster.yaml", "-B", "8", "-s", ask.strategy, "--json"]
    if ask.prefetch:
        assert reason(one, other) in refused(capsys, *words, "--swap", "lru", "--prefetch", "2")
        return
    assert main(
        [*words, *(("--shard", ask.shard) if ask.shard != "none" else ()), *(("--swap", "lru") if ask.swap else ())]
    ) in (0, 2)
    found = json.loads(capsys.readouterr().out)
    assert any(entry["reason"] == reason(one, other) for entry in found["refused"])
    for candidate in found["candidates"]:
        assert candidate["strategy"] == ask.strategy
        assert conflict((one, other)) is None or len(candidate["config"].split("-")) == 1  # a single stage ties nothing


@pytest.mark.parametrize(
    ("one", "other", "said", "added"),
    [
        (Feature.SLICES, Feature.SEQUENCE_PARALLEL, {"slices": True}, "sequence_parallel: true"),
        (Feature.COMPILE, Feature.TENSOR, {}, ""),
    ],
)
def test_what_members_of_groups_do_not_take(
    one: Feature, other: Feature, said: Any, added: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By every command that reads the plan."""
    chain(8, device_type="cpu-core").save("profile.json")
    cluster = Cluster("two", (Level("server", 2, 1e12),), "cpu-core")
    plan = Plan("data_parallel", "x", 2, 2, Ask(widths=(1,)).case.plan(model(False)).stages, cluster, tensor=2)
    replace(plan, **said).save("plan.yaml")
    text = Path("plan.yaml").read_text() + added + "\n"
    if one is Feature.COMPILE:
        text = text.replace("stages:\n-", "stages:\n- compile: inductor\n ")
    Path("plan.yaml").write_text(text)
    for words in (("check", "plan.yaml"), ("train", "job.py", "plan.yaml")):
        assert reason(one, other) in refused(capsys, *words)


@pytest.mark.parametrize("other", [Feature.TENSOR, Feature.COMPILE])
def test_what_waves_do_not_take(other: Feature, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the plan is read."""
    plan = Case("tick_tock", (1,), 4, 2).plan(model(False))
    text = replace(plan, cluster=Cluster("two", (Level("server", 2, 1e12),), "cpu-core")).to_yaml()
    said = "stages:\n- compile: inductor\n " if other is Feature.COMPILE else "tensor: 2\nstages:\n-"
    Path("plan.yaml").write_text(text.replace("stages:\n-", said))
    assert reason(Feature.WAVES, other) in refused(capsys, "check", "plan.yaml")


@pytest.mark.parametrize(
    ("model", "feature"),
    [("model.bfloat16()", Feature.SHORT_WEIGHTS), ("model[2].double()", Feature.UNLIKE_WEIGHTS)],
)
def test_a_model_that_has_nothing_to_shorten(
    model: str, feature: Feature, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it is measured."""
    write_job(here / "job.py", model, more=", precision='bfloat16'")
    assert reason(Feature.PRECISION, feature) in refused(capsys, "profile", "job.py", "-o", "profile.json")


@pytest.mark.workers
@pytest.mark.parametrize("shard", ["optimizer", "full"])
def test_an_optimizer_of_whole_weights(shard: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first step; of tensor-parallel members in tests/runtime/tensor_parallel/test_shard_model.py."""
    write_job(here / "job.py", optimizer="ByNorm")
    cluster = Cluster("two", (Level("server", 2, 1e12),), "cpu-core")
    layers = replace(Ask(widths=(1,)).case.plan(model(False)).stages[0], layers=("0", "1", "2", "loss"), devices=(0, 1))
    Plan("data_parallel", "x", 8, 2, (layers,), cluster, shard=shard).save("plan.yaml")
    feature = Feature.SHARD_OPTIMIZER if shard == "optimizer" else Feature.SHARD_FULL
    assert f"ByNorm: {reason(feature, Feature.WHOLE_STEPS)}" in refused(capsys, "train", "job.py", "plan.yaml")


@pytest.mark.workers
def test_an_optimizer_of_several_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first step: stages would clip by the norms of their own weights, and give other losses than one process."""
    write_job(here / "job.py", optimizer="Clipping")
    cluster = Cluster("two", (Level("server", 2, 1e12),), "cpu-core")
    layers = Ask(widths=(1,)).case.plan(model(False)).stages[0]
    stages = (replace(layers, layers=("0", "1"), devices=(0,)), replace(layers, layers=("2", "loss"), devices=(1,)))
    Plan("flush", "x", 8, 2, stages, cluster).save("plan.yaml")
    because = f"Clipping: {reason(Feature.STAGES, Feature.COUPLED_STEPS)}"
    assert because in refused(capsys, "train", "job.py", "plan.yaml")


def test_every_refusal_is_tried() -> None:
    """By one of the tests above, or where another file says so."""
    others = {(one, other) for one, other in REFUSED if other in UNFIT}
    others |= {pair for pair in REFUSED if Feature.WAVES in pair}
    others |= {(Feature.SLICES, Feature.SEQUENCE_PARALLEL), (Feature.COMPILE, Feature.TENSOR)}
    others.add((Feature.SUBTASKS, Feature.TENSOR))  # tests/profiling/job/test_subtasks.py
    others.add((Feature.SKIP, Feature.ASYNCHRONOUS))  # tests/runtime/nan_guard/test_guard.py
    assert set(REFUSED) == {*REFUSED_ALONE, *others}
    assert all(re.search(r"; (use|put|give|leave) ", text) for text in REFUSED.values()), "with what to do instead"


def test_the_table_of_the_documentation(update_golden: bool) -> None:
    """docs/reference/feature-conflicts.md has what the code has; `make golden` writes it."""
    code = {feature: f"`{feature}`" if ":" in feature or " " not in feature else str(feature) for feature in Feature}
    table = "\n".join(f"| {code[one]} | {code[other]} | {because} |" for (one, other), because in REFUSED.items())
    text = DOCUMENT.read_text()
    start = text.index(BEGIN) + len(BEGIN)
    end = text.index(END, start)
    if update_golden:
        DOCUMENT.write_text(text[:start] + table + text[end:])
    assert text[start:end] == table or update_golden
