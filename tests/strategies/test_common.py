"""What all strategies share."""

import pytest

from hocket.program.program import StageShape
from hocket.strategies._common import config, rounds


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([(0,)], "1"),
        ([(0, 1, 2)], "3"),
        ([(0,), (1,), (2,)], "straight 3"),
        ([(0, 1), (2,)], "2-1"),
        ([(0,), (1,)] * 4, "straight 2 x 4 chunks"),
        ([(0, 1), (2, 3)] * 2, "2-2 x 2 chunks"),
        ([(0, 1)] * 3, "2 x 3 chunks"),
        ([(0,), (1,), (1,), (0,)], "4 stages on 2 devices"),
        ([(0,), (1,), (0,)], "3 stages on 2 devices"),
        ([(0, 1), (1, 2), (0, 1), (1, 2)], "4 stages on 3 devices"),
    ],
)
def test_a_configuration_tells_devices_from_stages(devices: list[tuple[int, ...]], said: str) -> None:
    """As the papers write it; chunks are no stages of a straight pipeline, for they share devices."""
    assert config(tuple(StageShape(own) for own in devices)) == said


def test_rounds() -> None:
    """How many stages one round over the devices has, and how many rounds there are; none where they do not go in turn."""

    def of(*devices: tuple[int, ...]) -> tuple[int, int]:
        return rounds(tuple(StageShape(own) for own in devices))

    assert of((0,), (1,), (0,), (1,)) == (2, 2)
    assert of((0,), (1,)) == (2, 1)
    assert of((0,), (1,), (0,))[1] == 0
    assert of((0,), (1,), (1,), (0,))[1] == 0
