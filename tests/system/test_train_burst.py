"""A burst-parallel run by real workers beside its plan: what each computed is what was planned, what it took is told beside it."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.planning.burst.amplification import amplification_of, work_done, work_of
from hocket.planning.plan import Plan
from hocket.profiling.analytic.synthetic import chain
from hocket.program.trace.chrome import read_trace
from hocket.training.train import train
from tests.system.tiny import LAYERS, Recorder, plan, reference, write_job

STEPS = 4


def test_devices_run_the_layers_and_samples_of_the_plan(tmp_path: Path) -> None:
    """Eight samples are 3, 3 and 2 on three devices, 8 on one, 4 and 4 on two: device by device and layer by layer as planned, in every
    iteration. Device-seconds are counted alike in the plan and in the run, and both are told."""
    job = write_job(tmp_path)
    profile = chain(len(LAYERS), device_type="cpu-core")
    named = [replace(layer, name=name) for layer, name in zip(profile.layers, LAYERS, strict=True)]
    profile = replace(profile, layers=tuple(named))
    profile.save(tmp_path / "profile.json")
    stages = ((2, (0, 1, 2)), (2, (0,)), (3, (0, 2)))
    chosen = replace(plan("burst_parallel", *stages), profile="profile.json", profile_digest=profile.digest)
    chosen.save(tmp_path / "plan.yaml")
    listener, file = Recorder(), tmp_path / "trace.json"
    train(job, tmp_path / "plan.yaml", steps=STEPS, trace=str(file), listener=listener)
    assert listener.losses == pytest.approx(reference(job, chosen, STEPS), rel=1e-12)

    found = read_trace(file)
    samples = {0: dict(zip((0, 1, 2), (3, 3, 2), strict=True)), 1: {0: 8}, 2: {0: 4, 2: 4}}
    stage_of = [0, 0, 1, 1, 2, 2, 2]
    expected = {
        (kind, device, name): count
        for kind in ("forward", "backward")
        for name, stage in zip(LAYERS, stage_of, strict=True)
        for device, count in samples[stage].items()
    }
    assert dict(work_of(chosen)) == expected
    assert {update: dict(work) for update, work in work_done(chosen, found).items()} == dict.fromkeys(
        range(STEPS), expected
    )
    told = amplification_of(chosen, profile, found)
    assert told.planned_s == pytest.approx(amplification_of(chosen, profile).planned_s)
    assert 0 < (told.measured_s or 0) <= 3 * found.end
    (note,) = [text for text in listener.notes if text.startswith("amplification: ")]
    assert note == f"amplification: {told.text}"
    assert f"{told.planned:.2f} planned, " in note
    assert "in 4 iterations each layer ran on the plan's devices, with the plan's samples" in note

    other = Plan.read(tmp_path / "plan.yaml")
    other = replace(other, stages=(*other.stages[:2], replace(other.stages[2], devices=(0, 1))))
    assert "not as planned: in iteration 0 device 1 ran the backward of 4 on 0 samples instead of 4" in (
        amplification_of(other, profile, found).text
    )
