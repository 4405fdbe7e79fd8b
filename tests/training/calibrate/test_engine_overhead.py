"""What the engine takes for an instruction besides the layers."""

from itertools import count

from hocket.training.calibrate.engine_overhead import instruction_s


def test_what_does_not_grow_with_the_layers_is_the_engines() -> None:
    """By a clock that moves on by 3 s whenever it is asked, every instruction takes 3 s, whatever its layers."""
    seconds = count(step=3.0)
    assert instruction_s(rounds=4, clock=lambda: next(seconds)) == 3.0


def test_it_is_a_fraction_of_a_second() -> None:
    """By the machine's own clock: more than nothing, and far less than a layer of a large model."""
    assert 0 < instruction_s(rounds=20) < 0.1
