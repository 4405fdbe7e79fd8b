"""Engines on a card: the losses and weights of a CPU, under every strategy, and with NCCL, streams and swaps."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.program.passes.swapping.settings import Swapping
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.engine.transport.process_groups import _ctas
from hocket.runtime.progress.observer import Unobserved
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import CLUSTER, Case, assert_same_losses, assert_same_weights, captured

pytestmark = pytest.mark.gpu

# One case of every strategy; what a model's ties forbid takes the untied one.
CASES = [
    ("gpt", Case("data_parallel", (2,))),
    ("gpt", Case("data_parallel", (2,), shard="optimizer")),
    ("gpt", Case("model_parallel", (1, 1, 1))),
    ("gpt", Case("gpipe", (2, 1), recompute=True)),
    ("gpt clipped", Case("flush", (2, 1), batch_size=7)),
    ("gpt", Case("interleaved", (2, 2), rounds=2)),
    ("gpt untied", Case("fully_sharded", (2,), rounds=2, recompute=True)),
    ("gpt untied", Case("waves", (2, 2), rounds=2)),
    ("gpt plain untied", Case("burst_parallel", (2, 1), batch_size=16, microbatch_size=4)),
    ("gpt", Case("harmony", (2,), rounds=3)),
    ("gpt untied", Case("pipedream", (2, 1), recompute=True)),
    ("gpt untied stages", Case("pipedream", (2, 1))),
    ("gpt", Case("two_bw", (1, 1))),
    ("gpt", Case("tick_tock", (2,))),
]
STEPS = 4


def trained(graph: Captured, plan: Plan, device: torch.device) -> Result:
    """The result of some steps with all devices of the plan on one device."""
    program = plan.compile(graph)
    devices = {d: Device(Executable(graph, plan.layout(graph), program, device), d) for d in program.devices}
    return run_inline(Executable(graph, plan.layout(graph), program), STEPS, devices=devices)


@pytest.mark.parametrize(("model", "case"), CASES, ids=lambda value: str(value))
def test_every_strategy_computes_on_a_card_as_on_a_cpu(card: torch.device, model: str, case: Case) -> None:
    """Losses and weights in float64, to rounding; without dropout, of which devices draw other numbers."""
    name = model if model.startswith("gpt plain") else model.replace("gpt", "gpt plain", 1)
    graph = _graph(name)
    plan = case.plan(graph)
    here, there = trained(graph, plan, torch.device("cpu")), trained(graph, plan, card)
    assert_same_losses(there.losses, here.losses, 1e-9)
    for device, weights in there.weights.items():
        assert_same_weights({k: w.cpu() for k, w in weights.items()}, here.weights[device], 1e-9)


def _graph(name: str) -> Captured:
    """The job of that name, without dropout; clipped where it says so."""
    if name.startswith("gpt plain clipped"):
        graph = captured("gpt plain")
        return capture(replace(graph.job, clip_grad_norm=0.25), 2)
    return captured(name)


class Losses(Unobserved):
    """Losses of all microbatches, in the order in which they came."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Note one."""
        self.found.append(value)


def distributed(
    graph: Captured, plan: Plan, device: torch.device, periods: int = 3
) -> tuple[list[float], dict[str, Any]]:
    """Losses and weights of a distributed worker that is alone."""
    heard = Losses()
    worker = Worker(Executable(graph, plan.layout(graph), plan.compile(graph), device), observer=heard)
    worker.run(periods, 0)
    weights = {name: tensor.detach().cpu().clone() for name, tensor in worker.device.model.tensors({}).items()}
    worker.close()
    return heard.found, weights


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    "case",
    [Case("data_parallel", (1,)), Case("tick_tock", (1,)), Case("harmony", (1,), rounds=3)],
    ids=str,
)
def test_a_worker_on_a_card_is_the_inline_engine(card: torch.device, case: Case) -> None:
    """One rank, a stream for every lane: losses of the inline engine on a CPU, in float64."""
    graph = captured("gpt plain")
    plan = case.plan(graph)
    losses, _ = distributed(graph, plan, card)
    expected = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 3)
    assert sorted(losses) == pytest.approx(sorted(loss for _, loss, _ in expected.losses), rel=1e-9)


