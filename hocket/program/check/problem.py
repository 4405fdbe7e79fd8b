"""Problem: one error in a program, with its place."""

from dataclasses import dataclass
from typing import NamedTuple

from hocket.program.instruction import Instruction
from hocket.program.program import Program


class Place(NamedTuple):
    """Place of an instruction: part, device, lane and position in the lane.

    The part is "prologue", "period" or "epilogue".
    """

    part: str
    device: int
    lane: str
    position: int

    def instruction(self, program: Program) -> Instruction:
        """Instruction of a program at this place."""
        found: Instruction = getattr(program, self.part)[self.device, self.lane][self.position]
        return found

    def __str__(self) -> str:
        return f"{self.part}, device {self.device}, lane {self.lane}, instruction {self.position}"


@dataclass(frozen=True)
class Problem:
    """One problem of a program.

    Attributes:
        code: machine-readable kind: structure, place, kind, lane, values, version, frees, missing, extra, meeting,
            deadlock, unwritten, freed, race, twice, leak, memory.
        message: text for people: the instruction, its device and lane, what is wrong, what was expected, and how to
            repair it.
        part, device, lane, position: place of the instruction. `part` is empty if there is no such instruction, because
            it is missing or because the structure itself is wrong; then unknown numbers are -1.
        instruction: the instruction at this place.
    """

    code: str
    message: str
    part: str = ""
    device: int = -1
    lane: str = ""
    position: int = -1
    instruction: Instruction | None = None

    @property
    def place(self) -> Place | None:
        """Place of the problem; None if it belongs to no instruction."""
        return Place(self.part, self.device, self.lane, self.position) if self.part else None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def problem_at(
    place: Place, instruction: Instruction, code: str, found: str, expected: str = "", mend: str = ""
) -> Problem:
    """Make a problem of one instruction.

    The message names the instruction and its complete place.

    Arguments:
        code: machine-readable kind of the problem, such as "deadlock"; `Problem` lists all kinds.
        found: predicate that says what is wrong.
        expected: predicate that says what would be right.
        mend: sentence that says how to repair the program.
    """
    where = (
        f"{instruction.name} on device {place.device}, lane {place.lane} ({place.part}, instruction {place.position})"
    )
    message = f"{where} {found}" + (f"; expected {expected}" if expected else "") + "." + (f" {mend}" if mend else "")
    return Problem(code, message, *place, instruction)
