"""Training beyond device memory.

Weights, gradients and Adam's state exceed the memory of all devices by more than a factor of four.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from time import sleep

import pytest
import torch
import torch.distributed as dist

from hocket import models
from hocket.cost.model import CostModel
from hocket.errors import MemoryExceeded
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.swapping.candidates import on_hosts
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import COMPUTE, SWAP_LANES, SWAPS, Kind, ValueKind
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import Program
from hocket.program.trace.chrome import read_trace
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.progress.observer import Unobserved
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from hocket.runtime.swapping.memory_manager import MemoryManager
from hocket.training.train import train
from tests.runtime.helpers.device_tracker import DeviceTracker
from tests.runtime.helpers.plans import CLUSTER, adam

TIMES = 4.5  # so many times all devices' memory
WORKERS = 2
LINK = 20e6  # bytes a second to the host and back, for all workers together: far fewer than copies here go at
BATCH_BYTES = 2 * 4 * 8 * 8  # of words and targets, which the data's stream keeps on the host until the next batch
SUM_BYTES = 4 * (256 * 64 + 256 + 64)  # the inline engine adds gradients of two devices up in a third place


def job(tied: bool = False) -> Job:
    """A GPT of single precision with dropout, of some 50 layers."""
    torch.set_num_threads(1)
    options = {"n_layer": 5, "d_model": 64, "n_head": 2, "seq": 8, "dropout": 0.1, "tied": tied}
    return models.job("gpt", batch_size=4, optimizer=adam, samples=32, **options)


@dataclass(frozen=True)
class Setting:
    """Data of all tests; `budget_bytes` is the budget of one device."""

    graph: Captured
    profile: ModelProfile
    budget_bytes: float
    _free: dict[tuple[str, int], Result] = field(default_factory=dict)

    def unlimited(self, plan: Plan, steps: int) -> Result:
        """Train the same plan without limits, once for all tests."""
        key = f"{plan.options['mode']} of {len({d for stage in plan.stages for d in stage.devices})}", steps
        if key not in self._free:
            free = replace(plan, swap=None)
            self._free[key] = run_inline(
                Executable(self.graph, free.layout(self.graph), free.compile(self.graph)), steps
            )
        return self._free[key]

    def plan(
        self,
        mode: str,
        swap: Swapping,
        workers: int = WORKERS,
        pairs: bool = False,
        recompute: bool = True,
        **options: bool,
    ) -> Plan:
        """Return a plan of packs with at most the largest layer's weights.

        Packs are on both devices or on them in turn. Forward tasks may be in pairs.
        """
        packs: list[list[str]] = [[]]
        size, most = 0.0, max(layer.weights_bytes for layer in self.profile.layers)
        for layer in self.profile.layers:
            if packs[-1] and size + layer.weights_bytes > most:
                packs.append([])
                size = 0.0
            packs[-1].append(layer.name)
            size += layer.weights_bytes
        devices = [tuple(range(workers)) if mode == "data" else (k % workers,) for k in range(len(packs))]
        stages = tuple(PlanStage(tuple(own), where, recompute) for own, where in zip(packs, devices, strict=True))
        forward = {"forward": [2] * (len(packs) // 2) + [1] * (len(packs) % 2)} if pairs else {}
        plan = Plan("harmony", "gpt", 4, 1, stages, CLUSTER, {"mode": mode, **options, **forward}, swap=swap)
        return LoadedPlan(plan, self.profile).completed


@pytest.fixture(scope="module")
def setting() -> Setting:
    """The job, measured, and a budget that is far too small."""
    return made(False)


def made(tied: bool, times: float = TIMES) -> Setting:
    """Return a measured job and a budget that is far too small.

    The budget of all devices together is 1/`times` of the bytes of weights, gradients and Adam's state.
    """
    profile = measure(job(tied), (1,), MeasureRequest(budget_s=0.3))
    state_bytes = 4 * sum(p.nbytes for p in job(tied).model.parameters())
    return Setting(capture(job(tied), 1), profile, state_bytes / times / WORKERS)


def foreseen(setting: Setting, plan: Plan, program: Program) -> dict[tuple[int, Kind], Counter[ValueKind]]:
    """Compute the simulated bytes of a period's swaps.

    The result is by device, direction and kind of value.
    """
    costs = CostModel(setting.profile, CLUSTER, plan.cuts(setting.profile), plan.batches.sizes, swaps=True)
    found = {(device, kind): Counter[ValueKind]() for device in program.devices for kind in SWAPS}
    for _, one in program.instructions():
        if one.kind in SWAPS:
            found[one.device, one.kind][one.reads[0].what] += int(costs.carried_bytes(one, 1))
    return found


def moved(devices: dict[int, Device]) -> dict[tuple[int, Kind], Counter[ValueKind]]:
    """Bytes that the memory managers have counted so far."""
    found = {}
    for number, device in devices.items():
        assert device.memory is not None
        found[number, Kind.SWAP_IN] = Counter(device.memory.in_bytes)
        found[number, Kind.SWAP_OUT] = Counter(device.memory.out_bytes)
    return found


@pytest.mark.parametrize(
    ("mode", "policy", "prefetch", "peer"),
    [
        ("pipeline", "next_use", 0, True),
        ("data", "lru", 0, False),
        ("data", "next_use", 1, True),
    ],
)
@pytest.mark.slow
def test_what_fits_nowhere_trains_as_if_it_did(setting, mode, policy, prefetch, peer):
    """A model that exceeds all memory trains as if it fitted.

    Losses and weights are bit-identical to a run without limits. Devices never hold more than the budget, as measured
    from outside, in sum and each. Hosts have exactly the proven memory. From the second iteration on, with optimizer
    state, swapped bytes equal the simulation, kind by kind.
    """
    trains_as_if_it_fitted(setting, mode, policy, prefetch, peer)


@pytest.mark.slow
def test_packs_of_one_device_may_share_weights():
    """Packs of one device may share weights.

    Here the first and the last pack share the largest weight, and their steps add their gradients.
    """
    trains_as_if_it_fitted(made(True, 4.0), "data", "next_use", 0)


@pytest.mark.slow
def test_stashes_that_are_kept_are_swapped(setting):
    """Stashes are swapped if nothing is recomputed.

    The model trains as if it fitted.
    """
    trains_as_if_it_fitted(setting, "pipeline", "next_use", 1, recompute=False)


def trains_as_if_it_fitted(
    setting: Setting, mode: str, policy: str, prefetch: int, peer: bool = True, recompute: bool = True
) -> None:
    """See above."""
    each = tuple(setting.budget_bytes * (1 if peer else 1 + 0.3 * k) for k in range(CLUSTER.devices))
    budgets, budget = each[:WORKERS], each[0] if peer else each
    swap = Swapping(policy, device_bytes=budget, prefetch=prefetch)
    plan = setting.plan(mode, swap, recompute=recompute, peer=peer)
    proven = max(on_hosts(PlannedRun.of(plan, setting.profile)).values())
    assert plan.swap is not None
    plan = replace(plan, swap=replace(plan.swap, host_bytes=proven))
    program = plan.compile(setting.graph)
    expected = setting.unlimited(plan, 2)
    with DeviceTracker() as tracker:
        first = run_inline(Executable(setting.graph, plan.layout(setting.graph), program), 1)
        before = moved(first.devices)
        second = run_inline(
            Executable(setting.graph, plan.layout(setting.graph), program), 1, first.position, first.devices
        )
    assert [loss[1:] for loss in expected.losses] == [loss[1:] for loss in (*first.losses, *second.losses)]
    for device, weights in expected.weights.items():
        assert all(torch.equal(second.weights[device][name], tensor) for name, tensor in weights.items())
    besides = BATCH_BYTES * WORKERS + SUM_BYTES * (mode == "data")
    assert 0.6 * sum(budgets) < tracker.peak_bytes <= sum(budgets) + besides
    after = moved(second.devices)
    assert {key: after[key] - before[key] for key in after} == foreseen(setting, plan, program)
    for number, device in second.devices.items():
        assert device.swapping is not None
        assert device.swapping.memory.storages.peak_bytes <= budgets[number]
        assert 0.5 * proven < device.swapping.memory.host.held_bytes <= proven
        took = device.swapping.took()
        assert took.count == 2 * sum(one.kind in SWAPS and one.device == number for _, one in program.instructions())
        assert took.size_bytes == sum(sum(after[number, kind].values()) for kind in SWAPS)
        assert took.seconds > 0


class Losses(Unobserved):
    """Keeps them."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float, int]] = []

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """One more."""
        self.found.append((microbatch, value, samples))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "meeting"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_worker_swaps_beside_computation(setting, alone):
    """A worker swaps during computation.

    Swaps run in their own threads and may take any time. Losses and weights are bit-identical, bytes equal the
    simulation, and the budget always holds. Computation and swaps overlap.
    """
    budget_bytes, drawn = 1.2 * setting.budget_bytes, Random(0)
    plan = setting.plan("data", Swapping("next_use", device_bytes=budget_bytes, prefetch=2), workers=1)
    program, expected, heard = plan.compile(setting.graph), setting.unlimited(plan, 2), Losses()

    def pace(_: int) -> None:
        sleep(drawn.random() * 2e-3)

    memory = MemoryManager(0, "cpu", budget_bytes, pace_out=pace, pace_in=pace)
    worker = Worker(
        Executable(setting.graph, plan.layout(setting.graph), program),
        observer=heard,
        memory=memory,
        clock=time.perf_counter,
    )
    worker.run(1)
    before, first = moved({0: worker.device}), sorted(heard.found)
    heard.found = []
    worker.run(1, worker.position)
    assert [loss[1:] for loss in expected.losses] == [loss[1:] for loss in (*first, *sorted(heard.found))]
    assert all(torch.equal(worker.device.model.tensors()[name], own) for name, own in expected.weights[0].items())
    after = moved({0: worker.device})
    assert {key: after[key] - before[key] for key in after} == foreseen(setting, plan, program)
    assert 0.5 * budget_bytes < worker.peak_memory_bytes <= budget_bytes + BATCH_BYTES
    computed = [(r.start_s, r.end_s) for r in worker.records if r.instruction.kind in (Kind.FORWARD, Kind.BACKWARD)]
    swapped = [(r.start_s, r.end_s) for r in worker.records if r.instruction.lane in SWAP_LANES.values()]
    assert any(max(a, c) < min(b, d) for a, b in computed for c, d in swapped)


