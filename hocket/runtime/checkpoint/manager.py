"""Checkpoint manager of one worker.

It chooses the checkpoint from which a run resumes. entries.py converts state from and to entries of a checkpoint. A
segment is the part of a run between two checkpoints.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from hocket.errors import InputError, WorkerLost
from hocket.profiling.data.iterable import IterableSamples, StreamState
from hocket.profiling.job.job import Job
from hocket.runtime.checkpoint.checkpoint import Checkpoint, Position, by_samples, damaged_path, names_in, newest, save
from hocket.runtime.checkpoint.entries import flat, in_parts, like_in, nested, not_finite_in, unheld_by, wanted
from hocket.runtime.checkpoint.resume_checks import (
    check_optimizer,
    first_step,
    other_order,
    without_group_state,
)
from hocket.runtime.checkpoint.resume_errors import no_checkpoint
from hocket.runtime.checkpoint.save_thread import SaveThread, copied
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.nan_guard.not_finite import not_finite

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class SaveOptions:
    """Options of a run's checkpoints.

    Attributes:
        resumes: True to resume from the newest undamaged checkpoint; there must be one. "auto" to start at step 0 if the
            folder has no checkpoint. False to start at step 0, and to refuse a folder with checkpoints.
        keep: number of newest checkpoints to keep.
        goes_on: True if the run continues with weights that are nan or infinite.
    """

    resumes: bool | Literal["auto"]
    keep: int
    goes_on: bool = False


class CheckpointManager:
    """Writes and finds the checkpoints of one run.

    Every worker has a manager and makes the same calls.

    Attributes:
        path: last checkpoint that this run saved. Before the first save: the checkpoint from which the run resumed, or
            None.
        waited_s: seconds that steps waited for checkpoints so far, without the end of the run.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        board: KVExchange,
        options: SaveOptions,
        background: KVExchange | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Keep the checkpoints of a run in a folder.

        Arguments:
            board: exchange of JSON values among the workers.
            background: a second exchange among the workers, with which checkpoints are written while the next steps run;
                None to write them before the next step.
            now: clock, in seconds since 1970.
        """
        self._job, self._folder, self._board, self._now = job, folder, board, now
        self._resumes, self._keep, self._goes_on = options.resumes, options.keep, options.goes_on
        self._versions: tuple[int, ...] = ()
        self._unheld: dict[str, Tensor] | None = None
        self._own: frozenset[str] | None = None
        self._writes, self._thread = background, SaveThread()
        self.path: Path | None = None
        self.waited_s = 0.0

    def resume(self, engine: Worker, speak: Report) -> int:
        """Load the newest undamaged checkpoint, if the options ask to resume (`--resume`).

        Arguments:
            speak: called with messages for the user, as events of kind "note" (training/worker/monitor/collector.py).

        Returns:
            Number of steps that are trained already; 0 if nothing was loaded.

        Raises:
            InputError: the checkpoint is of another job, model or optimizer; or the batch size does not divide its
                samples; or there are checkpoints and the options do not ask to resume; or they require a checkpoint and
                there is none; or all checkpoints are damaged.
        """
        layout = engine.layout
        found = self._found(layout.plan_digest, speak)
        if found is None:
            return 0
        self.path, self._versions = found.path, _versions(found.position, len(layout.cuts))
        held, unheld = engine.described(), self._unheld_of(engine)
        parts = engine.device.captured.parts
        state = nested(in_parts(found.load(wanted(held, parts)), held, parts), held)
        check_optimizer(self._job, found.path, state, parts)
        lacking = {
            "frozen parameter": sorted(held["frozen"].keys() - state["frozen"].keys()),
            "optimizer's group state of": without_group_state(self._job, state),
        }
        engine.load(state)
        if engine.device.scaler is not None and found.position.loss_scale is not None:
            engine.device.scaler.state = found.position.loss_scale
        if isinstance(self._job.data, IterableSamples):
            self._job.data.restore(found.position.samples, found.position.data_state)
        stored = found.load(lambda name: name.partition(".")[2] in unheld and name.startswith("model."))
        unheld.update(like_in(stored, unheld))
        for told in self._missing(found, lacking):
            speak({"event": "note", "text": told})
        return first_step(found, self._job, layout.batch_size)

    def save(self, engine: Worker, step: int, periods: int, speak: Report, eval_loss: float | None = None) -> None:
        """Save the engine's state after a segment.

        With an exchange for the background, the state is copied now and written while the next steps run. `finish` waits
        for it. Nothing is saved if weights or optimizer state are nan or infinite and the run continues with them.

        Arguments:
            step: number of steps trained at the segment's end.
            periods: number of repetitions of the program's period in the segment.
            speak: called with messages for the user, as events of kind "note", and with an event "saved" when the
                checkpoint is complete. In the background, a thread calls it.
            eval_loss: loss of the evaluation at this step, if the run keeps its best checkpoint.

        Raises:
            NotFinite: weights or optimizer state are nan or infinite, and the run does not continue with them.
            InputError: this checkpoint, or the one before it in the background, could not be written.
        """
        began_s = time.perf_counter()
        self._save(engine, step, periods, speak, eval_loss)
        self.waited_s += time.perf_counter() - began_s

    def passed(self, engine: Worker, periods: int) -> None:
        """Count the updates of a segment; `save` does so for the segment that it saves."""
        before = self._versions or (0,) * len(engine.layout.cuts)
        self._versions = tuple(v + engine.program.updates(s, periods) for s, v in enumerate(before))

    def _save(self, engine: Worker, step: int, periods: int, speak: Report, eval_loss: float | None) -> None:
        """Do what `save` says, without counting the seconds."""
        self.finish()
        layout, program = engine.layout, engine.program
        self.passed(engine, periods)
        position = Position(
            step=step,
            samples=step * layout.batch_size,
            job=self._job.label,
            plan_digest=layout.plan_digest,
            profile_digest=layout.profile_digest,
            dtype=self._job.dtype,
            seed=self._job.seed,
            data_samples=None if self._job.iterates else self._job.samples,
            rule=program.rule.kind,
            weight_versions=self._versions,
            strategy=program.name,
            written_s=self._now(),
            shuffle=None if self._job.shuffle is not False else False,
            data_state=self._data_state(step * layout.batch_size),
            eval_loss=eval_loss,
            loss_scale=None if engine.device.scaler is None else engine.device.scaler.state,
        )
        state, wholes = flat(engine.state(to_save=True), engine.device.captured.parts)
        bad = self._board.share(not_finite_in(state, self._job))
        if spoiled := sorted({text for texts in bad for text in texts}):
            more = f" and {len(spoiled) - 1} more" if len(spoiled) > 1 else ""
            text = f"{spoiled[0]}{more} after step {step}"
            if not self._goes_on:
                raise not_finite(step - 1, text, "the step before it had finite gradients", self.newest())
            speak({"event": "note", "text": f"no checkpoint is written, because weights are not finite: {text}"})
            return
        state = {f"model.{name}": tensor for name, tensor in self._unheld_of(engine).items()} | state

        def write(held: Mapping[str, Any], board: KVExchange) -> None:
            self.path = save(self._folder, position, held, board, self._keep, wholes)
            speak({"event": "saved", "step": step, "path": str(self.path), "at_s": self._now()})

        if self._writes is None:
            write(state, self._board)
        else:
            own = self._own_of(state)
            held = copied({name: value for name, value in state.items() if name in own})
            self._thread.start(partial(write, held, self._writes))

    def _data_state(self, position: int) -> StreamState | None:
        """Return the state of iterable data of the first worker that has read up to a position, if there is any.

        It is a collective call if the dataset has a state.
        """
        data = self._job.data
        if not isinstance(data, IterableSamples) or not data.has_state:
            return None
        own = data.state_at(position)
        found = self._board.share(None if own is None else asdict(own))
        return next((StreamState(**state) for state in found if state is not None), None)

    @contextmanager
    def save_errors_first(self) -> Iterator[None]:
        """Raise the error of a failed save in place of a lost worker's.

        A full disk can be the disk of the workers' rendezvous store as well, which then loses the workers.
        """
        try:
            yield
        except WorkerLost:
            self._thread.check()
            raise

    def newest(self) -> str | None:
        """Wait until the last checkpoint is written, and return the value of `path` as text.

        Raises:
            InputError: it could not be written. Every worker raises the same error.
        """
        self.finish()
        return None if self.path is None else str(self.path)

    def finish(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            InputError: it could not be written. Every worker raises the same error.
        """
        self._thread.finish()

    def _own_of(self, state: Mapping[str, Any]) -> frozenset[str]:
        """Names that this worker writes: of the workers that hold a name, the lowest rank writes it.

        Only these are copied. It is a collective call when it is called first: stages stay where they are.
        """
        if self._own is None:
            facts = self._board.share({"names": sorted(state)})
            lower = {name for fact in facts[: self._board.rank] for name in fact["names"]}
            self._own = frozenset(state) - lower
        return self._own

    def _unheld_of(self, engine: Worker) -> dict[str, Tensor]:
        """Return the tensors of the model that no stage uses, on the first worker.

        It is a collective call when it is called first.
        """
        if self._unheld is None:
            described, parts = engine.described(), engine.device.captured.parts
            names = [name for kind in ("weights", "frozen", "buffers") for name in described[kind]]
            held = sorted({parts[name].name if name in parts else name for name in names})
            every = {name for fact in self._board.share({"names": held}) for name in fact["names"]}
            self._unheld = unheld_by(every, self._job) if self._board.rank == 0 else {}
        return self._unheld

    def _missing(self, found: Checkpoint, lacking: Mapping[str, list[str]]) -> Iterator[str]:
        """Yield notes on what a checkpoint of an earlier version lacks, for all workers together.

        Arguments:
            lacking: names of the parameters of this worker for which something is missing, by what it is.
        """
        facts = self._board.share(lacking)
        for what in lacking:
            names = sorted({name for fact in facts for name in fact[what]})
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                yield f"{found.path} lacks the {what} {names[0]}{more}: the job's initial values are used"

    def _found(self, plan_digest: str, speak: Report) -> Checkpoint | None:
        if not self._resumes:
            there = self._board.share({"names": names_in(self._folder)})[0]["names"]
            if there:
                hint = "Use --resume to continue from it, or name another folder."
                raise InputError(
                    f"checkpoint {self._folder}", f"{there[-1]} of an earlier run", "an empty folder", hint
                )
            return None
        damaged: list[str] = []
        found = newest(self._folder, self._board, damaged.append)
        if found is None:
            if damaged or self._resumes is True:
                raise _none_whole(self._folder, damaged)
            speak({"event": "note", "text": f"no checkpoint in {self._folder}: starting from step 0"})
            return None
        if damaged:
            set_aside(found, self._board)
        for text in damaged:
            speak({"event": "note", "text": f"{text}; it is kept under a name with .damaged at the end"})
        if found.position.plan_digest != plan_digest:
            text = f"{found.path} was written under another plan; its state is loaded by name"
            speak({"event": "note", "text": text})
        if found.position.dtype not in ("", self._job.dtype):
            text = f"{found.path} was computed in {found.position.dtype}; training continues with its weights in {self._job.dtype}"
            speak({"event": "note", "text": text})
        if told := other_order(found.position, self._job):
            speak({"event": "note", "text": f"{found.path} was trained {told}"})
        return found


