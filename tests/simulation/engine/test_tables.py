"""Memory of burst-parallel plans that merge microbatches: which pieces of a border stay on a device is its own matter."""

import random

import pytest

from hocket.planning.predict.predict import predict_choice, proven_peaks
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import strategy
from tests.drawn import cluster, model


@pytest.mark.parametrize("seed", [18, 35, 39])
def test_no_device_has_the_pieces_of_another(seed: int) -> None:
    """With a last microbatch of one sample, no simulated peak is above the device's own proof."""
    draw = random.Random(seed)
    profile, there = model(draw, most_layers=6), cluster(draw, draw.choice([(2,), (3,), (4,), (2, 2)]))
    space = SearchSpace(profile, there, 7)
    merging = [choice for choice in strategy("burst_parallel").choices(space) if choice.microbatch_size == 2]
    unlike = 0
    for choice in merging:
        proved = proven_peaks(space, "burst_parallel", choice)
        found = predict_choice(space, "burst_parallel", choice, most_forwards=24).peak_memory_bytes
        assert found.keys() == proved.keys()
        assert all(size <= proved[device] * (1 + 1e-9) for device, size in found.items())
        unlike += len({round(proved[device]) for stage in choice.stages[:1] for device in stage.devices}) > 1
    assert unlike
