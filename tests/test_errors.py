"""errors.py: a message names place, found, expected and next step; exit codes tell your input from our bug."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import errors
from hocket.errors import HocketError, InputError, InternalError, ProgramError, WorkerLost, nearest
from hocket.printable import printable


def test_a_message_has_its_four_parts_in_order() -> None:
    """Place, found, expected and next step stand in the message, in this order."""
    error = InputError("plan.yaml: stages.2", "'x'", "a number", "Write a number.")
    assert str(error) == "plan.yaml: stages.2: found 'x'; expected a number. Write a number."


def test_a_message_keeps_its_lines() -> None:
    """A part of several lines is shown as such; other control characters are escaped."""
    assert str(InputError("job.py", "a\nb\x07")) == "job.py: found a\nb\\x07"


def test_parts_that_are_missing_leave_no_trace() -> None:
    """A part that is not known leaves no punctuation behind."""
    assert str(InputError("plan.yaml")) == "plan.yaml"
    assert str(InputError("plan.yaml", expected="a file")) == "plan.yaml: expected a file"
    assert str(InputError("plan.yaml", next_step="Do it.")) == "plan.yaml. Do it."


@given(*[st.text(min_size=1, max_size=20)] * 4)
def test_every_part_can_be_read_back(place: str, found: str, expected: str, step: str) -> None:
    """Whatever the parts are, all of them stand in the message, control characters as escapes, and in the fields."""
    error = InputError(place, found, expected, step)
    assert (error.place, error.found, error.expected, error.next_step) == (place, found, expected, step)
    assert all(printable(part, lines=True) in str(error) for part in (place, found, expected, step))


def test_exit_codes() -> None:
    """2 for the user's input, 1 for an illegal program, 3 for a lost worker, 70 for our bug."""
    codes = {kind: kind.exit_code for kind in (InputError, ProgramError, WorkerLost, InternalError)}
    assert codes == {InputError: 2, ProgramError: 1, WorkerLost: 3, InternalError: 70}


def test_every_error_can_be_caught_at_once() -> None:
    """Each error of the module derives from HocketError and says in a docstring what it means."""
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(kinds) >= 7
    assert all(issubclass(k, HocketError) and k.__doc__ for k in kinds)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpip", "Did you mean 'gpipe'?"),
        ("pipedrem", "Did you mean 'pipedream'?"),
        ("GPIPE", "Did you mean 'gpipe'?"),
        ("zzz", ""),
        ("a100", "Did you mean 'a100-40gb' or 'a100-80gb'?"),
        ("p10", ""),
        ("p200", ""),
        ("b2b", "Did you mean 'b2b-100'?"),
        ("b2b-", "Did you mean 'b2b-100'?"),
        ("a100_80gb", "Did you mean 'a100-80gb'?"),
        ("a100-96gb", ""),
        ("model (batch 33)", "Did you mean 'model (batch 32)'?"),
    ],
)
def test_nearest(name: str, hint: str) -> None:
    """A near name is offered; where nothing is near, or the number is another, nothing is."""
    assert (
        nearest(name, ["gpipe", "pipedream", "p100", "a100-40gb", "a100-80gb", "b2b-100", "model (batch 32)"]) == hint
    )
