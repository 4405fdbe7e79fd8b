"""Settings of the scheduling mechanism.

Where Narayanan's dissertation does not specify a behavior, a setting selects it; its description names the value of
the dissertation, and the value of the public implementation, which is the simulator that Gavel's authors published.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

from hocket.errors import InputError


@dataclass(frozen=True)
class Settings:
    """Settings for rounds, queues and failures.

    Attributes:
        round_s: length of a round, in seconds; six minutes in section 5.7 of Narayanan's dissertation.
        recompute: when allocations are recomputed: "events", in the first round after a change, or "rounds", in every
            round.
        recompute_after_s: minimum seconds between two allocations; finished jobs are dropped meanwhile.
        order: job priority: "ratio", the granted fraction of time over the received one since the last allocation
            (X / f, Narayanan's dissertation, section 5.5), or "deficit", the seconds granted to the job and not
            delivered since its arrival, over all allocations.
        queue: "global", one queue for all types, as in Algorithm 2, or "types", one queue per type, served in the
            order of types, as in the public implementation.
        shuffle: True to draw the order of types from `seed` in every round; the public implementation does so for
            heterogeneity-agnostic policies.
        fill: True to give workers that the allocation leaves idle in a round to jobs that can run there, whatever
            their fraction is.
        newcomers: use of such workers by jobs that arrived since the last allocation: "fill", like other jobs, or
            "wait", not at all, as in the public implementation.
        gifts: accounting of time on such workers: "free", not deducted from the time that a job is owed, or
            "counted", deducted, as in the public implementation. With "counted", jobs that received less of such
            time before get it first.
        hold_first: True if an allocation made at time 0 is valid for `recompute_after_s` like any other. False in the
            public implementation, where time 0 means never, so the next round answers the first change after time 0.
        balance_after: rounds that a job may lag before a greedy selection worth less than the allocation is replaced
            by one in the order of owed time, see priorities.py; None to keep the greedy selection, as in the public
            implementation.
        checkpoint_s, restart_s: seconds to save a job and to load it again; charged when the job moves.
        attempts: consecutive failures after which a job is given up.
        seed: seed of all draws.
    """

    round_s: float = 360.0
    recompute: Literal["events", "rounds"] = "events"
    recompute_after_s: float = 0.0
    order: Literal["ratio", "deficit"] = "ratio"
    queue: Literal["types", "global"] = "global"
    shuffle: bool = False
    fill: bool = True
    newcomers: Literal["fill", "wait"] = "fill"
    gifts: Literal["free", "counted"] = "free"
    hold_first: bool = True
    balance_after: float | None = 2.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    attempts: int = 5
    seed: int = 0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not (isfinite(self.round_s) and self.round_s > 0):
            raise InputError("settings: round_s", str(self.round_s), "a finite number > 0")
        for name in ("recompute_after_s", "checkpoint_s", "restart_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InputError(f"settings: {name}", str(value), "a finite number >= 0")
        if self.checkpoint_s + self.restart_s >= self.round_s:
            found = f"{self.checkpoint_s:g} s and {self.restart_s:g} s in a round of {self.round_s:g} s"
            raise InputError("settings: checkpoint_s and restart_s", found, "a sum below round_s")
        for name, known in (
            ("recompute", ("events", "rounds")),
            ("order", ("ratio", "deficit")),
            ("queue", ("types", "global")),
            ("newcomers", ("fill", "wait")),
            ("gifts", ("free", "counted")),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"settings: {name}", repr(getattr(self, name)), f"one of {', '.join(known)}")
        if self.balance_after == float("inf"):
            object.__setattr__(self, "balance_after", None)  # same meaning, and JSON can represent it
        if self.balance_after is not None and not 0 <= self.balance_after < float("inf"):
            raise InputError("settings: balance_after", str(self.balance_after), "a number of rounds >= 0, or null")
        if self.attempts < 1:
            raise InputError("settings: attempts", str(self.attempts), ">= 1")
