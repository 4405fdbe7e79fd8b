"""The walk of a job on a card: profile, plan, simulate, train, resume."""

from pathlib import Path

import pytest
import torch

import hocket
from hocket import models
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.device_type import DeviceType
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.runtime.stage.device_type import known_type
from tests.system.tiny import write_job

pytestmark = pytest.mark.gpu


def test_a_profile_of_a_card(card: torch.device) -> None:
    """Times come from events, and the profile has the same form as a CPU's."""
    profile = measure(models.small_job("gpt", dropout=0.1), (2,), MeasureRequest(device=card, budget_s=0.5))
    assert profile.device_type == (torch.cuda.get_device_name() if card.type == "cuda" else "cpu-core")
    assert all(t > 0 for t in (*profile.whole_forward_s, *profile.whole_backward_s))


@pytest.mark.workers
def test_a_job_is_profiled_planned_trained_and_resumed(card: torch.device, tmp_path: Path) -> None:
    """One worker on the device: the predicted plan trains, and a resumed run has the losses of one that was not interrupted."""
    job = write_job(tmp_path)
    profile = hocket.profile(job, (2, 4), device=card.type, budget_s=1.0)
    kind = DeviceType(known_type(card), 4e9, {"float32": 1e12, "float64": 1e12}, 1e11)
    cluster = Cluster("here", (Level("here", 1, 1e9),), kind.name, types=(kind,))
    plan = hocket.plan(profile, cluster, batch_size=8).best.plan
    _, summary = hocket.simulate(plan, profile)
    assert summary.iteration_s > 0
    whole = hocket.train(job, plan, steps=4, device=card.type)
    folder = str(tmp_path / "checkpoints")
    hocket.train(job, plan, steps=2, device=card.type, checkpoint=folder)
    rest = hocket.train(job, plan, steps=4, device=card.type, checkpoint=folder, resume=True)
    assert list(rest.losses) == pytest.approx(list(whole.losses)[2:], rel=1e-12)
