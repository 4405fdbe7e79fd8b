"""Tests of the collector and of what is shown."""

import io
import json
from dataclasses import replace
from itertools import count, permutations
from math import isnan

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage, Predicted
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.worker.monitor.collector import Collector
from hocket.training.worker.monitor.display import JsonLines, TrainingBar
from hocket.training.worker.monitor.listener import RunSummary
from hocket.training.worker.monitor.summary_table import summary_table
from tests.system.tiny import Recorder, plan

NUMBERS = count()


def loss(
    step: int, value: float | None, samples: int = 2, weight: float | None = None, microbatch: int | None = None
) -> dict[str, object]:
    """A report of one microbatch, another one each time unless it is named."""
    microbatch = next(NUMBERS) if microbatch is None else microbatch
    given = samples if weight is None else weight
    return {
        "event": "loss", "step": step, "microbatch": microbatch, "sum": value, "weight": given, "samples": samples
    }  # fmt: skip


def started(chosen: Plan, first: int = 0) -> tuple[Collector, Recorder]:
    """A collector that knows where the run begins."""
    listener = Recorder()
    collector = Collector(chosen, listener)
    collector.take(0, {"event": "start", "first": first, "steps": first + 9, "checkpoint": None})
    return collector, listener


def test_the_loss_of_a_step_is_the_mean_by_weights() -> None:
    """The loss of a step is the weighted mean over its microbatches.

    A microbatch of weight 0 changes nothing. A step without any weight has no loss, as the mean over nothing in one
    process.
    """
    collector, listener = started(plan("flush"))
    for value, weight in ((6.0, 3.0), (0.0, 0.0), (4.0, 1.0), (0.0, 0.0)):
        collector.take(1, loss(0, value, weight=weight))
    for _ in range(4):
        collector.take(1, loss(1, 0.0, weight=0.0))
    assert [line["loss"] for line in listener.lines] == [2.5, None]


def test_the_loss_of_a_step_does_not_depend_on_the_order_of_reports() -> None:
    """The loss of a step does not depend on the order of reports.

    Threads of two waves, and replicas, report in any order. The sum is in the order of microbatches and bit-identical.
    """
    values = [0.1, 0.2, 0.3, 0.7]
    assert len({sum(order) for order in permutations(values)}) > 1
    found = set()
    for order in permutations(range(4)):
        collector, listener = started(plan("flush"))
        for microbatch in order:
            collector.take(
                microbatch % 2, loss(0, values[microbatch], weight=values[-1 - microbatch], microbatch=microbatch)
            )
        found.add(listener.lines[0]["loss"])
    assert len(found) == 1


def test_steps_come_in_order_whatever_order_microbatches_come_in() -> None:
    """Steps are shown in order, for any order of microbatches.

    Replicas of the last stage report different microbatches. A step is shown when it is complete and all earlier steps
    are shown.
    """
    collector, listener = started(plan("flush"), first=3)
    for step, value in ((4, 1.0), (3, 2.0), (4, 3.0), (4, 5.0), (4, 7.0), (3, 2.0), (3, 4.0)):
        collector.take(1, loss(step, value))
    assert listener.lines == []
    collector.take(1, loss(3, 8.0))
    assert listener.lines == [
        {"step": 4, "loss": 2.0, "samples": 32},
        {"step": 5, "loss": 2.0, "samples": 40},
    ]


def test_losses_that_overtake_the_start() -> None:
    """Losses that arrive before the start event are shown after it.

    Pipes of different workers are read in any order. Before the start event, the first step is unknown.
    """
    listener = Recorder()
    collector = Collector(plan("flush"), listener)
    collector.take(1, loss(5, 16.0, 8))
    assert listener.lines == []
    collector.take(0, {"event": "start", "first": 5, "steps": 9, "checkpoint": None})
    assert listener.losses == [2.0]


def test_a_loss_that_is_not_a_number() -> None:
    """A NaN loss is null in JSON and NaN in the summary.

    The run continues.
    """
    collector, listener = started(plan("flush"))
    collector.take(1, loss(0, None, 8))
    assert listener.losses == [None]
    collector.take(0, {"event": "done", "steps": 1, "iteration_s": None, "peak_memory_bytes": 5, "stopped": False})
    summary = collector.summary((4, 7))
    assert isnan(summary.losses[0])
    assert summary.peak_memory_bytes == {4: 5}
    assert summary.iteration_s is None


