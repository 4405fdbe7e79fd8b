"""Goal of a plan: the fastest iteration, low cost, few devices, or a deadline.

Rules of this file: plain arithmetic. The number of iterations is the number of samples divided by the batch size,
rounded up. All devices of the sub-cluster that a plan is made for are paid by the hour, as long as the plan runs.
Source: Narayanan's dissertation, sections 4.4.3 (equation 4.4) and 6.3 (throughput for a dollar).
"""

from dataclasses import dataclass
from math import ceil, inf

from hocket.errors import InputError

OBJECTIVES = ("time", "cost", "devices")
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Goal:
    """Goal of a plan: objective, deadline and number of samples.

    Attributes:
        objective: "time": the fastest iteration on all devices. "cost": most samples for a dollar. "devices": the
            fewest devices that meet the deadline. With "cost" and "devices", a plan may use a part of the cluster.
        samples: number of samples to train on.
        deadline_s: longest time for these samples.
    """

    objective: str = "time"
    samples: float | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError("objective", repr(self.objective), f"one of {', '.join(OBJECTIVES)}")
        for name, value in (("samples", self.samples), ("deadline", self.deadline_s)):
            if value is not None and not 0 < value < inf:
                raise InputError(name, str(value), "> 0")
        if self.deadline_s is not None and self.samples is None:
            raise InputError(
                "deadline",
                "no number of samples",
                "the number of samples to train by the deadline",
                "Give --samples or --tokens.",
            )
        if self.objective == "devices" and self.deadline_s is None:
            raise InputError("objective", "devices, without a deadline", "a deadline", "Give --deadline, such as 30d.")

    def iterations(self, batch_size: int) -> int:
        """Number of batches for all samples; 0 if the number of samples is not given."""
        return 0 if self.samples is None else ceil(self.samples / batch_size)

    def ceiling_s(self, batch_size: int) -> float:
        """Longest iteration that meets the deadline, in seconds; infinite without one."""
        return inf if self.deadline_s is None else self.deadline_s / self.iterations(batch_size)


def goal_of(
    objective: str, samples: float | None, tokens: float | None, deadline_s: float | None, sequence: int = 0
) -> Goal:
    """Goal from the user's options.

    Arguments:
        objective: one of OBJECTIVES; if empty, "devices" with a deadline and "time" without a deadline.
        sequence: tokens of a sample; 0 if samples have no tokens.

    Raises:
        InputError: both tokens and samples are given; tokens of a model without a sequence length; as `Goal`.
    """
    if tokens is not None:
        if not sequence:
            expected = "an analytic model: samples of a profile have no token count"
            raise InputError("tokens", "a profile", expected, "Give --samples.")
        if samples is not None:
            raise InputError("tokens", "tokens and samples", "one of the two")
        samples = tokens / sequence
    return Goal(objective or ("time" if deadline_s is None else "devices"), samples, deadline_s)


@dataclass(frozen=True)
class GoalValue:
    """Value of a plan for a goal.

    Attributes:
        devices: number of devices that are paid for.
        iteration_s: seconds of an iteration.
        samples_per_usd: samples for a dollar; None if a price is not known.
        training_s: seconds for all samples; None if their number is not given.
        training_usd: price of all samples; None if their number is not given, or a price is not known.
    """

    devices: int
    iteration_s: float
    samples_per_usd: float | None
    training_s: float | None
    training_usd: float | None


def worth(goal: Goal, batch_size: int, iteration_s: float, devices: int, usd_per_hour: float | None) -> GoalValue:
    """Value of a plan for the goal.

    Arguments:
        iteration_s: seconds of an iteration of the plan.
        devices: number of devices that are paid for.
        usd_per_hour: price of all these devices together; None if it is not known.
    """
    iterations = goal.iterations(batch_size)
    training_s = iterations * iteration_s if iterations else None
    if usd_per_hour is None:
        return GoalValue(devices, iteration_s, None, training_s, None)
    each_usd = iteration_s / _HOUR_S * usd_per_hour / batch_size
    training_usd = None if training_s is None else training_s / _HOUR_S * usd_per_hour
    return GoalValue(devices, iteration_s, 1 / each_usd if each_usd > 0 else inf, training_s, training_usd)


def equation_4_4_s(tokens: float, parameters: float, devices: int, flops_per_s: float) -> float:
    """Seconds to train on all tokens, with recomputation: 8 T P / (n X).

    T: tokens. P: parameters. n: devices. X: floating-point operations per second of a device. The formula is equation
    4.4 of Narayanan's dissertation, from equation 4.2.
    """
    return 8 * tokens * parameters / (devices * flops_per_s)