def set_aside(found: Checkpoint, board: KVExchange) -> None:
    """Rename the damaged checkpoints to `NAME.damaged`.

    After the renaming they do not count as checkpoints to keep, and no run deletes or replaces them. Every worker
    calls this.

    Arguments:
        found: the newest undamaged checkpoint. All newer checkpoints are damaged.

    Raises:
        InputError: a checkpoint cannot be renamed. Every worker raises the same error.
    """
    problem, folder = "", found.path.parent
    try:
        names = list(by_samples(folder)) if board.rank == 0 else [found.path.name]
        for name in names[names.index(found.path.name) + 1 :]:
            (folder / name).rename(damaged_path(folder / name))
    except OSError as error:
        problem = str(error)
    problem = board.share({"problem": problem})[0]["problem"]
    if problem:
        hint = "Move the damaged checkpoints elsewhere."
        raise InputError(f"checkpoint in {folder}", problem, "permission to rename damaged checkpoints", hint)


def _none_whole(folder: Path, damaged: list[str]) -> InputError:
    """Build the error for a folder without an undamaged checkpoint.

    Arguments:
        damaged: message on each damaged checkpoint; empty if the folder has no checkpoint.
    """
    if not damaged:
        return no_checkpoint(folder)
    hint = "Nothing was deleted. Restore one of them, or choose another folder to start from step 0."
    return InputError(f"checkpoint in {folder}", "; ".join(damaged), "an undamaged checkpoint to resume from", hint)


def _versions(position: Position, stages: int) -> tuple[int, ...]:
    """Return the number of updates in the weights of each of this plan's stages.

    If the checkpoint's plan had another number of stages, all stages get the minimum over the checkpoint's stages.
    """
    if len(position.weight_versions) == stages:
        return position.weight_versions
    return (min(position.weight_versions, default=0),) * stages
