"""Table of a run's summary, for people; this file has no torch and no I/O."""

from math import isnan

from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.worker.monitor.listener import RunSummary, best_of
from hocket.util.units import show_count, show_number, show_peaks, show_seconds

_NONE = 0.0005
_GAP = "   "


def summary_table(summary: RunSummary) -> str:
    """Write a summary as a table: a line for each figure, with the plan's prediction beside the measurement."""
    if not summary.losses and summary.iteration_s is None:
        return f"{show_count(summary.steps, 'step')} trained before; none in this run"
    rows = [("", "measured", "predicted, beside measured"), *_rows(summary)]
    if not any(predicted for _, _, predicted in rows[1:]):
        rows = [(name, measured, "") for name, measured, _ in rows[1:]]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{name:{widths[0]}}{_GAP}{value:{widths[1]}}{_GAP}{more}".rstrip() for name, value, more in rows)


def _rows(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Return the table's rows: figure, measured, predicted."""
    rows = [("steps trained", f"{summary.steps:,}", "")]
    if summary.losses:
        rows.append(("loss of the last step", shown_loss(summary.losses[-1]), ""))
    if summary.evaluations:
        best = best_of(summary.evaluations)
        metrics = evaluation_texts(summary.evaluations[-1])[1:]
        rows.append(("eval loss at the end", ", ".join([shown_loss(summary.evaluations[-1].loss), *metrics]), ""))
        rows.append(("best eval loss", f"{shown_loss(best.loss)}, after step {best.step:,}", ""))
    if summary.skipped:
        rows.append(("skipped updates", f"{summary.skipped:,} (not finite)", ""))
    if summary.loss_scale is not None:
        rows.append(("loss scale", f"{summary.loss_scale:,.0f}", ""))
    iteration_s, predicted_s = summary.iteration_s, summary.predicted_iteration_s
    predicted = show_seconds(predicted_s) if predicted_s else ""
    if iteration_s is None:  # all steps were in the pipeline's warm-up or cool-down
        rows.append(("iteration", "too few steps", predicted))
    else:
        off = f" ({_beside(predicted_s / iteration_s - 1)})" if predicted_s else ""
        rows.append(("iteration", show_seconds(iteration_s), predicted + off))
    if summary.queued:
        rows.append(("waits for a core", f"up to {summary.queued_share:.0%}", ""))
    if summary.saving_s and iteration_s is not None:
        share = summary.saving_s / (summary.saving_s + iteration_s * max(1, len(summary.losses)))
        rows.append(("waits for checkpoints", f"{show_seconds(summary.saving_s)} ({share:.1%})", ""))
    if summary.samples_per_s:
        rows.append(("samples/s", show_number(summary.samples_per_s), ""))
    if summary.mfu is not None:
        rows.append(("MFU", f"{summary.mfu:.1%}", ""))
    if summary.peak_memory_bytes:
        errors = _memory_errors(summary)
        for number, told in enumerate(_peaks(summary.peak_memory_bytes)):
            where, size = told.split(": ")
            rows.append((f"peak memory, {where}", size, errors if number == 0 else ""))
    return rows


def _peaks(peak_bytes: dict[int, int]) -> list[str]:
    """Return lines such as "device 0-7: 2.08 GiB"; of many different peaks, only the largest and the smallest."""
    shown = show_peaks(peak_bytes)
    if ":" in shown:
        return [f"device {one}" for one in shown.split("; ")]
    pieces = (piece.removesuffix(")").partition(" (") for piece in shown.split(", "))
    return [f"{where}: {size.split(' ', 2)[2]}" for size, _, where in pieces]


def evaluation_texts(info: EvaluationInfo) -> tuple[str, ...]:
    """Write the loss and the metrics of an evaluation, such as "eval loss 1.2345" and "accuracy 0.91"."""
    metrics = (f"{name} {'not finite' if isnan(value) else f'{value:.4g}'}" for name, value in info.metrics.items())
    return f"eval loss {shown_loss(info.loss)}", *metrics


def shown_loss(loss: float | None) -> str:
    """Format a loss; None and nan are "not finite"."""
    return "not finite" if loss is None or loss != loss else f"{loss:.4f}"


def _memory_errors(summary: RunSummary) -> str:
    """Describe the relative errors of the predicted device memory; empty without a prediction."""
    predicted = summary.predicted_peak_memory_bytes
    off = [predicted[d] / size - 1 for d, size in summary.peak_memory_bytes.items() if size and d in predicted]
    if not off:
        return ""
    least, most = _beside(min(off)), _beside(max(off))
    return least if least == most else f"{least} to {most}"


def _beside(off: float) -> str:
    """Describe the difference of a prediction from the measurement."""
    return "as measured" if abs(off) < _NONE else f"{abs(off):.1%} {'more' if off > 0 else 'less'}"
