"""Batches: which batch to plan for, where a job allows any up to a largest safe one.

Rules of this file: every doubling of the smallest is planned, and the largest itself. A larger batch is taken only where it does more
than the tolerance of a tie: samples are not worth the same in every batch (docs/how-to/pick-a-batch-size.md), so that of equals the smallest goes first.
Source: dissertation section 3.3.3 (the maximum safe batch size of Algorithm 1).
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
    """Batches that were planned.

    Attributes:
        best: the chosen plan.
        worth: by batch, samples a second or for a dollar, or one by the number of devices, as the goal has it; None where nothing fits.
    """

    best: Planned[F]
    worth: dict[int, float | None]

    @property
    def line(self) -> str:
        """The chosen batch, and the deficit of the others."""
        chosen = self.best.batch_size
        most = self.worth.get(chosen) or 1.0
        others = ", ".join(
            f"{batch} nothing fits" if found is None else f"{batch} {found / most - 1:+.1%}"
            for batch, found in self.worth.items()
            if batch != chosen
        )
        return f"batch: {chosen}; of {others or 'no other'}"


def batches(smallest: int, largest: int) -> tuple[int, ...]:
    """Doublings of the smallest batch, and the largest.

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
    """Plan every batch and choose the best.

    If nothing fits at any batch, the smallest is returned: its search explains why.

    Raises:
        InputError: as `batches`, and as planning does.
    """
    found = {batch: planned(batch) for batch in batches(smallest, largest)}
    worth = {batch: _worth(one) for batch, one in found.items()} if len(found) > 1 else {}
    best, best_worth = smallest, 0.0
    for batch, own in worth.items():
        if own is not None and own > best_worth * (1 + TIE):
            best, best_worth = batch, own
    return Batches(found[best], worth)


def _worth(planned: Planned[F]) -> float | None:
    """Value of one batch for the goal, to compare batches; None if nothing fits."""
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
