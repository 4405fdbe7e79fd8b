"""Observer: receives a worker's reports and decides whether to continue.

It is an engine's only contact with progress bars, checkpoints, signals and lost workers. This file has no torch and no
I/O.
"""

from typing import Protocol

from hocket.program.instruction import Instruction


class Observer(Protocol):
    """Callbacks of an engine.

    All calls except `loss` come from the thread of the compute lane.
    """

    def waits(self, instruction: Instruction) -> None:
        """Report that the compute lane's next instruction waits for its inputs.

        The instruction's indices are those of the current period.
        """

    def runs(self, instruction: Instruction) -> None:
        """Report that an instruction starts; all its inputs are present."""

    def goes_on(self, periods: int) -> bool:
        """True to run another period; False to run the epilogue next.

        It is called between periods with the number of periods begun: 0, 1, 2, ... The call comes one period ahead:
        with 0 and 1 before the first period, then at each boundary with the next number. The reason is that transfers
        run ahead of the compute lane by at most a period.

        Every worker of a run gets False at the same number. The call may block until the workers agree on that number.
        """

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Report the loss of one microbatch and its weight in the mean of the batch.

        It is called on the worker that computes the loss. Microbatches are counted from 0 in this run.
        """


class Unobserved:
    """Observer that ignores all reports and always continues."""

    def waits(self, instruction: Instruction) -> None:
        """Ignore it."""

    def runs(self, instruction: Instruction) -> None:
        """Ignore it."""

    def goes_on(self, periods: int) -> bool:
        """Continue always."""
        return True

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Ignore it."""
