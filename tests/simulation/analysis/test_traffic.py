"""Bytes that an iteration sends, counted by hand.

They are messages between stages, and rings of gradients.
"""

import pytest

from hocket.simulation.simulator import play, summarize
from tests.simulation.helpers.chains import Chain

A, W = 3e3, 8e6  # of one sample's activation, which its gradient has as well; of one stage's gradients

# Strategy, replicas by stage, microbatches a batch -> activations and gradients that cross, rings of a stage's gradients.
COUNTED = [
    # Each of the batch's microbatches crosses p - 1 borders forth and back.
    ("model_parallel", (1, 1, 1), 4, 2 * 2 * 4, {}),
    ("gpipe", (1, 1, 1), 4, 2 * 2 * 4, {}),
    ("flush", (1, 1, 1, 1), 8, 3 * 2 * 8, {}),
    ("two_bw", (1, 1, 1), 6, 2 * 2 * 6, {}),
    # A program of one microbatch, whose batch has eight.
    ("pipedream", (1, 1), 8, 2 * 8, {}),
    ("pipedream", (1, 1, 1, 1), 6, 3 * 2 * 6, {}),
    # Replicas sum gradients once a batch, and under PipeDream once a round of theirs.
    ("data_parallel", (4,), 8, 0, {4: 1}),
    ("flush", (2, 1), 8, 2 * 8, {2: 1}),
    ("two_bw", (2, 1), 8, 2 * 8, {2: 1}),
    ("pipedream", (2, 1), 8, 2 * 8, {2: 4}),
    ("pipedream", (3, 2), 6, 2 * 6, {3: 2, 2: 3}),
]


@pytest.mark.parametrize(("strategy", "widths", "microbatches", "crossings", "sums"), COUNTED)
def test_bytes_of_an_iteration(
    strategy: str, widths: tuple[int, ...], microbatches: int, crossings: int, sums: dict[int, int]
) -> None:
    """Each of n replicas sends 2 (n - 1) / n of a stage's gradients in a ring.

    All replicas together send 2 (n - 1) times the gradients.
    """
    case = Chain(strategy, widths, microbatches).case(activation_bytes=A, weights_bytes=W)
    found = summarize(play(case.program, case.costs))
    expected = crossings * A + sum(2 * (members - 1) * W * times for members, times in sums.items())
    assert found.sent_bytes == {"server": pytest.approx(expected)}
    assert sum(found.sent_bytes_between.values()) == pytest.approx(expected)


@pytest.mark.parametrize("strategy", ["flush", "pipedream"])
def test_bytes_of_a_batch_whose_last_microbatch_is_smaller(strategy: str) -> None:
    """Seven samples cross both boundaries in both directions.

    The number of microbatches in the program's period does not matter.
    """
    case = Chain(strategy, (1, 1, 1), 4, samples=(2, 2, 2, 1)).case(activation_bytes=A, weights_bytes=W)
    assert summarize(play(case.program, case.costs)).sent_bytes == {"server": pytest.approx(7 * 2 * 2 * A)}
