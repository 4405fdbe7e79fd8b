"""Lanes as streams of a GPU, imitated on a CPU.

Every use of memory is ordered after its producer, and no memory is freed while a stream uses it
(tests/runtime/helpers/fake_cuda.py). The test fails if any part of this ordering is left out.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket import models
from hocket.profiling.capture.capture import capture
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.program.instruction import COMPUTE, SWAPS, Instruction, Value, ValueKind
from hocket.program.passes.swapping.settings import Swapping
from hocket.runtime.engine import distributed, stream_handover
from hocket.runtime.engine.shared_values import SharedValues
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.stage import microbatches
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from hocket.runtime.swapping import cuda_streams, device_storage, memory_manager
from hocket.runtime.swapping.cuda_streams import Streams
from hocket.runtime.swapping.device_storage import Storages
from hocket.runtime.swapping.extents import extents_of
from hocket.runtime.swapping.swapper import Store
from hocket.runtime.update import buckets
from hocket.runtime.update.buckets import Bucket
from tests.runtime.helpers.fake_cuda import FakeCuda, Work
from tests.runtime.helpers.plans import Case, adam, captured
from tests.runtime.swapping.test_harmony import Setting

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def setting() -> Setting:
    """A job that does not fit, and its profile."""
    job = models.small_job("gpt", batch_size=4, optimizer=adam, samples=32, dropout=0.1, tied=False)
    profile = measure(job, (1,), MeasureRequest(budget_s=0.05))
    state_bytes = 4 * sum(p.nbytes for p in job.model.parameters())
    return Setting(capture(job, 1), profile, state_bytes / 2)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "meeting"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, alone: None) -> FakeCuda:
    """Lanes have streams, and what instructions use and count on is told."""
    fake = FakeCuda(monkeypatch)
    for module in (cuda_streams, stream_handover, microbatches, buckets):
        monkeypatch.setattr(module, "has_streams", lambda _: True)
    made_by: dict[Value, Work] = {}
    local, execute = threading.local(), Device.execute

    def executed(self: Device, instruction: Instruction, store: Store, publish: Any = None) -> None:
        knows = [made_by[value] for value in instruction.reads if value in made_by]
        local.swap, local.work = (instruction.name, knows), None
        if instruction.kind not in SWAPS:
            things = [store[v] for v in instruction.reads if v.what not in (ValueKind.MARK, ValueKind.ENDED)]
            local.work = fake.run(instruction.name, _storages(things), knows)
        execute(self, instruction, store, publish)
        if instruction.kind not in SWAPS:
            written = [
                store[v] for v in instruction.writes if v in store and v.what not in (ValueKind.MARK, ValueKind.ENDED)
            ]
            local.work = fake.run(instruction.name, _storages(written), ())
        made_by.update(dict.fromkeys(instruction.writes, local.work))

    def copied(copy: Callable[..., None]) -> Callable[..., None]:
        def run(extents: Any, *rest: Any) -> None:
            name, knows = getattr(local, "swap", ("between segments", []))
            local.work = fake.run(name, [extent.storage for extent in extents], knows)
            copy(extents, *rest)

        return run

    monkeypatch.setattr(Device, "execute", executed)
    for name in ("copy_out", "copy_in"):
        monkeypatch.setattr(memory_manager, name, copied(getattr(memory_manager, name)))
    return fake


def _storages(things: list[Any]) -> list[torch.UntypedStorage]:
    return [extent.storage for thing in things for extent in extents_of(thing, CPU) if extent.alive]


def swaps(setting: Setting, fake: FakeCuda, prefetch: int = 2) -> int:
    """Run two iterations with swaps in their own lanes.

    Return the number of swaps in the compute lane.
    """
    plan = setting.plan("data", Swapping("next_use", device_bytes=setting.budget_bytes, prefetch=prefetch), workers=1)
    program = plan.compile(setting.graph)
    worker = distributed.Worker(Executable(setting.graph, plan.layout(setting.graph), program))
    fake.waits.clear()
    worker.run(2)
    return 2 * sum(i.kind in SWAPS for i in program.period[0, COMPUTE])


def two_waves(setting: Setting, fake: FakeCuda) -> int:
    """Three iterations of two waves, without a swap."""
    graph = captured("gpt")
    plan = Case("tick_tock", (1,)).plan(graph)
    worker = distributed.Worker(Executable(graph, plan.layout(graph), plan.compile(graph)))
    fake.waits.clear()
    worker.run(3)
    return 0


def loads_ahead(setting: Setting, fake: FakeCuda) -> int:
    """Three iterations in which loads have a lane, across the ends of iterations, without a swap."""
    graph = captured("gpt")
    plan = Case("flush", (1,), prefetch=5).plan(graph)
    worker = distributed.Worker(Executable(graph, plan.layout(graph), plan.compile(graph)))
    fake.waits.clear()
    worker.run(3)
    return 0


@pytest.mark.parametrize("run", [swaps, two_waves, loads_ahead])
@pytest.mark.thinned(most=2)
def test_lanes_are_ordered_and_compute_does_not_wait_for_its_kernels(setting, cuda, run):
    """Lanes are ordered, and compute does not wait for its kernels.

    Memory that a lane has emptied is free at once, independently of compute's work. Compute waits on the host before
    and after a segment, and in its own swaps, which are the first of a period.
    """
    own = run(setting, cuda)
    assert cuda.wrong == []
    assert cuda.held_back == 0
    waits = sum(name == threading.current_thread().name for name in cuda.waits)
    assert waits == 2 + 2 * own  # for a swap before its time is taken, and for its copies


def _nothing(*_: Any, **__: Any) -> None:
    """Left out."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "place", "name", "without"),
    [
        (swaps, Streams, "settle", _nothing),
        (swaps, Streams, "used_by_compute", _nothing),
        (swaps, Streams, "used_here", _nothing),
        (swaps, SharedValues, "put", lambda self, values, event=None, put=SharedValues.put: put(self, values)),
        (two_waves, StreamHandover, "given", lambda self, thing: thing),
        (two_waves, stream_handover, "_tensors", lambda _: ()),
    ],
)
@pytest.mark.thinned(most=3)
def test_whatever_orders_them_is_needed(setting, cuda, monkeypatch, run, place, name, without):
    """Each part of the ordering is needed.

    Without it, the fake GPU finds an unordered use.
    """
    monkeypatch.setattr(place, name, without)
    run(setting, cuda)
    assert cuda.wrong


