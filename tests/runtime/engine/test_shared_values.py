"""Values that lanes of one device share if swaps have their own lanes."""

import threading

import pytest

from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.runtime.engine.shared_values import SharedValues

ACT, MARK = Value(ValueKind.ACTIVATION, 0, 0, 1), Value(ValueKind.MARK, 0, 0, 0)
OUT = Instruction(Kind.SWAP_OUT, 0, 0, 0, "swap_out", (ACT, MARK), (ACT._replace(copy=1),), (ACT, MARK))
READ = Instruction(Kind.FORWARD, 1, 0, 0, COMPUTE, (ACT,))


def never(_: Value) -> bool:
    """No transfer brings anything."""
    return False


def test_what_an_instruction_frees_is_there_for_others_while_it_waits_for_the_rest() -> None:
    """A freed value stays available while its instruction waits.

    A swap-out waits for the mark of the forward that reads the same value. It must not take the value before.
    """
    shelf, got = SharedValues(2, {ACT: "numbers"}), list[dict[Value, str]]()
    thread = threading.Thread(target=lambda: got.append(shelf.borrow(OUT, never, str)[0]))
    thread.start()
    assert shelf.borrow(READ, never, str)[0] == {ACT: "numbers"}
    assert ACT in shelf
    shelf.put({MARK: None})
    thread.join(5)
    assert got == [{ACT: "numbers", MARK: None}]
    assert not list(shelf.items())


def test_what_a_transfer_brings_is_taken_once_and_stays_for_the_next_reader() -> None:
    """A received value is taken once and stays for the next reader.

    A waiting lane is notified when a transfer begins.
    """
    begun, taken = set[Value](), list[Value]()

    def take(value: Value) -> str:
        taken.append(value)
        return "message"

    shelf, got = SharedValues(1, {}), list[dict[Value, str]]()
    thread = threading.Thread(target=lambda: got.append(shelf.borrow(READ, begun.__contains__, take)[0]))
    thread.start()
    begun.add(ACT)
    shelf.look_again()
    thread.join(5)
    begun.clear()
    assert shelf.borrow(READ, never, take)[0] == {ACT: "message"}
    assert (got, taken) == ([{ACT: "message"}], [ACT])


def test_who_waits_raises_what_another_lane_failed_with() -> None:
    """A waiting lane raises the error of a failed lane.

    It does not wait forever.
    """
    shelf = SharedValues(1, {})
    shelf.fail(ValueError("elsewhere"))
    with pytest.raises(ValueError, match="elsewhere"):
        shelf.borrow(READ, never, str)
