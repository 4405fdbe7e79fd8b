"""Checkpoints in the folder of a run: their list, and the one to open."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hocket.errors import InputError
from hocket.runtime.checkpoint.checkpoint import (
    MANIFEST,
    Checkpoint,
    Manifest,
    Position,
    best_of,
    is_step_folder,
    names_aside,
    names_in,
    newest,
    step_of,
    verify,
)
from hocket.runtime.kv_exchange import KVExchange

WHOLE, DAMAGED, SET_ASIDE = "whole", "damaged", "set aside"


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint in a list.

    Attributes:
        name: name of its folder.
        step: number of steps trained, from the folder's name.
        written_s: time at which the checkpoint was saved, in seconds since 1970. Of checkpoints of earlier versions: time
            at which the manifest was changed last; None without a manifest.
        size_bytes: size of its files on disk.
        state: "whole", "damaged", or "set aside": renamed by a run that resumed from another one.
        problem: difference between files and manifest; empty if there is none.
        position: position of the run; None if the manifest cannot be read.
        resumes: True for the checkpoint from which a run would resume.
        best: True for the checkpoint with the lowest evaluation loss, if any has one (`Evaluation.keep_best`).
    """

    name: str
    step: int
    written_s: float | None
    size_bytes: int
    state: str
    problem: str = ""
    position: Position | None = None
    resumes: bool = False
    best: bool = False


def list_checkpoints(folder: str | Path) -> list[ListedCheckpoint]:
    """List the checkpoints of a run, newest last, and verify the checksums of all their files.

    They are ordered by samples, as a resumed run orders them. A checkpoint with an unreadable manifest is placed by its
    step.

    Arguments:
        folder: folder of all checkpoints.

    Raises:
        InputError: no such folder, or a folder without checkpoints.
    """
    folder = Path(folder)
    names = [*_names_of(folder), *names_aside(folder)]
    if not names:
        raise _none_in(folder)
    listed = [one for name in names if (one := _listed(folder / name)) is not None]
    known = sorted((one for one in listed if one.position is not None), key=_samples_of)
    for one in sorted((one for one in listed if one.position is None), key=lambda one: one.step):
        at = next((k for k, other in enumerate(known) if other.step > one.step), len(known))
        known.insert(at, one)
    last = max((k for k, one in enumerate(known) if one.state == WHOLE), default=None)
    best = best_of({one.name: one.position for one in known if one.state == WHOLE})
    return [replace(one, resumes=k == last, best=one.name == best) for k, one in enumerate(known)]


def open_checkpoint(path: str | Path, warn: Callable[[str], None]) -> Checkpoint:
    """Verify and open a checkpoint.

    Arguments:
        path: folder of one checkpoint, or folder of a run; of a run, the newest undamaged checkpoint is opened.
        warn: called with a message for each newer checkpoint of the run that is damaged.

    Raises:
        InputError: no checkpoint there, or all are damaged.
    """
    path = Path(path)
    if is_step_folder(path):
        return Checkpoint(path, verify(path))
    damaged: list[str] = []
    names = _names_of(path)
    found = newest(path, KVExchange(None, 0, 1), damaged.append) if names else None
    if found is None and damaged:
        raise InputError(str(path), "; ".join(damaged), "an undamaged checkpoint")
    if found is None:
        raise _none_in(path)
    for text in damaged:
        warn(text)
    return found


def _listed(path: Path) -> ListedCheckpoint | None:
    """Verify one checkpoint; None if a running training has removed it since."""
    position, problem, written_s = None, "", None
    try:
        position = Manifest.read(path).position
        verify(path)
    except InputError as error:
        problem = str(error)
    try:
        size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        written_s = position.written_s if position is not None else None
        if written_s is None:
            written_s = os.stat(path / MANIFEST).st_mtime
    except FileNotFoundError:
        if not path.is_dir():
            return None
    name, _, aside = path.name.partition(".")
    state = SET_ASIDE if aside else DAMAGED if problem else WHOLE
    return ListedCheckpoint(path.name, step_of(name), written_s, size_bytes, state, problem, position)


def _samples_of(one: ListedCheckpoint) -> int:
    return one.position.samples if one.position is not None else 0


def _names_of(folder: Path) -> list[str]:
    """Return the names of the checkpoints in the folder of a run.

    Raises:
        InputError: no such folder, a file, or a folder that cannot be read.
    """
    expected = "the folder of a run's checkpoints"
    if not folder.is_dir():
        raise InputError(str(folder), "a file" if folder.exists() else "no such folder", expected)
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(str(folder), "no permission to read it", expected)
    return names_in(folder)


def _none_in(folder: Path) -> InputError:
    """Build the error for a folder without checkpoints."""
    expected = "a folder with checkpoints (step-...)"
    if is_step_folder(folder):
        step = f"Name the folder of the run: {folder.absolute().parent}."
        return InputError(str(folder), "a single checkpoint", expected, step)
    found = "a folder without checkpoints" if any(folder.iterdir()) else "an empty folder"
    return InputError(str(folder), found, expected, "Name the folder that `hocket train --checkpoint` wrote.")
