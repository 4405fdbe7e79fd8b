"""Engine overhead of an instruction, without its layers."""

from itertools import count

from hocket.training.calibrate.engine_overhead import instruction_s


def test_what_does_not_grow_with_the_layers_is_the_engines() -> None:
    """Time that does not grow with the layers is engine overhead.

    With a clock that advances by 3 s at each call, every instruction takes 3 s, for any number of layers.
    """
    seconds = count(step=3.0)
    assert instruction_s(rounds=4, clock=lambda: next(seconds)) == 3.0


def test_it_is_a_fraction_of_a_second() -> None:
    """The overhead of an instruction is above 0 and far below a second.

    It is measured with the machine's own clock.
    """
    assert 0 < instruction_s(rounds=20) < 0.1