def evaluation(step: int, value: float | None, **metrics: float | None) -> dict[str, object]:
    """A report of an evaluation after some steps."""
    told = {"loss": value, "metrics": metrics, "samples": 21, "evaluation_s": 0.5, "at_s": 5.0}
    return {"event": "evaluation", "step": step, **told}


def test_an_evaluation_comes_after_its_step() -> None:
    """An evaluation that overtakes the losses of its step is told after the step, with the best one so far.

    A loss that is no number is never the best, if another is a number.
    """
    collector, listener = started(plan("flush"))
    for step, value in enumerate((None, 2.0, 1.0, 1.0)):
        collector.take(0, evaluation(step + 1, value, accuracy=None if value is None else value / 4))
        assert len(listener.evaluations) == step
        for _ in range(4):
            collector.take(1, loss(step, 3.0))
    assert [(info.step, steps) for info, steps in listener.evaluations] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [info.best_step for info, _ in listener.evaluations] == [1, 2, 3, 3]
    first, last = listener.evaluations[0][0], listener.evaluations[-1][0]
    assert isnan(first.loss)
    assert isnan(first.best_loss)
    assert isnan(first.metrics["accuracy"])
    assert (last.loss, last.best_loss, last.samples, last.metrics) == (1.0, 1.0, 32, {"accuracy": 0.25})


def test_what_is_shown_of_evaluations() -> None:
    """The table has the last and the best evaluation, a line of the log each; JSON lines have null for nan."""
    from rich.console import Console

    infos = [
        EvaluationInfo(4, 9, 32, 1.5, {"accuracy": 0.5}, 1.5, 4, 0.1),
        EvaluationInfo(9, 9, 72, float("nan"), {"accuracy": float("nan")}, 1.5, 4, 0.2),
    ]
    summary = RunSummary(steps=9, losses=(1.0,), evaluations=tuple(infos))
    table = summary_table(summary)
    assert "eval loss at the end" in table
    assert "not finite, accuracy not finite" in table
    assert "1.5000, after step 4" in table
    out, log = io.StringIO(), io.StringIO()
    lines = JsonLines(out, io.StringIO())
    for info in infos:
        lines.evaluated(info)
    lines.finished(summary)
    first, second, last = (json.loads(line) for line in out.getvalue().splitlines())
    assert first == {"step": 4, "eval_loss": 1.5, "eval_metrics": {"accuracy": 0.5}, "eval_s": 0.1}
    assert (second["eval_loss"], second["eval_metrics"]) == (None, {"accuracy": None})
    assert (last["eval_loss"], last["best_eval_loss"], last["best_eval_step"]) == (None, 1.5, 4)
    assert "eval_loss" not in RunSummary(steps=9, losses=(1.0,)).line()
    bar = TrainingBar(Console(file=io.StringIO(), force_terminal=False), log=log)
    bar.started(0, 9, None, None)
    bar.step({"step": 4, "loss": 2.0, "samples": 32})
    bar.evaluated(infos[0])
    assert log.getvalue().splitlines()[-1] == "step 4/9  eval loss 1.5000  accuracy 0.5"
    assert bar.line(60).endswith("4/9  loss 2.0000  eval loss 1.5000  accuracy 0.5")


def test_what_workers_find_is_told_once() -> None:
    """Each skipped step is told once, whichever workers report it, also where its loss was a warning.

    A warning is told once in a run: its number spreads, and later warnings would name innocent samples.
    """
    collector, listener = started(plan("flush"))
    reports = [(1, 2, "warning"), (1, 2, "skipped"), (0, 2, "skipped"), (0, 3, "warning"), (0, 3, "skipped")]
    for rank, step, kind in (*reports, (0, 3, "halt"), (1, 3, "halt")):
        text = f"{kind} {step}"
        collector.take(rank, {"event": "not_finite", "step": step, "text": text, "kind": kind, "halt": kind == "halt"})
    assert listener.notes == ["warning 2", "skipped 2", "skipped 3", "halt 3"]


