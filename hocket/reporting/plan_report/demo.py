"""Report of the demo: predictions, measurements and loss curves of strategies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

from hocket.program.trace.error_parts import Parts
from hocket.reporting.charts.bars import loss_curves, paired_bars
from hocket.reporting.charts.svg import show_time
from hocket.reporting.plan_report import facts
from hocket.reporting.plan_report.page import PlanResults, draw, render
from hocket.util.units import show_bytes, show_number


@dataclass(frozen=True)
class DemoRow:
    """One strategy with its prediction and measurement; nan if not measured.

    Attributes:
        config: replicas of each stage in the papers' notation, such as '15-1'.
        predicted_peak_bytes, measured_peak_bytes: peak memory of the fullest device.
        samples_per_s: measured throughput.
        paced_iteration_s: iteration time predicted with each device as slow as it was during the run; nan if that was
            not measured.
        parts: prediction error in parts (pace, waits, model); None if unknown.
    """

    strategy: str
    config: str
    predicted_iteration_s: float
    measured_iteration_s: float
    predicted_peak_bytes: float
    measured_peak_bytes: float
    samples_per_s: float
    paced_iteration_s: float = nan
    parts: Parts | None = None

    @property
    def error(self) -> float:
        """(predicted - measured) / measured iteration time; nan if not measured."""
        return self._error(self.predicted_iteration_s)

    @property
    def paced_error(self) -> float:
        """Relative error of the prediction at the machine's pace; nan if not measured."""
        return self._error(self.paced_iteration_s)

    def _error(self, predicted_s: float) -> float:
        real = self.measured_iteration_s
        return (predicted_s - real) / real if isfinite(real) and real > 0 else nan


def slower_by(rows: Sequence[DemoRow], paced: bool = False) -> float:
    """Compute the slowdown of the strategy predicted fastest against the fastest.

    Both are compared by measured time.

    Arguments:
        paced: True to use predictions at the machine's pace.

    Returns:
        Relative slowdown, 0 if the prediction names the fastest strategy; nan without measurements.
    """
    known = [row for row in rows if isfinite(row.measured_iteration_s)]
    if not known:
        return nan
    chosen = min(known, key=lambda row: row.paced_iteration_s if paced else row.predicted_iteration_s)
    return chosen.measured_iteration_s / min(row.measured_iteration_s for row in known) - 1


def demo_html(
    rows: Sequence[DemoRow],
    losses: Mapping[str, Sequence[float]],
    fastest: PlanResults | None = None,
    *,
    log_loss: bool = False,
) -> str:
    """Build the report of `hocket demo`: a row and a loss curve for each strategy, and timelines of the fastest plan.

    Arguments:
        losses: loss of each step, by strategy.
        fastest: the plan to draw, the one measured to be fastest; None for no timelines.
        log_loss: True for a logarithmic loss axis.

    Returns:
        A self-contained HTML document.
    """
    best = min(
        (r for r in rows if isfinite(r.measured_iteration_s)), key=lambda r: r.measured_iteration_s, default=None
    )
    plan = fastest.plan if fastest else None
    return render(
        "demo.html",
        title="Hocket demo: prediction and measurement",
        rows=[(row is best, _cells(row)) for row in rows],
        tiles=_tiles(rows, losses, best),
        bars=paired_bars(
            [(f"{r.strategy} {r.config}", r.predicted_iteration_s, r.measured_iteration_s) for r in rows],
            "Iteration time, predicted and measured",
        ),
        losses=loss_curves(losses, log_loss) if any(losses.values()) else None,
        plan=plan,
        sentence=facts.sentence(plan) if plan else "",
        about=facts.about_strategy(plan) if plan else "",
        config=facts.configuration(plan) if plan else "",
        drawn=draw(fastest) if fastest else None,
    )


def _cells(row: DemoRow) -> tuple[str, ...]:
    return (
        row.strategy,
        row.config,
        show_time(row.predicted_iteration_s),
        _known(row.paced_iteration_s, show_time(row.paced_iteration_s)),
        _known(row.measured_iteration_s, show_time(row.measured_iteration_s)),
        _known(row.error, facts.signed(row.error)),
        _known(row.paced_error, facts.signed(row.paced_error)),
        *(facts.signed(share) if isfinite(share) else "–" for share in (row.parts.shares if row.parts else (nan,) * 3)),
        show_bytes(row.predicted_peak_bytes),
        _known(row.measured_peak_bytes, show_bytes(row.measured_peak_bytes)),
        show_number(row.samples_per_s),
    )


def _known(value: float, shown: str) -> str:
    return shown if isfinite(value) else "–"


def _tiles(
    rows: Sequence[DemoRow], losses: Mapping[str, Sequence[float]], best: DemoRow | None
) -> tuple[facts.Tile, ...]:
    errors = [abs(row.error) for row in rows if isfinite(row.error)]
    found = [facts.Tile("strategies", str(len(rows)), "predicted, then trained")]
    if best is not None:
        slowest = max(r.measured_iteration_s for r in rows if isfinite(r.measured_iteration_s))
        times = f"{slowest / best.measured_iteration_s:.2f} × as fast as the slowest"
        found.append(
            facts.Tile("fastest", best.strategy, f"{show_time(best.measured_iteration_s)} an iteration, {times}")
        )
    if errors:
        mean = sum(errors) / len(errors)
        found.append(
            facts.Tile("prediction error", f"{mean:.1%}", f"mean of absolute errors; at most {max(errors):.1%}")
        )
    paced = [abs(row.paced_error) for row in rows if isfinite(row.paced_error)]
    if paced:
        mean = sum(paced) / len(paced)
        found.append(
            facts.Tile(
                "at the machine's pace",
                f"{mean:.1%}",
                f"mean error of predictions at that pace; at most {max(paced):.1%}",
            )
        )
    ends = [(v[0], v[-1], name) for name, v in losses.items() if v and isfinite(v[-1])]
    if ends:
        first, last, name = min(ends, key=lambda end: (end[1], end[2]))
        found.append(facts.Tile("lowest loss", f"{last:.4g}", f"{name}, from {first:.4g}"))
    return tuple(found)
