"""Training with compiled stages in real workers: the losses of one process, memory that is seen, and what making code took."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.training.train import train
from tests.system.tiny import Recorder, plan, reference, write_job

pytestmark = pytest.mark.workers


@pytest.mark.slow
def test_one_stage_of_two_is_compiled(tmp_path: Path) -> None:
    """The other runs as it is written; operations are looked at meanwhile, as in every first period."""
    job, plain = write_job(tmp_path), plan("flush")
    chosen = replace(plain, stages=(replace(plain.stages[0], compile="aot_eager"), plain.stages[1]))
    listener = Recorder()
    summary = train(job, chosen, steps=4, listener=listener)
    assert listener.losses == pytest.approx(reference(job, plain, 4), rel=1e-8)
    assert any(note.startswith("compiling stages took up to") for note in listener.notes)
    whole = train(job, plain, steps=4)
    assert summary.peak_memory_bytes[0] == pytest.approx(whole.peak_memory_bytes[0], rel=0.25)