def test_summary() -> None:
    """The summary has the median iteration time of the workers.

    Samples per second follow from it. Peaks are by device of the plan.
    """
    collector, _ = started(plan("flush"))
    for rank, pace in enumerate((1.0, 2.0, 9.0)):
        collector.take(
            rank,
            {
                "event": "done",
                "steps": 6,
                "iteration_s": pace,
                "peak_memory_bytes": rank,
                "stopped": False,
                "warm_steps": 4 - rank,
                "queued_share": 0.125 * rank,
                "optimizer": "SGD" if rank == 1 else "",
                "dtype": "float32",
                "device_type": "cpu-core",
            },
        )
    collector.take(0, {"event": "saved", "step": 6, "path": "there"})
    summary = collector.summary((0, 2, 5))
    assert (summary.warm_steps, summary.optimizer, summary.dtype) == (2.0, "SGD", "float32")
    assert summary.device_types == ("cpu-core",)
    assert summary.queued_share == 0.25
    assert (summary.iteration_s, summary.samples_per_s, summary.checkpoint) == (2.0, 4.0, "there")
    assert summary.peak_memory_bytes == {0: 0, 2: 1, 5: 2}


def test_lines_are_json() -> None:
    """Standard output holds JSON documents and nothing else; the last is the summary."""
    out, notes = io.StringIO(), io.StringIO()
    lines = JsonLines(out, notes)
    lines.note("by the way")
    lines.step({"step": 1, "loss": 0.5, "samples": 8})
    lines.finished(RunSummary(1, (0.5,), 0.25, 32.0, None, {0: 100}))
    first, last = [json.loads(text) for text in out.getvalue().splitlines()]
    assert first == {"step": 1, "loss": 0.5, "samples": 8}
    assert last["iteration_s"] == 0.25
    assert last["peak_memory_bytes"] == {"0": 100}
    assert notes.getvalue() == "hocket: by the way\n"


def bar_at(width: int, terminal: bool = True) -> tuple[TrainingBar, io.StringIO]:
    """Return a progress bar at step 6 of 1000, and the console's text.

    The console has `width` columns. The run writes checkpoints.
    """
    from rich.console import Console

    now_s = [0.0]
    text = io.StringIO()
    bar = TrainingBar(
        Console(file=text, width=width, force_terminal=terminal, legacy_windows=False), clock=lambda: now_s[0]
    )
    bar.started(0, 1000, 0.5, None)
    for step in range(1, 7):
        now_s[0] += 0.25
        bar.step({"step": step, "loss": 1.5, "samples": 8 * step})
    bar.saved(5, "saved/step-00000005")
    return bar, text


def test_bar_shows_prediction_against_measurement_once_warm() -> None:
    """The bar shows the prediction beside the measurement after warm-up.

    It shows the loss at once. Pace, time left and prediction follow after enough steps.
    """
    bar, text = bar_at(200)
    assert bar.figures({"loss": 1.5}) == (
        "loss 1.5000",
        "250 ms a step",
        "0:04:08 left",
        "500 ms predicted",
        "32 samples/s",
    )
    assert bar.line(200).endswith(" 6/1000  " + "  ".join(bar.figures({"loss": 1.5})) + "  saved step 5")
    bar.close()
    assert TrainingBar().figures({"loss": None}) == ("loss not finite",)
    assert "6/1000" in text.getvalue()


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 20, 7])
def test_the_number_of_steps_is_never_left_out(width: int) -> None:
    """The number of steps is always shown.

    In a narrow terminal the bar is left out first, then the least important figures. No figure is cut.
    """
    bar, _ = bar_at(width)
    bar.close()
    line = bar.line(width - 1)
    assert "6/1000" in line
    assert len(line) <= width - 1
    shown = line.partition("6/1000")[2].split("  ")[1:]
    assert shown == [*bar.figures({"loss": 1.5}), "saved step 5"][: len(shown)]
    if width == 80:
        assert shown[-1] == "500 ms predicted"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_end_names_the_newest_checkpoint_once(terminal: bool) -> None:
    """The end names the newest checkpoint once, below the table.

    Earlier checkpoints are not listed. No line is broken, and there is no blank line.
    """
    bar, text = bar_at(80, terminal)
    summary = RunSummary(
        6, (), 0.25, 32.0, 0.5, {0: 2**20, 1: 2**21}, checkpoint="saved/step-00000006", checkpoint_steps=6
    )
    bar.finished(summary)
    bar.close()
    said = text.getvalue()
    assert said.count("saved/step-00000006") == 1
    assert said.endswith("saved in saved/step-00000006\n")
    assert said.endswith(f"{summary_table(summary)}\nsaved in saved/step-00000006\n")
    if not terminal:
        assert said == f"{summary_table(summary)}\nsaved in saved/step-00000006\n"
        assert said.replace("\n", "").isprintable(), "no control characters where there is no terminal"


