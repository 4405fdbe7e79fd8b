"""Checkpoint: a folder that is written atomically.

    CHECKPOINTS/step-00000012/manifest.json          position, and size and SHA-256 of every file; has its own hash
                              worker-0.safetensors   tensors by global name, each in one worker's file only
    CHECKPOINTS/step-00000016.damaged/               damaged, found by a run that resumed from another; never deleted
    CHECKPOINTS/.step-00000020.part/                 being written, or left by a crash; the next save removes it

Tensors are saved with `torch.distributed.checkpoint` (DCP), so that any plan can read the checkpoint of any other plan.
The storage of dcp_storage.py is used, so that nothing is ever unpickled. Every file is fsynced before the folder is
renamed, and the parent folder is fsynced after it. Old checkpoints are removed only after the new one is complete.
Workers agree on each decision through a KVExchange.

A checkpoint is made only between segments (see segments.py). Then every stage has exactly one version of its weights,
and `weight_versions` is the number of updates that it contains. An asynchronous strategy drains its pipeline for a
checkpoint. This drain changes the result: the update rule starts again after it, so the staleness of updates depends on
the steps at which checkpoints are made.

Names: `model.NAME` for parameters and buffers, `optimizer.NAME.KEY` for the optimizer's state of one parameter. If
several workers hold the same state (replicas, tied parameters), the lowest rank writes it. The first worker also writes
parameters and buffers that no stage uses.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from hocket.errors import HocketError, InputError, WorkerLost
from hocket.profiling.data.iterable import StreamState
from hocket.profiling.measure.quiet_warnings import unwarned
from hocket.runtime.checkpoint.dcp_storage import StoredFile, TensorReader, TensorWriter
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.update.loss.scaler import LossScale
from hocket.util.documents import parse_json
from hocket.util.files import fsync_folder, read_bytes
from hocket.util.schema import as_data, read_as

FORMAT = "hocket-checkpoint-1"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,18})")
_ASIDE = re.compile(_NAME.pattern + r"\.damaged(-\d+)?")
_MAX_MANIFEST_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**20

State = Mapping[str, Any]


@dataclass(frozen=True)
class Position:
    """Position of a run in its training, from which a resumed run continues.

    Attributes:
        step: number of steps trained.
        samples: number of samples consumed from the data stream.
        job: name of the job.
        plan_digest, profile_digest: SHA-256 of the plan file's text, and of the profile that the plan was made with.
        rule: kind of the update rule, such as "sync" (program/rule.py).
        weight_versions: number of updates in each stage's weights since the run began.
        dtype: compute dtype, such as "float32"; empty if unknown.
        seed, data_samples: seed of the job and length of its data, which determine the order of the samples; None if
            unknown.
        strategy: name and configuration of the plan's strategy, such as "flush 2-1"; None if unknown.
        written_s: time of the save, in seconds since 1970; None if unknown.
        shuffle: False if each epoch had the order of the data; otherwise None.
        data_state: state of iterable data after these samples; None without one.
        eval_loss: loss of the evaluation at this step, in a run that keeps its best checkpoint; None otherwise.
        loss_scale: state of the loss scaler of a job in float16; None otherwise.
    """

    step: int
    samples: int
    job: str = ""
    plan_digest: str = ""
    profile_digest: str = ""
    rule: str = ""
    weight_versions: tuple[int, ...] = ()
    dtype: str = ""
    seed: int | None = None
    data_samples: int | None = None
    strategy: str | None = None
    written_s: float | None = None
    shuffle: bool | None = None
    data_state: StreamState | None = None
    eval_loss: float | None = None
    loss_scale: LossScale | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Manifest:
    """Manifest of a checkpoint: its position, its files with their hashes, and values that are not tensors.

    Attributes:
        position: position of the run.
        files: all safetensors files of the checkpoint.
        values: entries of the state that are not tensors (numbers, texts, None), by name.
        sha256: hash of all other fields.
        format: version of the file format.
    """

    position: Position
    files: tuple[StoredFile, ...]
    values: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""
    format: str = FORMAT

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError("format", repr(self.format), repr(FORMAT))
        for stored in self.files:
            if Path(stored.name).name != stored.name or stored.name in ("", ".", ".."):
                raise InputError("files", repr(stored.name), "the name of a file in the checkpoint's folder")

    @property
    def hash(self) -> str:
        """SHA-256 of all fields except `sha256`."""
        return hashlib.sha256(json.dumps(self._data(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the manifest as JSON, with its hash."""
        return json.dumps(self._data(self.hash), indent=1)

    def _data(self, sha256: str = "") -> dict[str, Any]:
        """Return the manifest as plain data.

        What is unknown or not used is left out of the position: checkpoints of earlier versions lack these fields and
        keep their hash, and earlier versions read a checkpoint that does not need them.
        """
        data: dict[str, Any] = as_data(replace(self, sha256=sha256))
        data["position"] = {name: value for name, value in data["position"].items() if value is not None}
        return data

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a checkpoint, and check its hash; unknown keys are refused.

        Raises:
            InputError: the manifest is missing or cannot be parsed, or its hash does not match its content.
        """
        path = folder / MANIFEST
        manifest = read_as(cls, parse_json(read_bytes(path, _MAX_MANIFEST_BYTES), str(path)), str(path))
        if manifest.sha256 != manifest.hash:
            found = f"changed content, with SHA-256 {manifest.hash[:12]}..."
            raise InputError(str(path), found, f"SHA-256 {manifest.sha256[:12]}..., which the file records for itself")
        return manifest


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was verified to be undamaged."""

    path: Path
    manifest: Manifest

    @property
    def position(self) -> Position:
        """Position of the run in this checkpoint."""
        return self.manifest.position

    def load(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        """Load the wanted entries by name, with tensors on the CPU.

        The checkpoint may have been written under any plan.

        Arguments:
            wanted: returns True for the name of an entry to load.

        Raises:
            InputError: the stored shapes of a tensor are inconsistent.
        """
        reader = TensorReader([self.path / stored.name for stored in self.manifest.files])
        state: dict[str, Any] = {name: reader.like(name) for name in sorted(reader.pieces) if wanted(name)}
        if state:
            try:
                with _dcp():
                    state_dict_loader.load(state, storage_reader=reader, no_dist=True)
            except CheckpointException as error:
                raise InputError(str(self.path), _failures(error), "tensors of consistent shapes") from None
        return state | {name: value for name, value in self.manifest.values.items() if wanted(name)}


def folder_name(step: int) -> str:
    """Return the name of a checkpoint's folder, such as "step-00000012"."""
    return f"step-{step:08d}"


def names_in(folder: Path) -> list[str]:
    """Return the names of the checkpoint folders (step-...), sorted by step.

    Damaged checkpoints are included until they are renamed to `NAME.damaged`.
    """
    names = [path.name for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(names, key=step_of)


def names_aside(folder: Path) -> list[str]:
    """Return the names of the damaged checkpoints that were renamed (step-....damaged), sorted."""
    return sorted(path.name for path in folder.glob("step-*") if _ASIDE.fullmatch(path.name))


def is_step_folder(path: Path) -> bool:
    """True for the folder of one checkpoint, also of a damaged one."""
    name = path.absolute().name
    named = _NAME.fullmatch(name) or _ASIDE.fullmatch(name)
    return path.is_dir() and (bool(named) or (path / MANIFEST).is_file())


def step_of(name: str) -> int:
    """Parse the step in the name of a checkpoint's folder."""
    return int(name.removeprefix("step-"))


def by_samples(folder: Path) -> dict[str, float]:
    """Return the number of samples trained in each checkpoint, oldest first, by folder name.

    Samples order checkpoints of different batch sizes, unlike steps. A checkpoint with a damaged manifest may be the
    newest one, so it is the last and has infinitely many samples.
    """
    found: dict[str, float] = {}
    for name in names_in(folder):
        try:
            found[name] = Manifest.read(folder / name).position.samples
        except InputError:
            found[name] = inf
    return dict(sorted(found.items(), key=lambda item: item[1]))


def save(
    folder: Path,
    position: Position,
    state: State,
    board: KVExchange,
    keep: int = 3,
    wholes: Mapping[str, tuple[int, ...]] | None = None,
) -> Path:
    """Write one checkpoint.

    This is a collective call of all workers. Each worker passes the part of the state that it holds.

    Arguments:
        folder: folder of all checkpoints, visible to all workers.
        position: step and position in the data.
        state: tensors and plain values (numbers, texts, None) that this worker holds, by name. If several workers hold
            the same name, the lowest rank writes it.
        board: exchange of JSON values among the workers.
        keep: number of newest checkpoints to keep, by samples. Older ones are removed after the new one is complete,
            except the one with the lowest `Position.eval_loss`. An older checkpoint is verified first; if it is
            damaged, it is renamed and kept.
        wholes: shapes of whole tensors of which `state` holds only a shard, by the whole tensor's name. The name of a
            shard ends in its offsets: `NAME@0,128` (dcp_storage.py).

    Returns:
        The checkpoint's folder.

    Raises:
        InputError: the checkpoint could not be written (disk full, no permission). Every worker raises the same error.
            Existing checkpoints are unchanged.
    """
    final = folder / folder_name(position.step)
    part = folder / f".{final.name}.part"
    # Round 1: exchange the names that each worker holds. After it the first worker has created an empty folder.
    problem = _prepare(folder, part) if board.rank == 0 else ""
    held = board.share({"names": sorted(state), "problem": problem})
    _raise_first(folder, [fact["problem"] for fact in held])
    lower = {name for fact in held[: board.rank] for name in fact["names"]}
    own = {name: value for name, value in state.items() if name not in lower}
    # Round 2: every worker has written and synced its file, or reports a problem.
    mine = _write(part, own, board.rank, wholes or {})
    try:
        written = board.share(mine)
    except WorkerLost:
        _raise_first(folder, [mine["problem"]])  # a full disk can be the disk of the rendezvous store as well
        raise
    problem = next((fact["problem"] for fact in written if fact["problem"]), "")
    if board.rank == 0:
        files = tuple(StoredFile(**fact["file"]) for fact in written if fact["file"])
        values = {name: value for fact in written for name, value in fact["values"].items()}
        problem = problem or _commit(part, final, Manifest(position, files, values))
        if problem:
            shutil.rmtree(part, ignore_errors=True)
        else:
            _forget(final, keep)
    # Round 3: the checkpoint is complete.
    _raise_first(folder, [fact["problem"] for fact in board.share({"problem": problem})])
    return final


def newest(folder: Path, board: KVExchange, warn: Callable[[str], None]) -> Checkpoint | None:
    """Find the newest undamaged checkpoint; None if there is none.

    This is a collective call of all workers. All get the same checkpoint.

    Arguments:
        folder: folder of all checkpoints.
        board: exchange of JSON values among the workers.
        warn: called on every worker with a message for each newer checkpoint that is damaged.
    """
    names = list(by_samples(folder)) if board.rank == 0 else []
    for name in board.share({"names": names[::-1]})[0]["names"]:
        path = folder / name
        problems = [fact["problem"] for fact in board.share({"problem": _problem_of(path, board.rank, board.workers)})]
        problem = next(filter(None, problems), "")
        if not problem:
            return Checkpoint(path, Manifest.read(path))
        warn(f"checkpoint {path} is damaged: {problem}")
    return None


def verify(path: Path, rank: int = 0, workers: int = 1) -> Manifest:
    """Check sizes and hashes of a checkpoint's files; return its manifest.

    Each worker checks every `workers`-th file, beginning with file `rank`. By default all files are checked.

    Raises:
        InputError: the manifest or a file is missing or was changed.
    """
    manifest = Manifest.read(path)
    for stored in manifest.files[rank::workers]:
        file = path / stored.name
        try:
            sha, size = hashlib.sha256(), 0
            with file.open("rb") as stream:
                while block := stream.read(_CHUNK_BYTES):
                    sha.update(block)
                    size += len(block)
        except OSError as error:
            raise InputError(str(file), str(error), "a readable file") from None
        if (size, sha.hexdigest()) != (stored.size_bytes, stored.sha256):
            expected = f"{stored.size_bytes} bytes with SHA-256 {stored.sha256[:12]}..."
            raise InputError(str(file), f"{size} bytes with SHA-256 {sha.hexdigest()[:12]}...", expected)
    return manifest


def _problem_of(path: Path, rank: int = 0, workers: int = 1) -> str:
    try:
        verify(path, rank, workers)
    except InputError as error:
        return str(error)
    return ""


def _prepare(folder: Path, part: Path) -> str:
    """Create the empty folder `part`, and remove what a crash left in `folder`.

    Returns:
        Description of the problem; empty if there is none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*"):
            # What cannot be removed only uses disk space, unless it is in the way.
            shutil.rmtree(left, ignore_errors=left != part)
        part.mkdir()
    except OSError as error:
        return str(error)
    return ""


def _write(part: Path, own: State, rank: int, wholes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Write one worker's tensors to a file in the folder `part`.

    Arguments:
        own: entries that this worker writes, by name.
        wholes: see `save`.

    Returns:
        JSON data for the other workers. `file` is the written file as data, or None without tensors. `values` has the
        entries that are not tensors. `problem` is an error text, empty without an error.
    """
    tensors = {name: value for name, value in own.items() if isinstance(value, Tensor)}
    values = {name: value for name, value in own.items() if not isinstance(value, Tensor)}
    odd = next((name for name, value in values.items() if not isinstance(value, int | float | str | None)), None)
    fact: dict[str, Any] = {"file": None, "values": {}, "problem": ""}
    if odd is not None:
        return fact | {"problem": f"{odd} is a {type(values[odd]).__name__}, neither tensor nor number"}
    if not tensors:
        return fact | {"values": values}
    writer = TensorWriter(part / f"worker-{rank}.safetensors", wholes)
    try:
        with _dcp():
            state_dict_saver.save(tensors, storage_writer=writer, no_dist=True)
    except (OSError, HocketError) as error:
        return fact | {"problem": str(error)}
    except CheckpointException as error:
        return fact | {"problem": _failures(error)}
    assert writer.stored is not None
    return fact | {"file": as_data(writer.stored), "values": values}


def _failures(error: CheckpointException) -> str:
    return "; ".join(str(failure) for failure, _ in error.failures.values())


def _commit(part: Path, final: Path, manifest: Manifest) -> str:
    """Write the manifest into the folder `part`, and rename the folder to `final`.

    Returns:
        Description of the problem; empty if there is none.
    """
    try:
        with (part / MANIFEST).open("w") as stream:
            stream.write(manifest.to_json())
            stream.flush()
            os.fsync(stream.fileno())
        fsync_folder(part)
        if final.exists():  # a damaged checkpoint that was skipped, or the same step trained again
            final.rename(final.with_name(f".{final.name}.old"))
        part.rename(final)
        fsync_folder(final.parent)
    except OSError as error:
        return str(error)
    return ""


def damaged_path(path: Path) -> Path:
    """Return an unused path to which a damaged checkpoint can be renamed.

    The path is `NAME.damaged`, or `NAME.damaged-N` if that exists. No run counts, replaces or deletes a checkpoint
    with such a name.
    """
    names = (f"{path.name}.damaged" + (f"-{number}" if number else "") for number in count())
    return next(one for one in map(path.with_name, names) if not one.exists())


def _forget(written: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, the one just written, and the best one.

    A checkpoint is renamed first, so that an interrupted removal does not leave a damaged checkpoint. A checkpoint
    that is damaged already is renamed (see `damaged_path`) and kept.
    """
    folder = written.parent
    samples = by_samples(folder)
    kept = [name for name in samples if samples[name] < inf][-keep:]
    best = best_of({name: _position_in(folder / name) for name in samples})
    for path in (folder / name for name in samples if name not in (*kept, written.name, best)):
        damaged = bool(_problem_of(path))
        try:
            path.rename(damaged_path(path) if damaged else path.with_name(f".{path.name}.old"))
        except OSError:  # for example another user's folder: it stays and only uses disk space
            continue
    for aside in folder.glob(".step-*.old"):
        shutil.rmtree(aside, ignore_errors=True)


def best_of(positions: Mapping[str, Position | None]) -> str | None:
    """Return the name of the checkpoint with the lowest evaluation loss, the first of several.

    Returns:
        None if no checkpoint has the loss of an evaluation.
    """
    losses = {name: one.eval_loss for name, one in positions.items() if one is not None and one.eval_loss is not None}
    return min(losses, key=losses.__getitem__, default=None)


def _position_in(path: Path) -> Position | None:
    """Return the position of a checkpoint; None if its manifest cannot be read."""
    try:
        return Manifest.read(path).position
    except InputError:
        return None


def _raise_first(folder: Path, problems: list[str]) -> None:
    problem = next(filter(None, problems), "")
    if problem:
        hint = "Existing checkpoints are unchanged. Free disk space, or choose another folder, and use --resume."
        raise InputError(f"checkpoint in {folder}", problem, "enough disk space", hint)


@contextmanager
def _dcp() -> Iterator[None]:
    """Context for calls of DCP with `no_dist=True`: no gradients, no warning.

    DCP's collectives pickle data, so they are not used. DCP then warns that it works for this process only; that is
    intended, so the warning is hidden.
    """
    with unwarned("torch.distributed is disabled, unavailable or uninitialized"), torch.no_grad():
        yield
