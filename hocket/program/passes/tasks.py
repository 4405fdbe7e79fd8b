"""Task: one entry of a device's compute order.

A compute order is the list of tasks of one device in their order. Such orders are all that a pipeline strategy
provides.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Work(StrEnum):
    """Kind of a task in a compute lane."""

    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"
    DROP = "D"  # at the end of a run: drop the values that the last wave keeps for the next


class Task(NamedTuple):
    """One task of a stage.

    A task is a forward or backward of a microbatch, an update, or a drop at the end of a wave.

    Attributes:
        index: number of the microbatch; for an update, number of the update.
    """

    work: Work
    stage: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which tasks do not need

    def __str__(self) -> str:
        return f"{self.work}{self.stage}.{self.index}"


# The compute order of one device when `total` microbatches are trained on: order(device, total).
Order = Callable[[int, int], list[Task]]
