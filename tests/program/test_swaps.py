"""Programs that swap: legal copies, swaps and markers, and their memory."""

import pytest

from hocket.program.check.check import check
from hocket.program.instruction import Value
from hocket.program.memory_bound.footprint import footprints
from hocket.program.program import Program
from hocket.program.text.parser import parse_program
from hocket.program.text.printer import print_program

HEAD = """hocket program 1
name by hand
rule sync
stride 1
admitted 0
swaps
stage 0: devices 0; targets 1; batch; update 1
stage 1: devices 0; sources 0; gradients 0; update 1

period

"""
# Two stages on one device that holds the weights of one of them; the gradient of stage 1 comes in by another lane.
COMPUTE = """device 0 compute
  swap_in 0 u0 : w.0v0~1 -> w.0v0~2
  load 0 #0 : -> in.0#0
  forward 0 #0 : in.0#0 w.0v0~2 -> act.0>1#0 stash.0#0
  swap_out 0 #0 : stash.0#0 -> stash.0#0~1 ~ stash.0#0
  drop 0 u0 : w.0v0~2 -> ~ w.0v0~2
  swap_in 1 u0 : w.1v0~1 -> w.1v0~2
  forward 1 #0 : act.0>1#0 w.1v0~2 -> stash.1#0
  backward 1 #0 : act.0>1#0 stash.1#0 w.1v0~2 -> grad.0>1#0 dw.1#0b0 ~ act.0>1#0 stash.1#0
  swap_in 1 u0 : opt.1v0~1 -> opt.1v0~2
  step 1 u0 : dw.1#0b0 w.1v0~2 opt.1v0~2 -> w.1v1 opt.1v1 mark.1#0.0 ~ dw.1#0b0 w.1v0~2 opt.1v0~2
  swap_in 0 u0 : w.0v0~1 -> w.0v0~4
  backward 0 #0 : in.0#0 stash.0#0~2 w.0v0~4 grad.0>1#0 -> dw.0#0b0 ~ in.0#0 stash.0#0~2 grad.0>1#0
  swap_in 0 u0 : opt.0v0~1 -> opt.0v0~2
  step 0 u0 : dw.0#0b0 w.0v0~4 opt.0v0~2 -> w.0v1 opt.0v1 mark.0#0.1 ~ dw.0#0b0 w.0v0~4 opt.0v0~2

"""
LANES = """device 0 swap_in
  swap_in 0 #0 : stash.0#0~1 mark.1#0.0 -> stash.0#0~2 ~ stash.0#0~1 mark.1#0.0

device 0 swap_out
  swap_out 1 u1 : w.1v1 w.1v0~1 -> w.1v1~1 ~ w.1v1 w.1v0~1
  swap_out 1 u1 : opt.1v1 opt.1v0~1 -> opt.1v1~1 ~ opt.1v1 opt.1v0~1
  swap_out 0 u1 : w.0v1 w.0v0~1 mark.0#0.1 -> w.0v1~1 ~ w.0v1 w.0v0~1 mark.0#0.1
  swap_out 0 u1 : opt.0v1 opt.0v0~1 -> opt.0v1~1 ~ opt.0v1 opt.0v0~1
"""
TEXT = HEAD + COMPUTE + LANES


def program(old: str = "", new: str = "") -> Program:
    """The program, with one place of its text changed."""
    assert TEXT.count(old) == 1 or not old, old
    return parse_program(TEXT.replace(old, new) if old else TEXT)


def test_swaps_by_hand_are_legal_and_printed_as_they_are_read() -> None:
    """A program with swaps, written by hand, is legal and printed as it was parsed.

    It has copies, reused host buffers, markers between lanes, and clean values that are dropped.
    """
    assert check(program()) == ()
    assert print_program(program()) == TEXT


def test_initial_and_final_values_lie_on_the_host() -> None:
    """A period begins and ends with all values on the host."""
    assert all(value.copy == 1 for value in program().initial(0))
    assert {str(value) for value in program().final(0, 3)} == {"w.0v3~1", "opt.0v3~1", "w.1v3~1", "opt.1v3~1"}


BYTES = {"w": 100.0, "opt": 30.0, "dw": 50.0, "stash": 7.0, "act": 3.0, "grad": 3.0, "in": 2.0, "mark": 0.0}


def of_value(value: Value) -> float:
    """Bytes of a value by kind."""
    return BYTES[value.what]


def test_memory_of_device_and_host_is_proved_apart() -> None:
    """Memory of device and host is proved separately.

    The host holds both stages' state and a stash. The device holds at most one stage's state, and values that may still
    wait to leave.
    """
    (host,) = footprints(program(), of_value, host=True).values()
    assert host.bytes == 2 * 130 + 7
    (device,) = footprints(program(), of_value).values()
    # The backward of stage 0: its weights, what it reads and its gradients; and what nothing has ordered to have left by then: all
    # that step 1 made, and of the period before the optimizer state of stage 0, which the next instruction swaps in again.
    assert device.bytes == (100 + 2 + 7 + 3 + 50) + 130 + 30
    codes = [p.code for p in check(program(), value_bytes=of_value, capacity_bytes={0: 321.0}, host_bytes={0: 266.0})]
    assert codes == ["memory"]
    (problem,) = check(program(), value_bytes=of_value, host_bytes={0: 266.0})
    assert "the host of device 0 holds" in problem.message
    assert check(program(), value_bytes=of_value, capacity_bytes={0: 322.0}, host_bytes={0: 267.0}) == ()


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("swaps\nstage", "stage", "kind", ["no swaps in a program without swapping"]),
        ("swap_in 1 u0 : w.1v0~1 -> w.1v0~2", "swap_in 1 u0 : w.1v0~1 -> w.1v0~3", "values", ["from host to device"]),
        ("swap_in 1 u0 : w.1v0~1 -> w.1v0~2", "swap_in 1 u0 : w.1v0~1 -> w.0v0~4", "values", ["a later copy"]),
        ("in.0#0 w.0v0~2 ->", "in.0#0 w.0v0~1 ->", "values", ["w.0v0~1, which is on the host", "Swap it in"]),
        ("in.0#0 w.0v0~2 ->", "in.0#0 w.1v0~2 ->", "version", ["reads w.1v0", "w.0v0"]),
        ("w.0v0~2 -> act.0>1#0", "w.0v0~2 -> act.0>1#0~2", "values", ["only swaps write other copies"]),
        (": w.0v1 w.0v0~1 mark", ": w.0v1 opt.0v0~1 mark", "values", ["older host copy to overwrite"]),
        ("stash.0#0~1 mark.1#0.0 ->", "stash.0#0~1 ->", "frees", ["mark.1#0.0"]),
        (" mark.1#0.0 -> stash.0#0~2 ~ stash.0#0~1 mark.1#0.0", " -> stash.0#0~2 ~ stash.0#0~1", "leak", ["mark.1#0.0"]),
        ("  swap_in 1 u0 : w.1v0~1 -> w.1v0~2\n", "", "unwritten", ["reads w.1v0~2"]),
        (" w.1v0~1\n  swap_out 1 u1 : opt", "\n  swap_out 1 u1 : opt", "values", ["also reads w.1v0~1", "overwrite and free"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(old: str, new: str, code: str, words: list[str]) -> None:
    """Each rule of copies and swaps names the instruction or value that breaks it."""
    found = check(program(old, new))
    assert found
    assert found[0].code == code, found[0]
    for word in words:
        assert word in found[0].message, found[0].message