@pytest.mark.usefixtures("process_group")
def test_swaps_in_streams_lose_nothing(card: torch.device) -> None:
    """Swaps of a model twice as large as its budget, with 0 to 2 operations ahead: the losses of a device that holds everything."""
    job = captured("gpt plain untied", "adam").job
    graph, profile = capture(job, 1), measure(job, (1,), MeasureRequest(budget_s=0.05))
    names = [layer.name for layer in graph.layers]
    ends = [round(len(names) * k / 4) for k in range(5)]
    cuts = [tuple(names[ends[k] : ends[k + 1]]) for k in range(4)]
    state_bytes = 4 * sum(p.nbytes for p in job.model.parameters())

    def losses(swap: Swapping | None) -> list[float]:
        stages = tuple(PlanStage(cut, (0,), recompute=True) for cut in cuts)
        plan = Plan("harmony", "test", 4, 1, stages, CLUSTER, {"mode": "data"}, swap=swap)
        return distributed(graph, LoadedPlan(plan, profile).completed if swap else plan, card)[0]

    whole = losses(None)
    for ahead in (0, 1, 2):
        assert losses(Swapping("next_use", state_bytes / 2, prefetch=ahead)) == pytest.approx(whole, rel=1e-9)


@pytest.mark.usefixtures("process_group")
def test_state_goes_from_a_card_to_a_cpu_and_back(card: torch.device) -> None:
    """A worker on a card goes on from the state of one on a CPU as that one does."""
    graph = captured("gpt plain", "adam")
    plan = Case("data_parallel", (1,)).plan(graph)
    result = trained(graph, plan, torch.device("cpu"))
    again = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 2, result.position, result.devices)
    program = plan.compile(graph)
    device = Device(Executable(graph, plan.layout(graph), program, card), 0)
    first = trained(graph, plan, torch.device("cpu"))
    device.model.load(first.devices[0].model.state())
    moved = run_inline(Executable(graph, plan.layout(graph), program), 2, first.position, {0: device})
    assert_same_losses(moved.losses, again.losses, 1e-9)


def test_dropout_repeats_on_a_card(card: torch.device) -> None:
    """Recomputed stages and another cut draw the same random numbers: same losses."""
    graph = captured("gpt")
    runs = [
        trained(graph, Case("gpipe", widths, recompute=again).plan(graph), card)
        for widths, again in (((1, 1), False), ((1, 1), True), ((1, 1, 1), False))
    ]
    for other in runs[1:]:
        assert_same_losses(other.losses, runs[0].losses, 1e-9)


def test_bfloat16_trains_on_a_card(card: torch.device) -> None:
    """Compute in bfloat16, weights in float64: finite losses near those of a CPU."""
    graph = captured("gpt bfloat16")
    plan = Case("flush", (1, 1)).plan(graph)
    here, there = trained(graph, plan, torch.device("cpu")), trained(graph, plan, card)
    assert [loss for _, loss, _ in there.losses] == pytest.approx([loss for _, loss, _ in here.losses], rel=0.05)


def test_compiled_stages_on_a_card(card: torch.device) -> None:
    """Code of torch.compile gives the losses of the stages as they are written."""
    graph = captured("gpt plain", dtype=torch.float32)
    backend = "inductor" if card.type == "cuda" else "aot_eager"
    eager, code = (trained(graph, Case("flush", (1, 1), compile=c).plan(graph), card) for c in ("", backend))
    assert_same_losses(code.losses, eager.losses, 1e-4)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("ctas", [1, 4])
def test_groups_with_a_number_of_ctas(card: torch.device, ctas: int) -> None:
    """NCCL makes a group of so many CTAs, and sums over it."""
    if card.type == "cpu":
        options: Any = None  # gloo has no CTAs
    else:
        options = _ctas(ctas)
    group = torch.distributed.new_group([0], pg_options=options)
    tensor = torch.arange(5.0, device=card)
    torch.distributed.all_reduce(tensor, group=group)
    assert tensor.tolist() == [0, 1, 2, 3, 4]


def test_peak_memory_is_the_allocators(card: torch.device, process_group: None) -> None:
    """A worker says the most bytes that its device held: at least weights, gradients and momentum."""
    graph = captured("gpt plain")
    plan = Case("data_parallel", (1,)).plan(graph)
    worker = Worker(Executable(graph, plan.layout(graph), plan.compile(graph), card))
    worker.run(2, 0)
    assert worker.peak_memory_bytes >= 3 * sum(p.nbytes for p in graph.job.model.parameters())
    worker.close()
