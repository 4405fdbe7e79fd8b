"""Observer: receives a worker's reports and says whether to go on.

Rules of this file: no torch, no I/O. An engine calls these and knows nothing else of progress bars, checkpoints, signals
or other workers' deaths.
"""

from typing import Protocol

from hocket.program.instruction import Instruction


class Observer(Protocol):
    """Callbacks of an engine.

    All calls but `loss` come from the thread of the compute lane.
    """

    def waits(self, instruction: Instruction) -> None:
        """Report that the compute lane's next instruction waits for its inputs.

        Its indices are moved on to the current period.
        """

    def runs(self, instruction: Instruction) -> None:
        """An instruction starts: everything it reads is there."""

    def goes_on(self, periods: int) -> bool:
        """True to run another period.

        Called between periods with the number of periods begun: 0, 1, 2, ...

        The question comes one period ahead (0 and 1 before the first, then at each boundary the next number), because
        transfers run ahead of the compute lane by at most a period.

        False: leave out the periods that are left and run the epilogue. Every worker of a run gets False at the same
        number. It may block for as long as it takes to agree on that number.
        """

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Report the loss of one microbatch and its weight in the mean of the batch.

        Called on the worker that computes the loss.

        Microbatches count from 0 in this run.
        """


class Unobserved:
    """Watches nothing and always goes on."""

    def waits(self, instruction: Instruction) -> None:
        """Ignore it."""

    def runs(self, instruction: Instruction) -> None:
        """Ignore it."""

    def goes_on(self, periods: int) -> bool:
        """Always."""
        return True

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Ignore it."""
