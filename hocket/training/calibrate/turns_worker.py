"""Worker for plans trained in turns: A B C A B C ..., with a reference benchmark in between.

Every worker makes the same calls in the same order. The engines of all plans are in one process, each with its own
weights. The reference benchmark measures the machine's pace: it is the forward and backward of one microbatch of the
undivided job, as it was profiled. It runs on all workers at once.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hocket.errors import InternalError
from hocket.planning.plan import Plan
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.profiling.measure.core_time import on_core_s
from hocket.profiling.measure.measure import usual
from hocket.profiling.measure.worker_costs import WorkerCosts
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.progress.progress_observer import Watched
from hocket.runtime.progress.recording import Recording
from hocket.runtime.progress.segments import RunSegment, segments
from hocket.training.launch.worker_spec import TurnsSpec
from hocket.training.worker.monitor.trace_writer import MAX_EVENTS, write_trace
from hocket.training.worker.options import Options
from hocket.training.worker.prepared import Prepared, RankInfo, fitting, prepare, process_group
from hocket.training.worker.telemetry import Telemetry
from hocket.training.worker.worker import result

BURST_S = 0.2
"""Approximate duration of one measurement of the reference benchmark, in seconds: a few microbatches."""
_LEAST = 3  # minimum microbatches of a measurement; the first, with cold caches, is not counted


def take_turns(
    job: Job,
    plans: Sequence[Plan],
    turns: TurnsSpec,
    options: Options,
    rank_info: RankInfo,
    telemetry: Telemetry,
) -> None:
    """Train all plans in turns until each has trained `options.steps` steps.

    Each plan has its own weights. Every turn is a segment: the pipeline is drained at its end, as for a checkpoint.

    Raises:
        InputError: job, plans or workers do not fit.
        WorkerLost: another worker was lost.
    """
    board = KVExchange(PrefixStore("board", rank_info.store), rank_info.rank, rank_info.workers)
    models: dict[tuple[int, int], Captured] = {}
    made: list[Prepared] = []
    for plan in plans:
        given = replace(options, batch_size=plan.batch_size) if turns.own_batch else options
        own = fitting(job, plan, given, rank_info.workers)
        key = (own.batch_size, plan.microbatch_size)
        if key not in models:
            models[key] = capture(own, plan.microbatch_size)
        made.append(prepare(own, plan, given, rank_info, board, models[key]))
    with process_group(rank_info, made[0].device):
        players = [
            _Player(number, ready, turns, options, rank_info, _of_plan(telemetry, number))
            for number, ready in enumerate(made)
        ]
        benchmark = None
        if turns.benchmark_size:
            captured = next(iter(models.values())).for_size(turns.benchmark_size)
            benchmark = _Benchmark(captured, turns.benchmark_size, made[0].device)
        gc.collect()
        bursts = [benchmark.burst()] if benchmark else []
        for number in range(max(len(player.segments) for player in players)):
            for player in players:
                if number < len(player.segments):
                    player.turn(player.segments[number], board)
                    if rank_info.rank == 0:
                        telemetry.report({"event": "turned", "plan": player.number, "steps": player.steps})
                    if benchmark:
                        player.bursts += [bursts[-1], benchmark.burst()]
                        bursts.append(player.bursts[-1])
        for player in players:
            player.finish(turns, board)
    telemetry.report({"event": "done"})


def _of_plan(telemetry: Telemetry, plan: int) -> Telemetry:
    """Return the same telemetry, with the number of the plan in each report."""
    return replace(telemetry, report=lambda event: telemetry.report({"event": "turn", "plan": plan, "said": event}))


@dataclass(frozen=True)
class _Burst:
    """Times of one measurement of the reference benchmark: a few microbatches in a row.

    Attributes:
        microbatches_s: time of each microbatch without waits for a CPU core, in seconds.
        whole_s: total seconds, with waits for a CPU core.
        on_core_s: total seconds without waits for a CPU core.
    """

    microbatches_s: tuple[float, ...]
    whole_s: float
    on_core_s: float


class _Benchmark:
    """Reference benchmark of the machine's pace: forward and backward of one microbatch of the undivided job."""

    def __init__(self, captured: Captured, size: int, device: torch.device) -> None:
        self._worker = WorkerCosts(captured, size, device)

    def burst(self) -> _Burst:
        """Run the benchmark's microbatch repeatedly for about `BURST_S` seconds, and measure each run."""
        self._worker.once(on_core_s)
        found: list[float] = []
        began_s, began_on_core_s = time.perf_counter(), on_core_s()
        while len(found) < _LEAST - 1 or time.perf_counter() - began_s < BURST_S:
            once = self._worker.once(on_core_s)
            found.append(once.forward + once.backward)
        return _Burst(tuple(found), time.perf_counter() - began_s, on_core_s() - began_on_core_s)


