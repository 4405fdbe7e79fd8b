"""`hocket demo`: profile, plan, prove, simulate, train and compare a small GPT.

The GPT is trained on real text with local workers. Predictions are printed beside measurements.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.cli.output.table import in_bytes, in_seconds, print_table
from hocket.cli.output.tables import print_json
from hocket.errors import InputError
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.predict.at_pace import paced_iteration_s
from hocket.planning.predict.predict import predict
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Evaluated
from hocket.planning.search.search import search
from hocket.profiling.profile import ModelProfile
from hocket.program.trace.chrome import read_trace, save_trace
from hocket.program.trace.error_parts import KERNEL, Parts, waits_share
from hocket.reporting import DemoRow, PlanResults, demo_html, slower_by
from hocket.strategies.base.strategy import members
from hocket.training.auto_plan.profile_job import profile_job
from hocket.training.auto_plan.profile_request import ProfileRequest
from hocket.training.calibrate.local_links import measure_local
from hocket.training.calibrate.train_in_turns import STEPS, Turned, Turns, train_in_turns
from hocket.training.launch.environment import MAX_LOCAL_WORKERS
from hocket.training.launch.worker_spec import JobSpec
from hocket.training.worker.monitor.listener import RunSummary
from hocket.util.files import check_folder_to_write, write_atomic
from hocket.util.schema import as_data
from hocket.util.units import show_bytes, show_number, show_seconds

JOB = Path(__file__).parents[2] / "models" / "demo_job.py"
PROFILE_BUDGET_S, PROFILE_ROUNDS = 20.0, 3
LINKS_BUDGET_S = 6.0


@dataclass(frozen=True)
class DemoOutcome:
    """One strategy with its prediction and measurement.

    Attributes:
        candidate: the plan and its prediction.
        turned: measurements of the training run, which took turns with the other strategies.
        paced_iteration_s: iteration seconds predicted with each device as slow as it was during the run.
        waits_share: share of an iteration that waits for cores of other processes add.
    """

    candidate: Evaluated
    turned: Turned
    paced_iteration_s: float
    waits_share: float

    @property
    def summary(self) -> RunSummary:
        """Summary of the training run."""
        return self.turned.summary

    @property
    def parts(self) -> Parts | None:
        """Prediction error in parts: pace, waits, model; None if it was not measured."""
        measured, pace = self.summary.iteration_s, self.turned.pace
        if measured is None or pace is None:
            return None
        return Parts(pace, KERNEL, self.candidate.iteration_s, measured, measured * (1 - self.waits_share))

    @property
    def row(self) -> DemoRow:
        """Row of the demo's table."""
        measured = self.summary.iteration_s or float("nan")
        return DemoRow(
            strategy=self.candidate.strategy,
            config=self.candidate.config,
            predicted_iteration_s=self.candidate.iteration_s,
            measured_iteration_s=measured,
            predicted_peak_bytes=max(self.candidate.peak_memory_bytes.values()),
            measured_peak_bytes=max(self.summary.peak_memory_bytes.values(), default=0),
            samples_per_s=self.summary.samples_per_s or 0.0,
            paced_iteration_s=self.paced_iteration_s,
            parts=self.parts,
        )


def check_own(output: Path) -> None:
    """Refuse a folder that holds files other than those of an earlier demo.

    In such a folder the demo could overwrite a user's `profile.json` or `cluster.yaml`.

    Raises:
        InputError: names such a file.
    """
    own = {"profile.json", "cluster.yaml", "report.html"}
    own |= {f"{name}{end}" for name in members() for end in (".yaml", ".predicted.json", ".measured.json")}
    other = (
        sorted(p.name for p in output.iterdir() if p.name not in own and p.suffix != ".part") if output.is_dir() else []
    )
    if other:
        expected = "a new or empty folder, or the folder of an earlier demo"
        raise InputError(str(output), f"a folder with other files, such as {other[0]}", expected, "Choose one with -o.")


