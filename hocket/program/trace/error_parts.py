"""Parts of a prediction's error: the machine's pace, waits for cores, the model.

With P seconds of an iteration predicted and M measured,

    M - P = P (p - 1)  +  (M - U)  +  (U - p P)
            pace          waits       model

- p is the machine's pace: how many times as long as profiled the same work takes during the run.
- U is the length of the iteration if no worker had waited for a core that other processes used.

Pace and waits are measured independently of the prediction. The model's part is the rest, so the three parts always add
up to the whole error. See docs/explanation/prediction.md.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from hocket.program.instruction import Kind
from hocket.program.trace.trace import KINDS, Trace
from hocket.program.trace.update_time import predicted_update_s, update_s
from hocket.program.trace.without_queues import ends_without_waits

KERNEL, INSTRUCTIONS, NOTHING = "kernel", "instructions", "nothing"
_BY = {
    KERNEL: "by a small benchmark beside the run",
    INSTRUCTIONS: "by the run's own instructions",
    NOTHING: "not measured",
}
_COMPUTED = tuple(KINDS.index(kind) for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.STEP))


@dataclass(frozen=True)
class Parts:
    """Error of the predicted seconds of one iteration (or update), divided into three parts.

    The error is measured minus predicted seconds. It is positive if the run was slower than predicted.

    Attributes:
        pace: the machine's pace: how many times as long as profiled the same work takes during the run.
        pace_from: how the pace was measured. KERNEL: by a small benchmark beside the run. INSTRUCTIONS: by the run's
            own instructions. NOTHING: not measured; then `pace` is 1.
        predicted_s, measured_s: predicted and measured seconds of the iteration.
        unqueued_s: seconds that the iteration would have taken if no worker had waited for a CPU core.
    """

    pace: float
    pace_from: str
    predicted_s: float
    measured_s: float
    unqueued_s: float

    @property
    def paced_s(self) -> float:
        """Predicted seconds at the machine's pace during the run."""
        return self.pace * self.predicted_s

    @property
    def pace_s(self) -> float:
        """Seconds that the machine's pace adds."""
        return self.paced_s - self.predicted_s

    @property
    def waits_s(self) -> float:
        """Seconds that waiting for cores adds."""
        return self.measured_s - self.unqueued_s

    @property
    def model_s(self) -> float:
        """Remaining seconds: the model's error."""
        return self.unqueued_s - self.paced_s

    @property
    def shares(self) -> tuple[float, float, float]:
        """Pace, waits and model as shares of the measured time, each with the opposite sign of its seconds.

        Their sum is predicted_s / measured_s - 1, so it is negative if the run was slower than predicted.
        """
        return (-self.pace_s / self.measured_s, -self.waits_s / self.measured_s, -self.model_s / self.measured_s)

    @property
    def rows(self) -> tuple[tuple[str, float, float], ...]:
        """Rows for people: name, added seconds and share of each part.

        The last row is the whole error.
        """
        names = (
            f"machine's pace: {self.pace:.3f} times as long as profiled ({_BY[self.pace_from]})",
            "waits for cores used by other processes",
            "model: the rest",
            "all",
        )
        seconds = (self.pace_s, self.waits_s, self.model_s, self.measured_s - self.predicted_s)
        return tuple(zip(names, seconds, (*self.shares, sum(self.shares)), strict=True))

    def as_data(self) -> dict[str, Any]:
        """Seconds and pace as plain data for machines."""
        names = ("predicted_s", "measured_s", "pace", "pace_from", "pace_s", "waits_s", "model_s")
        return {name: getattr(self, name) for name in names}


def waits_share(measured: Trace) -> float:
    """Share of a measured iteration's time that waits for cores add.

    Returns:
        0 if the trace has no two updates of a stage, or no recorded waits.
    """
    if not measured.queued_s.any():
        return 0.0
    whole_s = update_s(measured)
    share = 1 - update_s(measured, ends_without_waits(measured)) / whole_s if whole_s > 0 else 0.0
    return share if isfinite(share) else 0.0


def pace_of(predicted: Trace, measured: Trace) -> tuple[float, str]:
    """The machine's pace during the run, and how it was measured.

    The pace is how many times as long as profiled the same work takes. If a small benchmark ran beside the run, the
    trace has the pace in its meta (`pace`). Otherwise the pace is a weighted median of the ratios of measured to
    predicted seconds. There is one ratio for each device, stage and kind (forward, backward, step), of median seconds
    without waits. Weights are predicted seconds, so that a single kind that differs from all others does not move the
    pace.

    Returns:
        The pace, and how it was measured: KERNEL (by the benchmark), INSTRUCTIONS (by the median), or NOTHING with
            pace 1.
    """
    told = measured.meta.get("pace")
    if isinstance(told, int | float) and isfinite(told) and told > 0:
        return float(told), KERNEL
    believed, took = _medians(predicted), _medians(measured)
    rows = [
        (took[key][0] / seconds, seconds * took[key][1])
        for key, (seconds, _) in believed.items()
        if key in took and seconds > 0 and took[key][0] > 0
    ]
    if not rows:
        return 1.0, NOTHING
    rows.sort()
    ratios, weights = np.array(rows).T
    at = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2))
    return float(ratios[min(at, len(ratios) - 1)]), INSTRUCTIONS


def _medians(trace: Trace) -> dict[tuple[int, int, int, bool], tuple[float, int]]:
    """Median seconds (without waits) and number of compute instructions.

    The key is (device, position of the kind in KINDS, stage, recomputed).
    """
    again = np.array([" again " in label for label in trace.labels], dtype=bool)
    chosen = np.flatnonzero(np.isin(trace.kind, _COMPUTED))
    rows = np.stack(
        [trace.device[chosen], trace.kind[chosen], trace.stage[chosen], again[trace.label[chosen]]]
        if len(chosen)
        else [np.zeros(0, dtype=np.int64)] * 4,
        axis=1,
    )
    seconds = np.maximum(0.0, trace.end_s - trace.start_s - trace.queued_s)[chosen]
    found = {}
    for key in np.unique(rows, axis=0):
        own = seconds[(rows == key).all(axis=1)]
        device, kind, stage, repeated = key.tolist()
        found[device, kind, stage, bool(repeated)] = (float(np.median(own)), len(own))
    return found


def parts_of(predicted: Trace, measured: Trace) -> Parts | None:
    """Parts of the error of a predicted update's seconds.

    Arguments:
        measured: trace with each tensor-parallel group as one device, as in the prediction.

    Returns:
        None if a trace has no two updates of a stage.
    """
    believed_s, real_s = predicted_update_s(predicted), update_s(measured)
    if not (isfinite(believed_s) and isfinite(real_s) and real_s > 0):
        return None
    return Parts(*pace_of(predicted, measured), believed_s, real_s, real_s * (1 - waits_share(measured)))