@pytest.mark.parametrize("resumed", [True, False])
def test_steps_after_the_newest_checkpoint_are_not_called_saved(resumed: bool) -> None:
    """With --on-nan go, a checkpoint of weights that are not finite is refused; the end does not call it saved."""
    collector, _ = started(plan("flush"))
    folder = "saved/step-00000004" if resumed else None
    collector.take(0, {"event": "start", "first": 4, "steps": 9, "checkpoint": folder})
    done = {"event": "done", "steps": 8, "iteration_s": None, "peak_memory_bytes": 5, "stopped": True}
    collector.take(1, loss(4, None, 8))
    collector.take(0, done)
    summary = collector.summary((0,))
    bar, text = bar_at(160)
    bar.finished(replace(summary, stopped=False))
    if resumed:
        newest = f"not saved; the newest checkpoint is {folder}"
        assert summary.stop == f"stopped after step 8, {newest}; --resume goes on"
        assert text.getvalue().endswith(f"\n{newest}\n")
    else:
        assert summary.stop == "stopped after step 8, not saved; no checkpoint was made"
        assert "saved in" not in text.getvalue()
        assert "not saved" not in text.getvalue()
    collector.take(0, {"event": "saved", "step": 8, "path": "there"})
    assert collector.summary((0,)).stop == "stopped after step 8, saved in there; --resume goes on"


def test_a_run_that_never_began_leaves_no_blank_line() -> None:
    """A run that never began prints nothing.

    The following error has no blank line before it.
    """
    from rich.console import Console

    text = io.StringIO()
    TrainingBar(Console(file=text, width=80)).close()
    assert text.getvalue() == ""


def test_the_table_of_a_summary() -> None:
    """The table has a line for each figure, the prediction beside the measurement, and fits a terminal of 80 columns."""
    summary = RunSummary(
        1200, (2.0, 1.5), 0.25, 32.0, 0.5, {0: 2**20, 1: 2**21}, {0: 2.0**20, 1: 1.1 * 2**21},
        skipped=2, queued_share=0.31, saving_s=0.125,
    )  # fmt: skip
    assert summary_table(summary).splitlines() == [
        "                        measured         predicted, beside measured",
        "steps trained           1,200",
        "loss of the last step   1.5000",
        "skipped updates         2 (not finite)",
        "iteration               250 ms           500 ms (100.0% more)",
        "waits for a core        up to 31%",
        "waits for checkpoints   125 ms (20.0%)",
        "samples/s               32",
        "peak memory, device 0   1.00 MiB         as measured to 10.0% more",
        "peak memory, device 1   2.00 MiB",
    ]
    many = replace(summary, peak_memory_bytes={d: (d + 1) * 2**20 for d in range(12)})
    assert summary_table(many).splitlines()[-2:] == [
        "peak memory, device 11   12.00 MiB        as measured to 10.0% more",
        "peak memory, device 0    1.00 MiB",
    ]
    wide = replace(summary, skipped=0, queued_share=0.0, peak_memory_bytes={d: (d % 6 + 1) * 2**20 for d in range(12)})
    assert max(map(len, summary_table(wide).splitlines())) < 80


@pytest.mark.parametrize("iteration_s", [None, 0.5])
def test_the_prediction_in_the_table(iteration_s: float | None) -> None:
    """The table says by how much the prediction was off, with or without a pace; without a prediction it has no column for it."""
    said = summary_table(RunSummary(3, (1.0,), iteration_s, 16.0, 0.4, {0: 10}))
    assert ("400 ms (20.0% less)" in said) == (iteration_s is not None)
    assert ("too few steps" in said) == (iteration_s is None)
    memory = RunSummary(3, (1.0,), 0.4, 16.0, 0.4, {0: 100, 1: 100, 2: 100}, {0: 99.0, 1: 100.0, 2: 102.5})
    assert "400 ms (as measured)" in summary_table(memory)
    assert "1.0% less to 2.5% more" in summary_table(memory)
    other = summary_table(replace(memory, predicted_peak_memory_bytes={0: 103.0}))
    assert "3.0% more" in other
    assert "predicted" not in summary_table(RunSummary(3, (1.0,), iteration_s, 16.0))
    assert "waits" not in summary_table(replace(memory, queued_share=0.1))
    assert "not finite" in summary_table(replace(memory, losses=(float("nan"),)))