def test_state_that_a_lane_writes_out_waits_for_nobody(setting, cuda, monkeypatch):
    """State that a lane swaps out waits for no other stream.

    If the allocator learned at its arrival that compute uses it, the memory would be free only after compute's later
    work.
    """
    monkeypatch.setattr(device_storage, "STATE", ())
    swaps(setting, cuda)
    assert cuda.wrong == []
    assert cuda.held_back > 0


@pytest.mark.parametrize("prefetch", [2, 4])
def test_what_each_stream_keeps_for_itself_is_about_the_budget(setting, cuda, monkeypatch, prefetch):
    """The memory reserved for all streams is about the budget.

    An allocator keeps memory for the stream that allocated it. If the whole budget belonged to compute and then to the
    lane, it would keep twice the budget. The sum of the highest reservations is only a little above the budget. It
    depends on how far the lane runs ahead, which the machine decides; so the median of three runs counts.
    (Fragmentation is not imitated.)
    """
    live, most, makers = Counter[int](), Counter[int](), dict[int, int]()
    changed = Storages._changed

    def noted(self: Storages, block: Any, there_bytes: int) -> None:
        if there_bytes > block.there_bytes:
            makers[id(block)] = cuda.current.number
        if id(block) in makers:  # not a block of an earlier run, which may be destroyed late
            maker = makers[id(block)]
            live[maker] += there_bytes - block.there_bytes
            most[maker] = max(most[maker], live[maker])
        changed(self, block, there_bytes)

    monkeypatch.setattr(Storages, "_changed", noted)
    sums = []
    for _ in range(3):
        for counts in (live, most, makers):
            counts.clear()
        swaps(setting, cuda, prefetch)
        assert len(most) == 2
        sums.append(sum(most.values()))
    assert 0.75 * setting.budget_bytes < sorted(sums)[1] < 1.15 * setting.budget_bytes


def test_a_part_of_a_scattered_sum_is_used_by_those_who_take_it(cuda):
    """A part of a reduce-scatter is used by the lanes that take it.

    The scattering lane created it, and it is all that is left of the bucket.
    """
    bucket, handover = Bucket(0, 1), StreamHandover(CPU)
    with handover.lane("scatter"):
        bucket.parts = (torch.zeros(4),)
        cuda.run("scatter", [bucket.parts[0].untyped_storage()], ())
        given = handover.given(bucket)
    handover.taken(given)
    cuda.run("step", [bucket.parts[0].untyped_storage()], ())
    del bucket, given
    assert cuda.wrong == []