def test_without_swaps_the_budget_is_an_error_that_names_the_tensor(setting):
    """Without swaps, the same job exceeds the budget.

    The error names the tensor.
    """
    plan = replace(setting.plan("data", Swapping("next_use", device_bytes=setting.budget_bytes)), swap=None)
    memory = MemoryManager(0, "cpu", setting.budget_bytes)
    device = Device(
        Executable(setting.graph, plan.layout(setting.graph), plan.compile(setting.graph)), 0, memory=memory
    )
    with pytest.raises(
        MemoryExceeded, match=r"device 0: w\.\d+v0: found .* KiB, in addition to .* already there .*at most"
    ):
        device.start()


JOB = """
import os
from dataclasses import replace
from pathlib import Path
from hocket import Evaluation
from tests.runtime.helpers.device_tracker import DeviceTracker
from tests.runtime.helpers.plans import adam
from tests.runtime.swapping.test_harmony import job as made


class Noting(DeviceTracker):
    def noted(self):
        Path(__file__).with_name(f"peak-{os.getpid()}").write_text(str(self.peak_bytes))


tracker, begun = Noting(), []


def optimizer(parameters):  # asked for as soon as a worker has made its first stage
    parameters = list(parameters)
    own = [p for p in parameters if 0 not in p.stride()]  # the others are stand-ins without memory
    # Groups are checked on all parameters of the whole model before that.
    if 0 < len(own) < len(parameters) and not begun:
        begun.append(tracker.__enter__())
        tracker.register(own)
    return adam(parameters)


job = replace(made(), optimizer=optimizer, evaluate=Evaluation([made().data[i] for i in range(7)], every=1))
"""


