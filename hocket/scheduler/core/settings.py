"""Settings: what the mechanism leaves to whoever runs the cluster.

Where the dissertation does not say how its system behaves, the choice is a setting here, and its docstring says which value is
the dissertation's, which the public implementation's.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

from hocket.errors import InputError


@dataclass(frozen=True)
class Settings:
    """How rounds are made.

    Attributes:
        round_s: of a round; six minutes in section 5.7.
        recompute: when allocations are made anew: "events", in the first round after something came, went or changed, or
            "rounds", in every round.
        recompute_after_s: but not sooner than this after the last time, jobs that finished aside being left out meanwhile.
        order: who is next: "ratio", by X / f since the last allocation (section 5.5), or "deficit", by the time that the job
            was to have and had not, since it came, whatever allocations there were.
        queue: "global", one queue of all types, as Algorithm 2 has it, or "types", types one after the other in their order, each
            with its own queue, as the public implementation does.
        shuffle: take types in another order in every round, drawn from `seed`; the public implementation does it for policies
            that do not tell types apart.
        fill: give workers that nobody has a right to in a round to jobs that run there, whatever their allocation says.
        newcomers: what of that, until the next allocation, goes to jobs that came since the last: "fill", as much as to others, or
            "wait", nothing, as in the public implementation.
        gifts: time that nobody had a right to in a round: "free", it is not held against who took it, or "counted", it is, where
            such time is given again and nobody's ratio is higher, as in the public implementation.
        hold_first: an allocation made at time 0 holds for `recompute_after_s` like any other; not so in the public implementation,
            where 0 stands for never, so that the first change after it is answered in the next round.
        balance_after: rounds that a job may be behind before a greedy choice that is worth less than the allocation gives way to
            those that are owed most, see priorities.py; None to leave it as it is, as the public implementation does.
        checkpoint_s, restart_s: to save a job, and to load it again; charged when it moves.
        attempts: that a job has in a row before it is given up.
        seed: of all that is drawn.
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
            raise InputError("settings: round_s", str(self.round_s), "a number > 0")
        for name in ("recompute_after_s", "checkpoint_s", "restart_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InputError(f"settings: {name}", str(value), "a number >= 0")
        if self.checkpoint_s + self.restart_s >= self.round_s:
            found = f"{self.checkpoint_s:g} s and {self.restart_s:g} s of a round of {self.round_s:g} s"
            raise InputError("settings: checkpoint_s and restart_s", found, "less than a round together")
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
            object.__setattr__(self, "balance_after", None)  # the same, and files can say it
        if self.balance_after is not None and not 0 <= self.balance_after < float("inf"):
            raise InputError("settings: balance_after", str(self.balance_after), "a number of rounds >= 0, or nothing")
        if self.attempts < 1:
            raise InputError("settings: attempts", str(self.attempts), ">= 1")
