"""Callbacks of a job are checked when the job is created."""

from typing import Any

import pytest

from hocket.errors import InputError
from hocket.profiling.job.callbacks import check_callbacks, wants_gradient_norm


class Ends:
    """A callback with one method, which asks for the gradient norm."""

    wants_gradient_norm = True

    def on_end(self, info: Any) -> None:
        """Do nothing."""


class Starts:
    """A callback with another method."""

    def on_start(self, info: Any) -> None:
        """Do nothing."""


def test_callbacks_become_a_tuple() -> None:
    """A list is as good as a tuple; each object needs only one of the methods."""
    one, other = Ends(), Starts()
    assert check_callbacks([one, other], "Job.callbacks") == (one, other)
    assert wants_gradient_norm([other, one])
    assert not wants_gradient_norm([other])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Ends(), r"Job.callbacks: found a Ends; expected a tuple; .* Write \(callback,\)"),
        ([Ends], r"Job.callbacks\[0\]: found the class Ends; .* Make an object of it: Ends\(\)"),
        (
            (Ends(), print),
            r"Job.callbacks\[1\]: found a builtin_function_or_method without these methods; expected an obj",
        ),
    ],
)
def test_objects_that_are_no_callbacks(given: Any, said: str) -> None:
    """An object without a list, a class, and a function are refused, with the place and what to write."""
    with pytest.raises(InputError, match=said):
        check_callbacks(given, "Job.callbacks")
