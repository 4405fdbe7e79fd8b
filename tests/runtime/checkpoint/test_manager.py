"""From which checkpoint a run goes on, and what it refuses: without any worker."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from hocket.errors import InputError
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import MANIFEST, Position, names_in, save
from hocket.runtime.checkpoint.entries import not_finite_in
from hocket.runtime.checkpoint.manager import CheckpointManager, SaveOptions
from hocket.runtime.kv_exchange import KVExchange
from tests.system.tiny import plan, write_job


def saved(folder: Path, *steps: int, keep: int = 9, batch_size: int = 8) -> None:
    """Whole checkpoints of these steps."""
    for step in steps:
        state = {"model.a": 1.0, "model.b": torch.ones(3)}
        save(folder, Position(step, batch_size * step, "tiny"), state, KVExchange(None, 0, 1), keep)


def damaged(folder: Path, *steps: int) -> None:
    """The checkpoints of these steps lose their manifests."""
    for step in steps:
        (folder / f"step-{step:08d}" / MANIFEST).write_text("torn")


def found(folder: Path, resume: bool | Literal["auto"]) -> tuple[Any, list[str]]:
    """The step that a run goes on from (None: from nothing), and its notes."""
    folder.mkdir(exist_ok=True)
    notes: list[str] = []
    job = load_job(write_job(folder.parent))
    checkpoints = CheckpointManager(job, folder, KVExchange(None, 0, 1), SaveOptions(resume, 3))
    layout = plan("gpipe", (7, (0,))).layout(capture(job, 1))
    checkpoint = checkpoints._found(layout.plan_digest, lambda event: notes.append(event["text"]))
    return checkpoint and checkpoint.position.step, notes


@pytest.mark.parametrize(
    ("samples", "seed", "length", "told"),
    [
        (8, 0, 0, ""),
        (8, None, 0, ""),
        (8, 3, 0, "with seed 3, and the job has seed {seed}: the order of the samples changes, so of the epoch"),
        (8, 0, 5, "on {old} samples, and the data has {length}: the order of the samples changes, so of the epoch"),
        (8, 3, 5, "with seed 3, and the job has seed {seed}; on {old} samples, and"),
        (0, 3, 0, "with seed 3, and the job has seed {seed}: the order of the samples changes"),
    ],
)
def test_another_order_of_samples_is_told(
    tmp_path: Path, samples: int, seed: int | None, length: int, told: str
) -> None:
    """A resumed run tells of another seed or length of the data, and if an epoch is torn by it.

    A checkpoint of an earlier version has neither, and nothing is told.
    """
    folder, job = tmp_path / "saved", load_job(write_job(tmp_path))
    old, given = job.samples + length, None if seed is None else job.seed + seed
    samples = samples or job.samples
    position = Position(1, samples, "tiny", seed=given, data_samples=None if seed is None else old)
    save(folder, position, {"model.a": 1.0}, KVExchange(None, 0, 1))
    notes = [note.partition(" was trained ")[2] for note in found(folder, True)[1] if " was trained " in note]
    wanted = told.format(seed=job.seed, old=old, length=job.samples)
    assert (not notes) == (not told)
    assert all(note.startswith(wanted) for note in notes)
    if samples == job.samples:
        assert notes == [wanted]


@pytest.mark.parametrize("resume", [True, "auto"])
def test_only_damaged_checkpoints_are_refused_and_kept(tmp_path: Path, resume: bool | Literal["auto"]) -> None:
    """A folder with only damaged checkpoints is refused and unchanged.

    A run neither resumes from them nor starts at step 0. The error names the damage of each checkpoint.
    """
    folder = tmp_path / "saved"
    saved(folder, 1, 2)
    damaged(folder, 1, 2)
    with pytest.raises(InputError) as caught:
        found(folder, resume)
    assert caught.value.place == f"checkpoint in {folder}"
    assert all(f"{name} is damaged: " in caught.value.found for name in ("step-00000001", "step-00000002"))
    assert caught.value.expected == "an undamaged checkpoint to resume from"
    assert names_in(folder) == ["step-00000001", "step-00000002"]


def test_damaged_checkpoints_are_set_aside_and_outlive_the_ones_that_are_kept(tmp_path: Path) -> None:
    """Damaged checkpoints are set aside and never deleted.

    Newer damaged checkpoints do not count among the kept ones. They are not replaced.
    """
    folder = tmp_path / "saved"
    saved(folder, 1, 5, 6, 7)
    damaged(folder, 5, 6, 7)
    step, notes = found(folder, True)
    assert step == 1
    assert sum("is damaged: " in note and ".damaged at the end" in note for note in notes) == 3
    saved(folder, 2, 3, 4, 5, keep=3)
    assert names_in(folder) == [f"step-0000000{step}" for step in (3, 4, 5)]
    damaged(folder, 5)
    assert found(folder, "auto")[0] == 4
    aside = sorted(path.name for path in folder.glob("*.damaged*"))
    assert aside == [f"step-0000000{name}" for name in ("5.damaged", "5.damaged-1", "6.damaged", "7.damaged")]


def test_damaged_checkpoints_older_than_the_one_that_a_run_goes_on_from_are_never_deleted(tmp_path: Path) -> None:
    """Damaged checkpoints older than the resumed one are never deleted.

    When it is their turn for deletion, they are renamed to a name that no run deletes.
    """
    folder = tmp_path / "saved"
    saved(folder, 1, 2, 3, 4)
    damaged(folder, 2)
    tensors = folder / "step-00000003" / "worker-0.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert found(folder, True)[0] == 4
    saved(folder, 5, keep=1)
    assert names_in(folder) == ["step-00000005"]
    assert sorted(path.name for path in folder.glob("*.damaged*")) == [
        "step-00000002.damaged",
        "step-00000003.damaged",
    ]
    assert not list(folder.glob(".step-*"))


def test_checkpoints_of_another_batch_size_are_ordered_by_samples(tmp_path: Path) -> None:
    """After a change of batch size, the newest checkpoint has the most samples, not the most steps.

    It is resumed from and kept. One with a damaged manifest may be newer; it is set aside and never deleted.
    """
    folder = tmp_path / "saved"
    saved(folder, 75, 100)
    for step in (80, 90):
        saved(folder, step, keep=2, batch_size=16)
    assert names_in(folder) == ["step-00000080", "step-00000090"]
    saved(folder, 200)
    saved(folder, 130, keep=1, batch_size=16)
    assert names_in(folder) == ["step-00000130"]
    saved(folder, 250)
    saved(folder, 140, batch_size=16)
    damaged(folder, 140)
    step, notes = found(folder, True)
    assert step == 130
    assert sum("step-00000140 is damaged" in note for note in notes) == 1
    assert names_in(folder) == ["step-00000130", "step-00000250"]
    saved(folder, 100, batch_size=8)  # older by samples, but just written
    saved(folder, 99, keep=1, batch_size=8)
    assert names_in(folder) == ["step-00000099", "step-00000130"]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_mask_of_infinities_is_saved(tmp_path: Path, persistent: bool) -> None:
    """Infinities of the job's own model do not prevent a checkpoint, in whatever kind of buffer they are.

    A tied buffer has them under each of its names. Infinities that training made do prevent it.
    """
    job = load_job(write_job(tmp_path))
    mask = torch.full((2, 2), -torch.inf).triu(1)
    for layer in (0, 2):
        job.model.get_submodule(str(layer)).register_buffer("mask", mask, persistent)
    state = {f"model.{layer}.mask": mask.clone() for layer in (0, 2)}
    assert not_finite_in(state, job) == []
    assert not_finite_in({"model.0.bias": mask}, job) == ["model.0.bias has 1 infinite of 4"]


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    """A folder without a checkpoint is refused if a checkpoint is required.

    With "auto", the run starts at step 0 and says so.
    """
    folder = tmp_path / "saved"
    with pytest.raises(InputError, match="found an empty folder; expected a checkpoint to resume from"):
        found(folder, True)
    assert found(folder, "auto") == (None, [f"no checkpoint in {folder}: starting from step 0"])
    saved(folder, 4)
    assert found(folder, "auto")[0] == found(folder, True)[0] == 4