class _Player:
    """Engine and state of one of the plans that are trained in turns, on one worker.

    Attributes:
        number: index of the plan in the list of plans, from 0.
        steps: number of steps of this plan that are trained so far.
        segments: the turns of this plan, in order. Each is one run of the program: prologue, periods, epilogue.
        bursts: measurements of the reference benchmark just before and just after each turn of this plan.
    """

    def __init__(
        self,
        number: int,
        made: Prepared,
        turns: TurnsSpec,
        options: Options,
        rank_info: RankInfo,
        telemetry: Telemetry,
    ) -> None:
        self._made, self._report = made, telemetry.report
        self.number, self.steps, program = number, 0, made.program
        speaks = self._report if made.member == 0 else _silent
        self._watched = Watched(telemetry.progress, speaks, program, made.group, made.pace)
        record = any(turns.traces)
        self._recording = Recording(program, made.number, MAX_EVENTS // rank_info.workers) if record else None
        self._away_s, self._left_s = 0.0, 0.0  # total time of the other plans' turns, and the end of the last own turn
        clock = self._clock if record else None
        self._engine = Worker(made.executable, observer=self._watched, clock=clock)
        self.segments: list[RunSegment] = list(segments(made.pace, 0, options.steps, turns.steps))
        self.bursts: list[_Burst] = []
        if rank_info.rank == 0:
            self._report({"event": "start", "first": 0, "steps": self.segments[-1].end_step, "checkpoint": None})

    def _clock(self) -> float:
        """Return the time without the other plans' turns, so that a trace has no gaps."""
        return time.perf_counter() - self._away_s

    def turn(self, segment: RunSegment, board: KVExchange) -> None:
        """Train one turn; all workers begin and end it together."""
        begins_s = max(board.share(time.perf_counter()))
        if self._left_s:
            self._away_s += begins_s - self._left_s
        self._watched.begin(segment, cold=1)  # before it, other plans were trained
        periods = self._engine.run(segment.periods, segment.first_step * self._made.plan.batch_size)
        self._watched.end()
        if self._recording is not None:
            self._recording.add(self._engine.records, periods)
        steps = self._made.pace.steps(periods)
        if steps is None or periods != segment.periods:
            raise InternalError(f"a turn of {segment.periods} periods ended after {periods}")
        self.steps = segment.first_step + steps
        self._left_s = max(board.share(time.perf_counter()))

    def finish(self, turns: TurnsSpec, board: KVExchange) -> None:
        """Write the trace, and report the result with the machine's pace during the turns."""
        pace = self._pace(turns.benchmark_s)
        every = [fact for fact in board.share(pace) if fact]
        if self._recording is not None and turns.traces[self.number]:
            plan = self._made.plan
            meta: dict[str, Any] = {"source": "measured", "program": self._made.program.name, **plan.trace_meta}
            if plan.tensor > 1:
                meta["tensor"] = plan.tensor
            if every:
                meta["pace"] = fmean(fact["pace"] for fact in every)
            path = Path(turns.traces[self.number])
            engine = self._engine
            write_trace(path, self._recording, board, meta, engine.peak_memory_bytes, engine.memory_course)
        found = result(self._made.job, self._made.device, self._engine, self._watched, self.steps)
        self._report(found | pace)

    def _pace(self, profiled_s: float) -> dict[str, float]:
        """Compute the reference benchmark's time relative to its profiled time.

        Arguments:
            profiled_s: profiled time of one microbatch of the benchmark, in seconds.

        Returns:
            {"pace": relative time without waits for a CPU core, "stretch": factor of these waits}; empty if the pace
            was not measured.
        """
        if not self.bursts or profiled_s <= 0:
            return {}
        took_s = usual([s for burst in self.bursts for s in burst.microbatches_s])
        stretch = sum(burst.whole_s for burst in self.bursts) / sum(burst.on_core_s for burst in self.bursts)
        return {"pace": took_s / profiled_s, "stretch": max(1.0, stretch)}


def _silent(event: dict[str, Any]) -> None:
    """Drop a report: the first rank of a tensor-parallel group reports."""
