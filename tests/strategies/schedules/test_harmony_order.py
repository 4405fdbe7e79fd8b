"""Options of strategy harmony, and refusals."""

from typing import Any

import pytest

from hocket.errors import InputError, RefusedError
from hocket.strategies.base.strategy import compile_strategy, complete, habits
from tests.program.helpers.programs import stages_on


@pytest.mark.parametrize(
    ("options", "devices", "reason"),
    [
        ({"forward": [3, 2]}, [(0, 1)] * 4, r"forward is \[3, 2\], 5 stages in total, and the plan has 4"),
        (
            {"forward": [2], "mode": "pipeline"},
            [(0,), (1,)],
            r"forward is \[2\], and mode is pipeline; .* need mode data",
        ),
    ],
)
def test_forward_tasks_that_do_not_go(options: dict[str, Any], devices: list[tuple[int, ...]], reason: str) -> None:
    """Forward tasks must cover all stages, and need data mode."""
    with pytest.raises(RefusedError, match=reason):
        compile_strategy("harmony", stages_on(devices), 4, options)


@pytest.mark.parametrize("forward", [3, [2, 0], [2, "1"], [True], None])
def test_forward_tasks_are_whole_numbers(forward: Any) -> None:
    """Values other than lists of whole numbers are refused."""
    with pytest.raises(InputError, match=r"options.forward.* a list of whole numbers >= 1, such as \[3, 2, 1\]"):
        complete("harmony", {"forward": forward})


def test_who_swaps_knows_forward_tasks() -> None:
    """Habits have the forward tasks, from a list in a plan or a tuple."""
    assert habits("harmony", {"forward": [2, 1]}) == habits("harmony", {"forward": (2, 1)})
    assert habits("harmony", {"forward": [2, 1]}).forward == (2, 1)
    assert habits("flush", {}).forward == ()