def run_demo(text: Path | None, output: Path, workers: int, steps: int, json: bool) -> None:
    """Run the demo and write its files to the folder `output`.

    A second run overwrites the files of the first.

    Arguments:
        text: file of a text to train on; None for Python's own source files.
        workers: number of worker processes.
        steps: steps to train under each strategy.
        json: print one JSON document instead of progress and tables.

    Raises:
        InputError: an impossible number of workers or steps; a text that cannot be read or is too short; a folder that
            cannot be written.
    """
    if workers < 2:
        raise InputError("--workers", str(workers), ">= 2")
    if workers > MAX_LOCAL_WORKERS:
        raise InputError("--workers", str(workers), f"at most {MAX_LOCAL_WORKERS} on one machine")
    if steps < 1:
        raise InputError("--steps", str(steps), ">= 1")
    say = _quiet if json else _loud
    if text is not None:
        _check_text(text)
        os.environ["HOCKET_DEMO_TEXT"] = str(text.resolve())
    check_folder_to_write(output, str(output))
    check_own(output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(output), error.strerror or str(error), "a writable folder") from None
    began = time.perf_counter()

    say("1  profile: every layer of the GPT, forward and backward, for some microbatch sizes")
    profile = _profile(workers)
    profile.save(output / "profile.json")
    weights = sum(layer.weights_bytes for layer in profile.layers)
    say(f"   {len(profile.layers)} layers, {show_bytes(weights)} of weights")

    say(f"2  links: {workers} workers send each other messages")
    cluster = measure_local(workers, limit_s=LINKS_BUDGET_S)
    cluster.save(output / "cluster.yaml")
    link = cluster.levels[0]
    say(f"   {link.bandwidth_bytes_per_s / 1e9:.2f} GB/s, {show_seconds(link.latency_s)} latency")

    say("3  plan: every strategy's choices, simulated")
    found = search(profile, cluster, PlanRequest(profile.batch_size, synchronous=False), profile_path="profile.json")
    best = _one_each(found.candidates, workers)
    say(f"   {found.considered} choices in {show_seconds(found.search_s)}")

    say("4  prove: every plan, for every number of periods")
    for name, candidate in best.items():
        candidate.plan.save(output / f"{name}.yaml")
        opened = LoadedPlan(candidate.plan, profile)
        problems = problems_of(opened, opened.program)
        if problems:
            raise InputError(f"{name}.yaml", problems[0].message, "a legal program")
        say(f"   {opened.program.name}: {len(opened.program)} instructions, legal")
        save_trace(predict(candidate.plan, profile)[0], output / f"{name}.predicted.json")

    say(f"5  train: {steps} steps under each strategy, in turns of {min(steps, STEPS)}, {workers} worker processes")
    outcomes = _trained(best, profile, output, steps, say)
    for name, outcome in zip(best, outcomes, strict=True):
        row, losses = outcome.row, outcome.summary.losses
        say(
            f"   {name:<15} {show_seconds(row.measured_iteration_s)} an iteration (predicted "
            f"{show_seconds(row.predicted_iteration_s)}, at the machine's pace {show_seconds(row.paced_iteration_s)}), "
            f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"
        )

    rows = [outcome.row for outcome in outcomes]
    winner = min(outcomes, key=lambda outcome: outcome.row.measured_iteration_s).candidate
    predicted, figures = predict(winner.plan, profile)
    page = demo_html(
        rows,
        {outcome.candidate.strategy: list(outcome.summary.losses) for outcome in outcomes},
        PlanResults(winner.plan, predicted, figures, read_trace(output / f"{winner.strategy}.measured.json")),
    )
    write_atomic(output / "report.html", page)
    wall_s = time.perf_counter() - began
    if json:
        print_json(
            {
                "rows": [
                    as_data(o.row) | {"parts": o.parts.as_data() if o.parts else None, "error": o.row.error}
                    for o in outcomes
                ],
                "predicted_fastest_slower_by": slower_by(rows),
                "paced_fastest_slower_by": slower_by(rows, paced=True),
                "losses": {o.candidate.strategy: o.summary.losses for o in outcomes},
                "wall_s": wall_s,
                "report": str(output / "report.html"),
            }
        )
        return
    _print_rows(outcomes)
    _print_errors(rows)
    print(f"done in {show_seconds(wall_s)}; open {output / 'report.html'}, or any *.json trace in ui.perfetto.dev")


def _profile(workers: int) -> ModelProfile:
    """Measure the profile of the demo's job for some workers, as `hocket train` without a plan does."""
    with tempfile.TemporaryDirectory(prefix="hocket-demo-") as folder:
        request = ProfileRequest(
            JobSpec.of(JOB), workers, budget_s=PROFILE_BUDGET_S, rounds=PROFILE_ROUNDS, written=folder
        )
        return ModelProfile.read(profile_job(request).path)


