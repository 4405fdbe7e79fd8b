"""Observer: receives a worker's reports and decides whether to continue.

It is an engine's only contact with progress bars, checkpoints, signals and lost workers. This file has no torch and no
I/O.
"""

from typing import Protocol

from hocket.program.instruction import Instruction


class Observer(Protocol):
    """Object that an engine tells what it does, and asks whether to run another period.

    All calls except `loss` come from the thread of the compute lane.
    """

    def waits(self, instruction: Instruction) -> None:
        """Learn that the next instruction of the compute lane waits for its inputs."""

    def runs(self, instruction: Instruction) -> None:
        """Report that an instruction starts; all its inputs are present."""

    def goes_on(self, periods: int) -> bool:
        """Decide whether a period follows after `periods` periods.

        The numbers of the calls are 0, 1, 2, ... A call comes one period ahead: the calls with 0 and 1 come before the
        first period, then one call at the end of each period. The reason is that transfers run ahead of the compute
        lane by at most a period. The call may block until all workers agree on the number of the last period.

        Returns:
            True to run another period, False to run the epilogue. All workers of a run get False at the same number.
        """

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Report the loss of one microbatch and its weight in the mean of the batch.

        It is called on the worker that computes the loss. Microbatches are counted from 0 in this run.
        """


class Unobserved:
    """Observer that ignores all reports and always continues."""

    def waits(self, instruction: Instruction) -> None:
        """Do nothing."""

    def runs(self, instruction: Instruction) -> None:
        """Do nothing."""

    def goes_on(self, periods: int) -> bool:
        """Return True: always continue."""
        return True

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Do nothing."""