def peaks(folder: Path) -> Iterator[int]:
    """The most that each process has seen."""
    for path in folder.glob("peak-*"):
        yield int(path.read_text())


@pytest.mark.workers
@pytest.mark.parametrize(
    ("mode", "prefetch", "kind"),
    [
        pytest.param("pipeline", 0, {}, marks=pytest.mark.slow),
        ("data", 1, {}),
        pytest.param("data", 1, {"pairs": True}, marks=pytest.mark.slow),
        ("pipeline", 1, {"peer": False}),
    ],
)
@pytest.mark.thinned(most=1)
def test_two_workers_train_what_fits_nowhere(setting, mode, prefetch, kind, tmp_path):
    """Two workers train a model that exceeds all memory.

    This is `hocket train` in real processes. The mean losses of steps are bit-identical to the run without limits,
    also if forward tasks have two stages. (The sum of two replicas' gradients does not depend on its order.) Each
    process is within the budget, as measured from outside and by the engine's own tracker. Swaps take at least the
    time of the shared link. An evaluation after each step is within the budget too, and changes nothing.
    """
    plan = setting.plan(mode, Swapping("next_use", device_bytes=setting.budget_bytes, prefetch=prefetch), **kind)
    expected = setting.unlimited(plan, 2)
    (tmp_path / "job.py").write_text(JOB)
    plan.save(tmp_path / "plan.yaml")
    trace_path = str(tmp_path / "run.json")
    summary = train(tmp_path / "job.py", tmp_path / "plan.yaml", steps=2, trace=trace_path, host_link_bytes_per_s=LINK)
    steps = [sum(loss for _, loss, _ in expected.losses[k : k + 4]) / 4 for k in range(0, 8, 4)]
    assert list(summary.losses) == steps
    assert [one.step for one in summary.evaluations] == [1, 2]
    assert summary.evaluations[1].loss < summary.evaluations[0].loss
    assert 0.5 * setting.budget_bytes < max(peaks(tmp_path)) <= setting.budget_bytes + BATCH_BYTES
    assert max(summary.peak_memory_bytes.values()) <= setting.budget_bytes + BATCH_BYTES
    for swaps in summary.swaps.values():
        assert swaps.count > 0
        assert swaps.mean_s >= 0.95 * swaps.size_bytes / swaps.count / LINK
    trace = read_trace(tmp_path / "run.json")
    beside = {event.lane for event in trace.events if event.kind in SWAPS}
    assert beside == ({COMPUTE, *SWAP_LANES.values()} if prefetch else {COMPUTE})
