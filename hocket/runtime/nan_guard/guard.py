"""Guard: a device's reaction to losses or gradients that are nan or infinite.

For each update, the check costs one pass over its gradients and one number read from the device. A finding is reported
once. The origin of the number, that is the operation that computed it, is searched afterwards (inspector.py,
not_finite.py). A segment is one run of the program: prologue, some periods, epilogue.

The policies of `Options.on_nan`:

- stop: from the first finding on, this device does not step, so that its weights stay finite. The run is asked to end,
  and all workers end their segment after the same period.
- skip: the gradients of all devices are judged together, by the norm that clipping uses. Either all devices skip the
  update or none. After MOST_SKIPS skipped updates in a row the run ends as with stop.
- go: print one warning. Gradients are checked until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from hocket.profiling.capture.capture import Captured
from hocket.program.rule import Rule
from hocket.runtime.stage.data_stream import Stream
from hocket.util.compatibility import Feature, check_together

MOST_SKIPS = 10
"""Number of updates skipped in a row after which the run ends."""
_SHOWN_SAMPLES = 16
_SHOWN_NAMES = 3

Tell = Callable[[dict[str, Any]], None]
Named = Callable[[], Sequence[tuple[str, Tensor]]]


@dataclass(frozen=True)
class Finding:
    """The first nan or infinite loss or gradient of a device.

    `step` counts from 0; `text` describes the finding.
    """

    step: int
    text: str


class Guard:
    """Checks the losses and gradients of one device for nan and infinity.

    It is kept for all segments of a run.

    Attributes:
        found: the finding after which this device does not step; None if there is none.
        skipped: number of updates skipped so far.
        stream: data of the current segment.
    """

    def __init__(self, policy: str = "go", tell: Tell | None = None) -> None:
        """Create the guard of one device, without a finding.

        Arguments:
            policy: one of the policies of `Options.on_nan`.
            tell: callback for events that the process of the display shows (training/worker/monitor/collector.py).
        """
        self.policy, self._tell = policy, tell
        self.found: Finding | None = None
        self.stream: Stream | None = None
        self.skipped = self._row = 0
        self._warned = self._held = False
        self._judged: dict[int, bool] = {}

    def begin(self, stream: Stream) -> None:
        """Begin a segment; updates are counted from 0 again."""
        self.stream = stream
        self._judged.clear()

    def hold(self) -> None:
        """Skip all further optimizer steps silently."""
        self._held = True

    def loss(self, microbatch: int, value: float, samples: int, weight: float = 1.0) -> None:
        """Check the mean loss of a microbatch that this device computed.

        A microbatch with weight 0 is ignored.

        Arguments:
            samples: number of samples of the microbatch, or of the merged microbatches that begin with it.
            weight: weight of the loss in the mean of the batch.
        """
        if isfinite(value) or weight == 0 or self.stream is None or self.found is not None or self._held:
            return
        step = self._step(microbatch)
        text = f"the loss of {samples_of(self.stream, microbatch, samples)} is {value}"
        if self.policy == "stop":
            self._stop(Finding(step, text))
        elif not self._warned:
            self._warned = True
            more = "; training goes on" if self.policy == "go" else ""
            self._say(step, f"step {step + 1}: {text}{more}", "warning")

    def lets(self, microbatch: int, gradients: Sequence[Tensor], named: Named, squares: Tensor | None) -> bool:
        """True if a step may use these gradients.

        Arguments:
            microbatch: first microbatch of the update; identifies the update within a segment.
            gradients: all gradients of the step.
            named: returns the gradients by name.
            squares: sum of squares over all gradients of all devices; None if it is not computed.
        """
        if self.found is not None or self._held:
            return False
        go = self.policy == "go"
        if go and (self._warned or self._tell is None):
            return True
        good = _finite(gradients) if squares is None else isfinite(float(squares))
        if self.policy == "skip":
            return self._let(microbatch, good)
        text = "" if good else _bad_gradients(named, squares)
        if not text:
            return True
        step = self._step(microbatch)
        if go:
            self._warned = True
            self._say(step, f"step {step + 1}: {text}; training goes on", "warning")
            return True
        self._stop(Finding(step, text))
        return False

    def overflowed(self, microbatch: int, scale: float, smaller: float) -> None:
        """Tell that an update is left out, because its gradients overflow in float16.

        Arguments:
            microbatch: first microbatch of the update.
            scale: loss scale of the update.
            smaller: loss scale of the next one.
        """
        step = self._step(microbatch)
        text = f"step {step + 1} is skipped: its gradients overflow float16; loss scale {scale:,.0f} -> {smaller:,.0f}"
        self._say(step, text, "overflow")

    def _let(self, microbatch: int, good: bool) -> bool:
        """True if an update is applied under the policy `skip`.

        Every stage of the device asks; all get the answer to the first call for this update.

        Arguments:
            good: True if the gradients are finite.
        """
        if microbatch in self._judged:
            return self._judged[microbatch]
        self._judged = {microbatch: good}
        self._row = 0 if good else self._row + 1
        if not good:
            self.skipped += 1
            step = self._step(microbatch)
            text = f"step {step + 1} is skipped: its gradients are not finite ({self.skipped} so far)"
            self._say(step, text, "skipped")
            if self._row >= MOST_SKIPS:
                self._stop(Finding(step, f"gradients are not finite for {MOST_SKIPS} steps in a row"))
        return good

    def _stop(self, finding: Finding) -> None:
        self.found = finding
        if self._tell is not None:
            text = f"step {finding.step + 1}: {finding.text}; searching for the origin"
            self._tell({"event": "not_finite", "step": finding.step, "text": text, "kind": "halt", "halt": True})

    def _say(self, step: int, text: str, kind: str) -> None:
        if self._tell is not None:
            self._tell({"event": "not_finite", "step": step, "text": text, "kind": kind, "halt": False})

    def _step(self, microbatch: int) -> int:
        assert self.stream is not None
        return self.stream.step(microbatch)


def judged_together(captured: Captured, rule: Rule) -> Captured:
    """Mark a model so that each step waits for the norm of all gradients.

    Programs that are compiled for the returned model compute the norm before any step, with or without clipping.

    Arguments:
        rule: update rule of the program that will run.

    Raises:
        RefusedError: the stages update at different times.
    """
    if rule.kind != "sync":
        check_together("on_nan", Feature.SKIP, Feature.ASYNCHRONOUS)
    return with_norm(captured)


def with_norm(captured: Captured) -> Captured:
    """Mark a model so that programs compiled for it compute the norm of all gradients, with or without clipping."""
    return replace(captured, clip_grad_norm=inf) if captured.clip_grad_norm is None else captured


def samples_of(stream: Stream, microbatch: int, samples: int) -> str:
    """Return the indices of a microbatch's samples as text, such as "data[3, 7]".

    Arguments:
        microbatch: the microbatch, or the first of merged microbatches.
        samples: number of samples of the microbatch, or of all merged microbatches.
    """
    merged = 1
    while stream.samples(microbatch, merged) < samples:
        merged += 1
    found = stream.indices(microbatch, merged)
    shown = ", ".join(map(str, found[:_SHOWN_SAMPLES])) + (", ..." if len(found) > _SHOWN_SAMPLES else "")
    return f"data[{shown}]"


def faults(tensor: Tensor) -> str:
    """Describe nan and infinite elements of a tensor, such as "2 nan of 10".

    The text is empty if all elements are finite.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return ""
    with torch.no_grad():
        held = _values(tensor)
        nan, finite = int(held.isnan().sum()), int(held.isfinite().sum())
    infinite = held.numel() - nan - finite
    parts = [f"{count} {name}" for count, name in ((nan, "nan"), (infinite, "infinite")) if count]
    return f"{' and '.join(parts)} of {held.numel()}" if parts else ""


def _bad_gradients(named: Named, squares: Tensor | None) -> str:
    """Describe gradients with a norm that is not finite.

    The text is empty if all gradients are finite and only their norm overflows.
    """
    bad = [f"{name} ({told})" for name, tensor in named() if (told := faults(tensor))]
    if not bad:
        return "" if squares is None else "the norm of all gradients is not finite"
    more = f" and {len(bad) - _SHOWN_NAMES} more" if len(bad) > _SHOWN_NAMES else ""
    return f"the gradients of {', '.join(bad[:_SHOWN_NAMES])}{more} are not finite"


def _finite(gradients: Sequence[Tensor]) -> bool:
    """True if the gradients' norm is finite.

    It costs one pass over the gradients and one number read from the device.
    """
    if not gradients:
        return True
    with torch.no_grad():
        norms = torch._foreach_norm([_values(gradient) for gradient in gradients])  # type: ignore[attr-defined]
        return isfinite(float(torch.stack(norms).sum()))


def _values(tensor: Tensor) -> Tensor:
    return tensor._values() if tensor.is_sparse else tensor