def _trained(
    best: dict[str, Evaluated], profile: ModelProfile, output: Path, steps: int, say: Callable[[str], None]
) -> list[DemoOutcome]:
    """Train all plans in turns, and predict each at the machine's pace.

    In turns, all plans see the same load of the machine.

    Arguments:
        best: plan of each strategy, by name.
        output: folder for the measured traces.
        steps: steps to train under each plan.
        say: function that prints a line of progress.

    Returns:
        Outcomes in the order of `best`.
    """
    plans, traces = [candidate.plan for candidate in best.values()], [output / f"{n}.measured.json" for n in best]

    def on_turn(number: int, done: int) -> None:
        if number == len(plans) - 1:
            say(f"   {done} steps under each")

    turns = Turns(profile=profile, traces=traces)
    found = train_in_turns(JOB, plans, steps=steps, turns=turns, on_turn=on_turn, pin=True)
    return [
        DemoOutcome(
            candidate,
            turned,
            paced_iteration_s(candidate.plan, profile, turned.slower),
            waits_share(read_trace(trace)),
        )
        for candidate, turned, trace in zip(best.values(), found, traces, strict=True)
    ]


def _check_text(text: Path) -> None:
    """Refuse a path that is not a readable text, or is too short for a batch."""
    from hocket.models.demo_job import BATCH_SIZE, SEQ
    from hocket.models.text import text_bytes

    expected, step = "a text to train on", "Leave --text out to train on Python's own files."
    try:
        found = len(text_bytes(text))
    except InputError as error:
        raise InputError(str(text), error.found, expected, step) from None
    if found <= BATCH_SIZE * SEQ:
        raise InputError(str(text), f"{found} bytes", f"{expected}, of more than {BATCH_SIZE * SEQ} bytes", step)


def _one_each(candidates: tuple[Evaluated, ...], workers: int) -> dict[str, Evaluated]:
    """Return the best plan of each strategy, by name, among plans on all workers.

    Except for data_parallel, only plans with several stages count.

    Arguments:
        candidates: candidates of a search, best first.

    Raises:
        InputError: no candidate uses all workers.
    """
    best: dict[str, Evaluated] = {}
    for candidate in candidates:
        used = {d for stage in candidate.plan.stages for d in stage.devices}
        if len(used) == workers and (len(candidate.plan.stages) > 1 or candidate.strategy == "data_parallel"):
            best.setdefault(candidate.strategy, candidate)
    if not best:
        raise InputError("--workers", f"{workers}, but no plan keeps all of them busy", "fewer", "Try 2 or 4.")
    return best


def _print_rows(outcomes: list[DemoOutcome]) -> None:
    figures = [outcome.row for outcome in outcomes]
    seconds = [
        s for row in figures for s in (row.predicted_iteration_s, row.paced_iteration_s, row.measured_iteration_s)
    ]
    second, times = in_seconds(seconds)
    byte, sizes = in_bytes([b for row in figures for b in (row.predicted_peak_bytes, row.measured_peak_bytes)])
    rows = [
        [
            row.strategy,
            f"{row.config} b{outcome.candidate.plan.microbatch_size}",
            *times[3 * k : 3 * k + 3],
            f"{row.error:+.1%}",
            f"{row.paced_error:+.1%}",
            *([f"{share:+.1%}" for share in row.parts.shares] if row.parts else ["-"] * 3),
            *sizes[2 * k : 2 * k + 2],
            show_number(row.samples_per_s),
            f"{outcome.summary.losses[-1]:.3f}",
        ]
        for k, (row, outcome) in enumerate(zip(figures, outcomes, strict=True))
    ]
    times_of = [f"pred. ({second})", f"paced ({second})", f"meas. ({second})", "error", "paced error"]
    parts = ["pace", "waits", "model"]
    peaks = [f"peak pred. ({byte})", f"meas. ({byte})"]
    columns = ["strategy", "config", *times_of, *parts, *peaks, "samples/s", "loss"]
    title = "an iteration and the peak memory of the fullest device, predicted and measured; the last loss"
    drop = (12, 10, 11, 13, 1, 3, 6)
    left_out = print_table(title, columns, rows, right=range(2, len(columns)), drop=drop)
    print(
        "  paced: the prediction at the pace that the machine had during the run; error = pace + waits for cores + "
        "model"
    )
    if left_out:
        print(f"  a wider terminal shows {', '.join(left_out)} as well")


def _print_errors(rows: Sequence[DemoRow]) -> None:
    """Print mean absolute errors, and the slowdown of the plan predicted fastest.

    It prints them for predictions before the run, and for predictions at the machine's pace.
    """
    for what, errors, slower in (
        ("predicted", [abs(row.error) for row in rows], slower_by(rows)),
        ("at the machine's pace", [abs(row.paced_error) for row in rows], slower_by(rows, paced=True)),
    ):
        print(
            f"  {what}: mean absolute error {sum(errors) / len(errors):.1%}, at most {max(errors):.1%}; "
            f"the strategy predicted fastest is {slower:.1%} slower than the fastest"
        )


def _loud(line: str) -> None:
    print(line, flush=True)


def _quiet(line: str) -> None:
    """Print nothing, because --json prints one document at the end."""