def test_the_figures_of_a_step() -> None:
    """Learning rates, gradient norm and tokens are shown if a step has them; equal rates of groups once."""
    bar, now_s = timed_bar()
    line = {"loss": 1.0, "lr": [0.01, 0.01, None, 1e-5], "gradient_norm": 12.3456, "tokens": 640}
    for step in range(1, 11):
        now_s[0] += 0.25
        bar.step({"step": step, "samples": step * 8, **line})
    assert bar.figures(line) == (
        "loss 1.0000",
        "lr 0.01, 1e-05",
        "gradient norm 12.3",
        "250 ms a step",
        "0:04:08 left",
        "500 ms predicted",
        "32 samples/s",
        "2,560 tokens/s",
    )
    assert bar.figures({"loss": None, "lr": [None], "gradient_norm": None})[:2] == (
        "loss not finite",
        "gradient norm not finite",
    )


def test_prediction_is_handed_on() -> None:
    """The summary has the plan's prediction beside the measurement."""
    base = plan("flush")
    chosen = Plan(
        base.strategy, "tiny", 8, 2, base.stages, base.cluster, predicted=Predicted(0.125, 64.0, {0: 1.0, 1: 1.0})
    )
    collector, _ = started(chosen)
    collector.take(0, {"event": "done", "steps": 1, "iteration_s": 1.0, "peak_memory_bytes": 5, "stopped": False})
    assert collector.summary((0, 1)).predicted_iteration_s == 0.125


def test_what_is_said_of_a_run_that_was_ended() -> None:
    """The message of a stopped run has its step and its newest checkpoint.

    Without a checkpoint folder, it says that nothing was saved.
    """
    collector, _ = started(plan("flush"))
    assert (
        collector.stopped_at_once("saved")
        == "stopped at once before the first step was done; no checkpoint was made yet"
    )
    collector.take(1, loss(0, 16.0, 8))
    assert collector.stopped_at_once(None) == (
        "stopped after step 1; nothing was saved, because no --checkpoint DIR was given"
    )
    collector.take(0, {"event": "saved", "step": 1, "path": "saved/step-00000001"})
    assert "after step 1; the newest checkpoint is saved/step-00000001; --resume" in collector.stopped_at_once("saved")


def test_a_log_has_a_line_every_so_often() -> None:
    """A log has lines for the first and last step and twenty between them.

    A further line follows after a long pause.
    """
    from rich.console import Console

    now_s, out = [0.0], io.StringIO()
    bar = TrainingBar(Console(file=io.StringIO(), force_terminal=False), clock=lambda: now_s[0], log=out)
    bar.started(0, 1000, 0.5, None)
    for step in range(1, 1001):
        now_s[0] += 40.0 if step == 77 else 0.25
        bar.step({"step": step, "loss": 2.0 / step, "samples": step * 8})
    lines = out.getvalue().splitlines()
    assert lines[0] == "step 1/1000  loss 2.0000"
    assert lines[1].startswith("step 50/1000  loss 0.0400  250 ms a step  0:03:58 left  500 ms predicted  32 samples/s")
    steps = [int(line.split()[1].partition("/")[0]) for line in lines]
    assert steps == sorted([1, 77, *range(50, 1001, 50)])


def test_a_log_of_a_resumed_run_has_as_many_lines() -> None:
    """The lines are spread over the steps of the run, not over those that were trained before it."""
    from rich.console import Console

    out = io.StringIO()
    bar = TrainingBar(Console(file=io.StringIO(), force_terminal=False), clock=lambda: 0.0, log=out)
    bar.started(900, 1000, 0.5, None)
    for step in range(901, 1001):
        bar.step({"step": step, "loss": 1.0, "samples": step * 8})
    steps = [int(line.split()[1].partition("/")[0]) for line in out.getvalue().splitlines()]
    assert steps == [901, *range(905, 1001, 5)]


