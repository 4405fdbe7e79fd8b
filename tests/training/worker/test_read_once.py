"""Runs of workers in which only the first stage reads samples."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.planning.plan import Plan
from hocket.training.train import train
from tests.system.tiny import plan, reference, write_job

pytestmark = pytest.mark.workers

COUNTED = 'with open(f"{__file__}.reads-{RANK}", "a") as file: file.write("x")'
PLANS = {
    "flush": plan("flush"),
    "three stages": plan("gpipe", (2, (0,)), (2, (1,)), (3, (2,))),
    "replicas": plan("flush", (3, (0, 1)), (4, (2,))),
    "prefetch": replace(plan("flush"), prefetch=2),
    "loaders": replace(plan("flush"), prefetch=2, loaders=1),
}


def reads(job: Path, chosen: Plan, steps: int) -> tuple[list[float], list[int]]:
    """Losses of a run, and the samples that each worker has read."""
    ranks = range(len(chosen.worker_devices))
    for rank in ranks:
        Path(f"{job}.reads-{rank}").write_text("")
    losses = train(job, chosen, steps=steps).losses
    return list(losses), [len(Path(f"{job}.reads-{rank}").read_text()) for rank in ranks]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_only_workers_of_the_first_stage_read(name: str, tmp_path: Path) -> None:
    """Before the first step, all workers read some samples; ten steps more are read by the first stage alone."""
    job, chosen = write_job(tmp_path, trouble=COUNTED), replace(PLANS[name], read_once=True)
    (losses, few), (more_losses, more) = (reads(job, chosen, steps) for steps in (2, 12))
    assert more_losses == pytest.approx(reference(job, PLANS[name], 12), rel=1e-12)
    assert losses == more_losses[:2]
    first = len(chosen.stages[0].devices)
    assert more[first:] == few[first:]
    if not chosen.loaders:  # which read further than they have to
        assert sum(more) - sum(few) == 80


def test_an_evaluation_reads_once_as_well(tmp_path: Path) -> None:
    """Its items are sent like those of the training."""
    job = write_job(tmp_path, trouble=COUNTED)
    text = job.read_text().replace("from torch import nn\n", "from torch import nn\nfrom hocket import Evaluation\n")
    job.write_text(text.replace(', name="tiny"', ', name="tiny", evaluate=Evaluation(Data(), every=1)'))
    seen = []
    for read_once in (False, True):
        chosen = replace(plan("flush"), read_once=read_once)
        _, few = reads(job, chosen, 1)
        losses, more = reads(job, chosen, 3)
        seen.append((losses, more[0] - few[0], more[1] - few[1]))
    assert seen[0] == (seen[1][0], 2 * (8 + 64), 2 * (8 + 64))
    assert seen[1][1:] == (2 * (8 + 64), 0)
