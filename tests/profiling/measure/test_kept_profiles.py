"""Whole profiles, measured with a clock of its own, equal to those that are kept beside this file.

Such a clock makes a measurement repeatable: its seconds are as certain as the bytes. After a change that is meant, write
the profiles again with --update-golden, and read the difference.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket import models
from hocket.profiling.job.job import Job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.runtime.tensor_parallel.measure_rank import measure_member
from tests.kept import check

SIZES = (1, 2, 4)
# It says how long this machine took.
TOOK = "measuring took"


def ticks() -> Callable[[], float]:
    """A clock that shows one to two milliseconds more each time that it is read."""
    draw, now_s = random.Random(7), 0.0

    def read() -> float:
        nonlocal now_s
        now_s += draw.uniform(0.001, 0.002)
        return now_s

    return read


def whole(job: Job) -> ModelProfile:
    return measure(job, SIZES, MeasureRequest(budget_s=1.0, clock=ticks()))


def rank(sequence_parallel: bool) -> Callable[[Job], ModelProfile]:
    def measured(job: Job) -> ModelProfile:
        request = MeasureRequest(budget_s=1.0, clock=ticks())
        return measure_member(job, 2, SIZES, request, sequence_parallel)

    return measured


MEASURED = {
    "gpt": ("gpt", whole),
    "gpt-tensor-2": ("gpt", rank(sequence_parallel=False)),
    "gpt-sequence-2": ("gpt", rank(sequence_parallel=True)),
    "lstm": ("lstm", whole),
    "vgg": ("vgg", whole),
}


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.thinned(most=3)
def test_profiles(name: str, update_golden: bool) -> None:
    """Bytes, seconds, deviations, operations and tensors of every layer."""
    model, profiled = MEASURED[name]
    found = json.loads(profiled(models.small_job(model)).to_json())
    del found["source"]  # it names the version of torch
    found["notes"] = [note for note in found["notes"] if not note.startswith(TOOK)]
    lines = []
    for key, value in found.items():
        lines += [f"{key}: {json.dumps(one)}" for one in (value if isinstance(value, list) else [value])]
    check(Path(__file__).parent / "kept" / f"{name}.txt", "\n".join(lines) + "\n", update_golden)