def test_a_checkpoint_is_no_part_of_a_steps_pace() -> None:
    """The time of a checkpoint is not part of a step's pace.

    It is part of the time left. If each step writes a checkpoint, it is part of the pace too.
    """
    bar, now_s = timed_bar()
    for step in range(1, 31):
        now_s[0] += 1.25 if step in (11, 21) else 0.25
        bar.step({"step": step, "loss": 1.0, "samples": step * 8})
        if step % 10 == 0:
            bar.saved(step, f"saved/step-{step:08}")
    left = "0:04:54 left"  # 970 steps of (18 x 250 ms + 1.25 s) / 19
    assert bar.figures({"loss": 1.0}) == ("loss 1.0000", "250 ms a step", left, "500 ms predicted", "32 samples/s")
    bar, now_s = timed_bar()
    for step in range(1, 6):
        now_s[0] += 1.25
        bar.step({"step": step, "loss": 1.0, "samples": step * 8})
        bar.saved(step, f"saved/step-{step:08}")
    assert bar.figures({"loss": 1.0})[1] == "1.25 s a step"


def test_the_pace_of_steps_that_come_in_bursts() -> None:
    """Reports of torchrun's workers come in bursts; the pace is that of the steps, not of the reports of a burst.

    Nothing is said of the pace before it is known. It is the same at the beginning and the end of a burst.
    """
    bar, now_s = timed_bar()
    said = set()
    for step in range(1, 1001):
        if step % 50 == 1:
            now_s[0] += 0.25
        bar.step({"step": step, "loss": 1.0, "samples": step * 8})
        said |= {bar.figures({"loss": 1.0})[1:2]}
        if step <= 150:
            assert said == {()}
    assert said == {(), ("5 ms a step",)}
    assert bar.figures({"loss": 1.0})[-1] == "1,600 samples/s"


def timed_bar() -> tuple[TrainingBar, list[float]]:
    """A bar at the start of a thousand steps, and its clock."""
    now_s = [0.0]
    bar = TrainingBar(clock=lambda: now_s[0])
    bar.started(0, 1000, 0.5, None)
    return bar, now_s


def test_a_run_with_nothing_to_do_has_saved_nothing() -> None:
    """A run with nothing to do says that its steps were trained before.

    It does not name a checkpoint folder that it did not write.
    """
    bar, text = bar_at(80)
    bar.finished(RunSummary(10, (), None, checkpoint="saved/step-00000010"))
    assert "10 steps trained before; none in this run" in text.getvalue()
    assert "saved in" not in text.getvalue()


def test_steps_too_few_for_a_pace_are_trained_and_saved() -> None:
    """A run with too few steps for a pace still reports and saves them.

    If every step fills or drains the pipeline (tick_tock, two steps), no iteration time is measured.
    """
    bar, text = bar_at(160)
    bar.finished(
        RunSummary(
            2,
            (5.6, 4.9),
            None,
            predicted_iteration_s=0.1,
            peak_memory_bytes={0: 2**20},
            checkpoint="saved/step-00000002",
            checkpoint_steps=2,
        )
    )
    said = " ".join(text.getvalue().split())
    assert (
        "steps trained 2 loss of the last step 4.9000 iteration too few steps 100 ms peak memory, device 0 1.00 MiB "
        "saved in saved/step-00000002" in said
    )


def test_a_summary_has_predicted_peaks_for_every_rank_of_a_group() -> None:
    """With tensor parallelism, all ranks of a group have the group's predicted peak."""
    four = Plan(
        "flush",
        "tiny",
        8,
        2,
        (PlanStage(("a",), (0,)), PlanStage(("b",), (1,))),
        Cluster("local", (Level("local", 4, 1e9),), "cpu-core"),
        predicted=Predicted(1.0, 8.0, {0: 100.0, 1: 200.0}),
        tensor=2,
    )
    collector, _ = started(four)
    for rank in range(4):
        done = {"event": "done", "steps": 1, "iteration_s": 1.0, "peak_memory_bytes": 50 + rank, "stopped": False}
        collector.take(rank, done)
    found = collector.summary((0, 1, 2, 3))
    assert found.predicted_peak_memory_bytes == {0: 100.0, 1: 100.0, 2: 200.0, 3: 200.0}
    assert found.peak_memory_bytes == {0: 50, 1: 51, 2: 52, 3: 53}
