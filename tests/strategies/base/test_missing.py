"""Missing conditions of strategies without candidates.

Every strategy names a condition, and a suggested batch has a candidate.
"""

import re
from itertools import product

import pytest

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import members, missing, strategy


def of(devices: int, layers: int, batch_size: int, sizes: tuple[int, ...], shard: str | None = None) -> SearchSpace:
    """Equal devices, and a model of equal layers."""
    profile = chain(layers, microbatch_sizes=sizes, device_type="cpu-core")
    return SearchSpace(profile, Cluster("c", (Level("server", devices, 1e9),), "cpu-core"), batch_size, shard=shard)


@pytest.mark.parametrize("name", members())
@pytest.mark.thinned(most=4)
def test_who_has_no_choice_says_what_is_missing(name: str) -> None:
    """A strategy without candidates says why, and a suggested batch has a candidate."""
    for shard, devices, layers, batch_size, sizes in product(
        (None, "none", "optimizer", "full"), (1, 2, 5), (1, 2, 4), (1, 5, 8, 200), ((8,), (5,), (1, 4))
    ):
        try:
            offered = list(strategy(name).choices(of(devices, layers, batch_size, sizes, shard)))
        except RefusedError:
            continue
        if offered:
            continue
        said = missing(name, of(devices, layers, batch_size, sizes, shard))
        assert len(said) > 10
        if named := re.search(r"or a batch of (\d+)", said):
            assert list(strategy(name).choices(of(devices, layers, int(named[1]), sizes, shard))), said


@pytest.mark.parametrize(
    ("name", "devices", "layers", "said"),
    [
        (
            "tick_tock",
            4,
            6,
            "tick_tock: no candidate for 4 devices and a batch of 7: a batch is 1 microbatch of 7 samples, or 3 of 3; every replica of both "
            "waves needs equally many: a multiple of 2 x the devices in use; use other microbatch sizes (hocket profile "
            "-b), or a batch of 12, 4 of 3",
        ),
        ("waves", 2, 6, "two waves are needed, with equally many each; use other microbatch sizes"),
        ("waves", 1, 6, "waves: no candidate for 1 device and a batch of 7: two or more devices are needed"),
        ("interleaved", 4, 3, "the model has 3 layers; 4 or more are needed"),
        ("flush", 4, 1, "the model has 1 layer; 2 or more are needed"),
        ("harmony", 5, 6, "each of 5 devices needs one or more; use other microbatch sizes (hocket profile -b), or a batch of 15, 5"),
    ],
)  # fmt: skip
def test_a_search_says_it(name: str, devices: int, layers: int, said: str) -> None:
    """A search with one strategy without candidates is refused with the condition."""
    one = of(devices, layers, 7, (3, 7))
    with pytest.raises(RefusedError, match=re.escape(said)):
        _ = search(one.profile, one.cluster, PlanRequest(one.batch_size, strategies=(name,))).best
