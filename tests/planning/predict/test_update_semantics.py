"""Differences between a plan's updates and those of one process."""

import pytest

from hocket.planning.predict.update_semantics import synchronous_strategies, updates_of
from hocket.program.program import StageShape

FOUR = (
    StageShape((0,), targets=(1,), batch=True),
    *(StageShape((s,), sources=(s - 1,), targets=(s + 1,), gradients=(s - 1,)) for s in (1, 2)),
    StageShape((3,), sources=(2,), gradients=(2,), batch=True),
)


def test_the_synchronous_strategies() -> None:
    """The synchronous strategies are those that the README names."""
    assert synchronous_strategies() == (
        "burst_parallel",
        "data_parallel",
        "flush",
        "fully_sharded",
        "gpipe",
        "harmony",
        "interleaved",
        "model_parallel",
        "waves",
    )


@pytest.mark.parametrize(
    ("name", "options", "text", "sentence"),
    [
        ("flush", {}, "same", "flush has the mathematics of one process"),
        ("two_bw", {}, "1 update old", "two_bw computes gradients on weights 1 update old"),
        ("pipedream", {}, "up to 3 updates old, of 4", "weights up to 3 updates old and averages 4 samples an update, not 32"),
        ("pipedream", {"vertical_sync": True}, "3 updates old, of 4", "pipedream computes gradients on weights 3 updates old"),
        ("pipedream", {"naive": True}, "up to 3 updates old, of 4", "and backwards use the newest weights"),
    ],
)  # fmt: skip
def test_each_rule_in_words(name: str, options: dict[str, object], text: str, sentence: str) -> None:
    """Rules in a straight pipeline of four stages.

    They are equal to one process, one update late, or late by the inputs in flight.
    """
    found = updates_of(name, FOUR, 32, 4, options)
    assert found.text == text
    assert sentence in found.sentence(name)
    assert found.same is (name == "flush")


def test_replicas_average_a_microbatch_each() -> None:
    """PipeDream on one stage of three replicas uses the newest weights.

    Its updates average three microbatches.
    """
    one = (StageShape((0, 1, 2), batch=True),)
    assert updates_of("pipedream", one, 32, 4, {}).text == "updates of 12"
    assert updates_of("pipedream", one, 10, 4, {}).same
