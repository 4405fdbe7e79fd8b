"""Losses, weights, memory and versions of short runs of many kinds of plans, equal to what is kept beside this file.

Memory that is given back too late, or a version too many, changes no loss: only these figures. After a change that is meant,
write the files again with --update-golden, and read the difference.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from tests.kept import check
from tests.runtime.helpers.device_tracker import DeviceTracker
from tests.runtime.helpers.plans import Case, captured, program_of

CASES = {
    "pipelines": [
        ("gpt one block", Case("gpipe", (1, 1), recompute=True)),
        ("gpt one block", Case("flush", (2, 1), batch_size=7)),
        ("gpt one block", Case("interleaved", (1, 1), rounds=2)),
        ("gpt weighted clipped", Case("data_parallel", (2,))),
        ("gpt one block", Case("tick_tock", (2,))),
        ("lstm plain", Case("burst_parallel", (2, 1), batch_size=8, microbatch_size=4)),
    ],
    "stale": [
        ("gpt untied", Case("pipedream", (1, 1, 1))),
        ("gpt untied", Case("pipedream", (2, 2), options={"vertical_sync": True}, shard="optimizer")),
        ("gpt untied", Case("pipedream", (1, 1), options={"naive": True})),
        ("gpt one block", Case("two_bw", (2, 1), batch_size=7, recompute=True)),
    ],
    "sharded": [
        ("gpt one block", Case("data_parallel", (3,), batch_size=7, shard="optimizer")),
        ("gpt clipped", Case("flush", (2, 2), shard="optimizer")),
        ("gpt untied", Case("fully_sharded", (2,), rounds=2, shard="full")),
        ("gpt untied bfloat16", Case("waves", (2, 2), rounds=2, shard="full")),
        ("gpt bfloat16", Case("flush", (2, 1), shard="optimizer")),
    ],
    "swapped": [
        ("gpt one block", Case("model_parallel", (1, 1, 1), out=True)),
        ("gpt one block", Case("flush", (1, 1), recompute=True, out=True)),
        ("gpt one block", Case("data_parallel", (2,), out=True)),
    ],
}
UPDATES = 3


def total(tensors: dict[str, Tensor]) -> float:
    """Sum of the absolute values of tensors."""
    return sum(float(one.double().abs().sum()) for one in tensors.values())


def described(device: Device, place: str) -> list[str]:
    """Versions, buckets and bytes of a device after a run."""
    lines = []
    for stage, runner in device.stages.items():
        weights = runner.weights
        storages = [
            {one.untyped_storage()._cdata: one.untyped_storage() for one in slot.data} for slot in weights.slots
        ]
        slots = [sum(storage.nbytes() for storage in own.values()) for own in storages]
        apart = {f"{k}": one for k, one in enumerate(weights.apart())}
        told = f"{sum(one.nbytes for one in apart.values())} B apart"
        if device.memory is None:  # otherwise it is on the host
            told += f", sum {total(apart):.8g}"
        lines.append(f"  {place}, stage {stage}: slots {slots}, {told}")
    if device.memory is not None:
        memory = device.memory
        moved = [sorted((kind.value, size) for kind, size in of.items()) for of in (memory.out_bytes, memory.in_bytes)]
        there = memory.storages.there_bytes, memory.storages.peak_bytes, memory.host.used_bytes
        lines.append(f"  {place}: out {moved[0]}, in {moved[1]}, on device, at most, on host {there}")
    return lines


def ran(model: str, case: Case) -> list[str]:
    """A run of two segments, as lines."""
    torch.set_num_threads(1)
    graph = captured(model, "adam", torch.float32 if "bfloat16" in model else torch.float64)
    program = program_of(case, graph)
    executable = Executable(graph, case.plan(graph).layout(graph), program)
    repeats = -(-UPDATES * max(program.rule.batch) // program.stride)
    with DeviceTracker() as tracker:
        first = run_inline(executable, 1)
        found = run_inline(executable, repeats, first.position, first.devices)
    digits = 2 if "bfloat16" in model else 8
    losses = [f"{number} {loss:.{digits}g} {weight:g}" for number, loss, weight in found.losses]
    lines = [f"{model}, {case}: at {found.position}, peak {tracker.peak_bytes}", f"  {'; '.join(losses)}"]
    for number, device in found.devices.items():
        lines.append(f"  device {number}: weights {total(found.weights[number]):.{digits}g}")
        if digits == 8:
            lines += described(device, f"device {number}")
    return lines


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thinned(most=1)
def test_runs(name: str, update_golden: bool) -> None:
    """Runs of some kinds of plans, with sharded, gathered, swapped and recomputed values."""
    lines = [line for model, case in CASES[name] for line in ran(model, case)]
    check(Path(__file__).with_name(f"{name}.txt"), "\n".join(lines) + "\n", update_golden)
