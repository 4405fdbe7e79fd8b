"""Choice of the batch size, where a job allows any size up to a largest safe one.

Rules of this file:
- Planned sizes are all doublings of the smallest, and the largest.
- A larger batch is chosen only if its gain exceeds the tolerance of a tie. Samples are worth less in larger batches
  (docs/how-to/pick-a-batch-size.md), so the smallest of equally good batches wins.
Source: Narayanan's dissertation, section 3.3.3 (the maximum safe batch size of Algorithm 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hocket.errors import InputError, RefusedError
from hocket.planning.goals.subclusters import PartResult, Planned
from hocket.planning.search.result import TIE

F = TypeVar("F", bound=PartResult)


@dataclass(frozen=True)
class Batches(Generic[F]):
    """Best plan over several batch sizes, with the value of each batch size.

    Attributes:
        best: the chosen plan, of the best batch size.
        worth: by batch size, the value for the goal: samples per second, samples per dollar, or 1 / devices. None if
            no plan fits, or no sub-cluster serves the goal. Empty if only one batch size was planned.
    """

    best: Planned[F]
    worth: dict[int, float | None]

    @property
    def line(self) -> str:
        """The chosen batch size, and the relative values of the others, in one line."""
        chosen = self.best.batch_size
        most = self.worth.get(chosen) or 1.0
        without = "does not fit" if self.best.goal.objective == "time" else "misses the goal"
        others = ", ".join(
            f"{batch} {without}" if found is None else f"{batch} {found / most - 1:+.1%}"
            for batch, found in self.worth.items()
            if batch != chosen
        )
        return f"batch: {chosen}; others: {others or 'none'}"


def batches(smallest: int, largest: int) -> tuple[int, ...]:
    """Batch sizes to plan: the doublings of the smallest, and the largest.

    Raises:
        InputError: the largest is below the smallest.
    """
    if largest < smallest:
        raise InputError("--max-batch", str(largest), f"at least the batch size, {smallest}")
    found = [smallest]
    while 2 * found[-1] < largest:
        found.append(2 * found[-1])
    return tuple(dict.fromkeys((*found, largest)))


def best_batch(smallest: int, largest: int, planned: Callable[[int], Planned[F]]) -> Batches[F]:
    """Plan every batch size and choose the best.

    If nothing fits at any batch size, the result for the smallest is chosen: its search explains why. If no
    sub-cluster serves the goal at some sizes, the others are chosen from.

    Arguments:
        smallest, largest: batch sizes.
        planned: function that plans one batch size.

    Raises:
        InputError: the largest batch size is below the smallest, or planning raises it.
        RefusedError: planning refuses every batch size. The error is the one of the smallest batch size.
    """
    found: dict[int, Planned[F]] = {}
    refused: list[RefusedError] = []
    sizes = batches(smallest, largest)
    for batch in sizes:
        try:
            found[batch] = planned(batch)
        except RefusedError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    worth = {batch: _worth(found[batch]) if batch in found else None for batch in sizes} if len(sizes) > 1 else {}
    best, best_worth = min(found), 0.0
    for batch, own in worth.items():
        if own is not None and own > best_worth * (1 + TIE):
            best, best_worth = batch, own
    return Batches(found[best], worth)


def _worth(planned: Planned[F]) -> float | None:
    """Value of one batch size for the goal; None if nothing fits."""
    try:
        found = planned.worth
    except RefusedError:
        return None
    match planned.goal.objective:
        case "cost":
            return found.samples_per_usd or 0.0
        case "devices":
            return 1 / found.devices
    return planned.batch_size / found.iteration_s
