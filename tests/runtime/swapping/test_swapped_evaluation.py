"""Evaluations of a model that is larger than the devices' memory, within the budgets of its training."""

import copy
from dataclasses import replace

import pytest
import torch

from hocket.errors import RefusedError
from hocket.planning.plan import Plan
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.swapping.candidates import on_hosts
from hocket.profiling.capture.capture import Captured
from hocket.profiling.data.evaluation import Evaluation
from hocket.program.instruction import Kind, ValueKind
from hocket.program.passes.swapping.settings import Swapping
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.evaluation.evaluator import averaged, evaluation_executable
from hocket.runtime.stage.executable import Executable
from tests.runtime.evaluation.test_evaluator import evaluated
from tests.runtime.swapping.test_harmony import Setting, made

SAMPLES = 7


@pytest.fixture(scope="module")
def setting() -> Setting:
    """The job, measured, and a budget that is far too small."""
    return made(False)


def judged(setting: Setting, plan: Plan, batch_size: int | None) -> tuple[Captured, Executable]:
    """Training program of a plan, of a job with an evaluation."""
    job = copy.copy(setting.graph.job)
    data = [job.data[i] for i in range(SAMPLES)]
    object.__setattr__(job, "evaluate", Evaluation(data, batch_size=batch_size))
    graph = replace(setting.graph, job=job)
    return graph, Executable(graph, plan.layout(graph), plan.compile(graph))


@pytest.mark.parametrize(
    ("mode", "policy", "prefetch", "peer", "batch_size"),
    [
        ("pipeline", "next_use", 0, True, None),
        ("data", "lru", 0, False, None),
        ("data", "next_use", 1, True, 2),
        ("pipeline", "task", 0, True, 2),
    ],
)
@pytest.mark.thinned(most=2)
def test_it_fits_the_budgets_of_the_training(
    setting: Setting, mode: str, policy: str, prefetch: int, peer: bool, batch_size: int | None
) -> None:
    """Losses are those of a run without limits, and device and host keep to the plan's budgets.

    The training then goes on as if nothing had been evaluated. Nothing but weights and activations is swapped, and no
    weights are written back.
    """
    swap = Swapping(policy, device_bytes=setting.budget_bytes, prefetch=prefetch)
    plan = setting.plan(mode, swap, peer=peer)
    assert plan.swap is not None
    plan = replace(
        plan, swap=replace(plan.swap, host_bytes=max(on_hosts(PlannedRun.of(plan, setting.profile)).values()))
    )
    _, trains = judged(setting, plan, batch_size)
    free = replace(plan, swap=None)
    _, unlimited = judged(setting, free, batch_size)
    expected = run_inline(unlimited, 1)
    wanted = evaluated(evaluation_executable(unlimited, "harmony", 1), expected)
    trained = run_inline(trains, 1)
    before = {number: copy.copy(device.memory.out_bytes) for number, device in trained.devices.items() if device.memory}
    executable = evaluation_executable(trains, "harmony", 1)
    assert evaluated(executable, trained) == wanted
    assert any(one.kind is Kind.SWAP_IN for _, one in executable.program.instructions())
    for number, device in trained.devices.items():
        assert device.memory is not None
        assert device.memory.storages.peak_bytes <= setting.budget_bytes
        assert device.memory.host.held_bytes <= plan.swap.host_bytes
        moved = device.memory.out_bytes - before[number]
        assert set(moved) <= {ValueKind.ACTIVATION, ValueKind.INPUT}
    more = run_inline(trains, 1, trained.position, trained.devices)
    assert more.losses == run_inline(unlimited, 1, expected.position, expected.devices).losses


def test_averages_change_places_with_weights_on_the_host(setting: Setting) -> None:
    """Inside the context, an evaluation reads the averages; afterwards all is as before."""
    plan = setting.plan("data", Swapping("task"))
    job = replace(setting.graph.job, ema=0.5)
    found = []
    for one in (plan, replace(plan, swap=None)):
        graph = replace(setting.graph, job=job)
        run = run_inline(Executable(graph, one.layout(graph), one.compile(graph)), 2)
        device = run.devices[0]
        before = {name: tensor.clone() for name, tensor in device.model.tensors().items()}
        with averaged(device):
            found.append({name: tensor.clone() for name, tensor in device.model.tensors().items()})
        assert all(torch.equal(tensor, before[name]) for name, tensor in device.model.tensors().items())
        assert any(not torch.equal(tensor, before[name]) for name, tensor in found[-1].items())
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_too_small_a_budget_is_refused_before_the_training(setting: Setting) -> None:
    """A microbatch of the evaluation that needs more than the budget is an error with the bytes that are missing."""
    plan = setting.plan("data", Swapping("next_use", device_bytes=setting.budget_bytes))
    _, trains = judged(setting, plan, 7)
    small = replace(trains.layout.swap, device_bytes=0.6 * setting.budget_bytes)
    layout = replace(trains.layout, swap=small)
    with pytest.raises(RefusedError, match="too few"):
        evaluation_executable(replace(trains, layout=layout), "harmony", 1)
