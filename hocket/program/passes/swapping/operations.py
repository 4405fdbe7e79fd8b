"""Operations of a compute lane, their tasks, and the next use of each value.

An operation is a group of instructions that run as one, such as a load and its forward. A task is one or more
operations in a row for which a device keeps values, such as the forwards of a pack of layers.

Rules of this file: it reads a compute lane and knows nothing of bytes, copies or lanes of swaps.
"""

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from hocket.program.instruction import Instruction, Kind, Value

NEVER = 1 << 60
"""Next use of a value that no later operation needs."""


class Habits(NamedTuple):
    """Properties of a strategy's order that swapping needs.

    Attributes:
        grouping: True if one task runs all microbatches (input-batch grouping).
        just_in_time: True if an update that directly follows the last backward of its stage belongs to the same task.
        peer: True if activations and gradients go directly from device to device; False if they go through the hosts.
        forward: number of stages of each forward task; () for one stage each.
    """

    grouping: bool = False
    just_in_time: bool = False
    peer: bool = True
    forward: tuple[int, ...] = ()


class Operation(NamedTuple):
    """Instructions that run as one.

    These are load and forward, recomputed forward and backward, an update, or a norm.

    Attributes:
        task: key of the operation's task. Consecutive operations with equal keys are one task.
        needs: values that must be on the device when the operation begins.
    """

    instructions: tuple[Instruction, ...]
    task: tuple[object, ...]
    needs: tuple[Value, ...]


class Operations:
    """The operations of a compute lane, in order. An operation is given by its index."""

    def __init__(self, compute: tuple[Instruction, ...], habits: Habits) -> None:
        self._all = _operations(compute, habits)
        self._ends = list(range(len(self._all)))
        for number in reversed(range(len(self._all) - 1)):
            if self._all[number].task == self._all[number + 1].task:
                self._ends[number] = self._ends[number + 1]
        self._needing: dict[Value, list[int]] = defaultdict(list)
        for number, operation in enumerate(self._all):
            for value in operation.needs:
                self._needing[value].append(number)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> Operation:
        return self._all[number]

    def end_of_task(self, number: int) -> int:
        """Number of the last operation in the task of operation `number`."""
        return self._ends[number]

    def next_use(self, value: Value, number: int) -> int:
        """First operation from `number` on that needs a value; NEVER if none does."""
        uses = self._needing.get(value, ())
        at = bisect_left(uses, number)
        return uses[at] if at < len(uses) else NEVER


def _operations(compute: tuple[Instruction, ...], habits: Habits) -> list[Operation]:
    found: list[Operation] = []
    begun: list[Instruction] = []
    packs = [pack for pack, size in enumerate(habits.forward) for _ in range(size)]  # the forward task of each stage
    for i in compute:
        begun.append(i)
        if i.kind is Kind.LOAD or i.again:
            continue
        before = found[-1] if found else None
        pack = packs[i.stage] if packs and i.kind is Kind.FORWARD else i.stage
        task: tuple[object, ...] = (i.kind, pack, -1 if habits.grouping else i.index)
        follows = before is not None and before.instructions[-1].kind is Kind.BACKWARD and before.task[1] == i.stage
        if i.kind is Kind.STEP and habits.just_in_time and follows and before is not None:
            task = before.task
        made = {v for one in begun for v in one.writes}
        needs = dict.fromkeys(v for one in begun for v in one.reads if v not in made)
        found.append(Operation(tuple(begun), task, tuple(needs)))
        begun = []
    return found
