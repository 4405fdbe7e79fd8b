"""Common parts of all strategies."""

import pytest

from hocket.errors import RefusedError
from hocket.program.program import StageShape
from hocket.strategies.base.strategy import compile_strategy, config, rounds
from tests.program.helpers.programs import pipeline


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([(0,)], "1"),
        ([(0, 1, 2)], "3"),
        ([(0,), (1,), (2,)], "straight 3"),
        ([(0, 1), (2,)], "2-1"),
        ([(0,), (1,)] * 4, "straight 2 x 4 chunks"),
        ([(0, 1), (2, 3)] * 2, "2-2 x 2 chunks"),
        ([(0, 1)] * 3, "2 x 3 units"),
        ([(0,), (1,), (1,), (0,)], "4 stages on 2 devices"),
        ([(0,), (1,), (0,)], "3 stages on 2 devices"),
        ([(0, 1), (1, 2), (0, 1), (1, 2)], "4 stages on 3 devices"),
        ([(0, 1), (1, 2), (2, 0)], "2 waves x 3 partitions"),
        ([(2, 0), (0, 2)], "2 waves x 2 partitions"),
        ([(0, 1), (1, 2), (0, 2)], "3 stages on 3 devices"),
    ],
)
def test_a_configuration_tells_devices_from_stages(devices: list[tuple[int, ...]], said: str) -> None:
    """Configurations as the papers write them; chunks on shared devices are no stages."""
    assert config(tuple(StageShape(own) for own in devices)) == said


def test_rounds() -> None:
    """Stages of one pass over the devices, and passes; 0 if stages do not go in turn."""

    def of(*devices: tuple[int, ...]) -> tuple[int, int]:
        return rounds(tuple(StageShape(own) for own in devices))

    assert of((0,), (1,), (0,), (1,)) == (2, 2)
    assert of((0,), (1,)) == (2, 1)
    assert of((0,), (1,), (0,))[1] == 0
    assert of((0,), (1,), (1,), (0,))[1] == 0


@pytest.mark.parametrize(
    ("name", "microbatches", "replicas"),
    [("flush", 32_769, 1), ("gpipe", 10**30, 1), ("two_bw", 10**9, 1), ("pipedream", 1, 40_000)],
)
def test_a_program_beyond_all_use_is_refused(name: str, microbatches: int, replicas: int) -> None:
    """A period of too many forwards is refused at once, with its length."""
    last = tuple(range(1, replicas + 1))
    stages = (
        StageShape((0,), targets=(1,), batch=True),
        StageShape(last, sources=(0,), gradients=(0,), batch=True),
    )
    with pytest.raises(RefusedError, match=f"{max(microbatches, replicas):,} microbatches through 2 stages"):
        compile_strategy(name, stages, microbatches)


def test_any_batch_where_the_period_is_one_microbatch() -> None:
    """PipeDream's program does not depend on the batch."""
    stages = (
        StageShape((0,), targets=(1,), batch=True),
        StageShape((1,), sources=(0,), gradients=(0,), batch=True),
    )
    assert len(compile_strategy("pipedream", stages, 10**30)) == len(compile_strategy("pipedream", stages, 1))


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "why"),
    [
        ("pipedream", pipeline((2, 1), shard="full"), 4, "several weight versions are in use"),
        ("two_bw", pipeline((2, 2), shard="full"), 8, "several weight versions are in use"),
        ("flush", pipeline((2, 1), shard="full"), 5, "not divisible into whole rounds of the 2 replicas"),
        (
            "gpipe",
            pipeline((1, 2), tied=((0, 1),), shard="full"),
            4,
            "weights that several stages share would have to stay whole",
        ),
        ("fully_sharded", pipeline((2, 2)), 4, "stage 1 is on other devices than stage 0"),
    ],
)
def test_what_cannot_be_gathered_for_each_round_is_refused(name, stages, microbatches, why):
    """Full sharding is refused with a reason if weights cannot be gathered each round."""
    with pytest.raises(RefusedError) as caught:
        compile_strategy(name, stages, microbatches)
    assert why in caught.value.found
