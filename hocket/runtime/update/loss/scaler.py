"""Loss scaler: dynamic loss scaling for gradients in float16.

float16 has no positive number below 6e-8, and small gradients would become zero. So the backward starts with the loss
times a scale S, and the optimizer step divides the gradients by S. If S is too large, gradients overflow to infinity:
all devices leave this update out, and S is halved. After a number of finite updates in a row S is doubled
(Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2). The numbers are the defaults of
`torch.amp.GradScaler`.

Every device has a scaler. All scalers are equal at all times, because they judge each update by the same number: the
norm of all gradients, which the program sums over all devices before any step. The update rule must be synchronous.

S is a power of two, so scaling is exact except where float16 overflows or underflows.
"""

from dataclasses import dataclass

_GROWTH, _BACKOFF = 2.0, 0.5
GROWTH_INTERVAL = 2000
"""Finite updates in a row after which the scale is doubled."""
LEAST_SCALE = 1.0
"""Smallest scale. Gradients that overflow at this scale are not finite for another reason."""
MOST_SCALE = 2.0**126
"""Largest scale: in float32, its inverse is a normal number."""


@dataclass(frozen=True)
class LossScale:
    """State of a loss scaler between two updates; checkpoints contain it.

    Attributes:
        scale: factor of the losses.
        finite_updates: number of finite updates in a row with this scale.
    """

    scale: float = 65536.0
    finite_updates: int = 0

    def after(self, finite: bool, interval: int = GROWTH_INTERVAL) -> "LossScale":
        """Return the state after an update.

        Arguments:
            finite: True if all gradients of the update are finite.
            interval: finite updates in a row after which the scale is doubled.
        """
        if not finite:
            return LossScale(max(LEAST_SCALE, self.scale * _BACKOFF))
        if self.finite_updates + 1 < interval:
            return LossScale(self.scale, self.finite_updates + 1)
        return LossScale(min(MOST_SCALE, self.scale * _GROWTH))


class LossScaler:
    """Loss scale of one device, for all segments of a run.

    All stages of a device step with the scale of their update, although the first of these steps may change it.

    Attributes:
        state: scale of the next losses.
        skipped: number of updates left out because gradients overflowed.
    """

    def __init__(self, state: LossScale | None = None) -> None:
        self.state = state or LossScale()
        self.skipped = 0
        self._judged: tuple[int, float, bool] | None = None

    def begin(self) -> None:
        """Begin a segment; microbatches are counted from 0 again."""
        self._judged = None

    def of(self, microbatch: int) -> float:
        """Return the scale of an update's losses.

        Arguments:
            microbatch: first microbatch of the update.
        """
        if self._judged is not None and self._judged[0] == microbatch:
            return self._judged[1]
        return self.state.scale

    def overflows(self, microbatch: int, finite: bool) -> bool:
        """Return True if an update is left out because its gradients overflowed.

        The first call for an update changes the scale. At the smallest scale the answer is always False.

        Arguments:
            microbatch: first microbatch of the update.
            finite: True if all gradients of the update are finite.
        """
        if self._judged is None or self._judged[0] != microbatch:
            scale = self.state.scale
            overflow = not finite and scale > LEAST_SCALE
            self._judged = microbatch, scale, overflow
            self.state = self.state.after(finite)
            self.skipped += overflow
        return self._judged[2]
