"""How deep models may be: what is said to fit does, and one block more does not."""

import pytest

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.plan.largest import largest
from hocket.plan.packs import smallest_packs
from hocket.plan.search import search
from hocket.plan.swap_candidates import by_server, on_hosts
from hocket.profile.lengthened import lengthened, repeated_block
from hocket.profile.synthetic import chain
from hocket.strategies._choices import Situation

MODEL = chain(5, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb")
ROOM = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=1.5e9, host_memory_bytes=2.5e9)


def test_the_deepest_fit_and_one_block_more_does_not() -> None:
    """By the search, which proves and simulates; where values are swapped by the proof of hosts."""
    block = repeated_block(MODEL)
    assert block is not None
    found = {one.strategy: one for one in largest(MODEL, ROOM, 4, ("flush", "data_parallel"))}
    assert list(found) == ["harmony", "flush", "data_parallel"]
    for name in ("flush", "data_parallel"):
        for more in (0, 1):
            deeper = lengthened(MODEL, block, found[name].blocks + more)
            fitting = [one for one in search(deeper, ROOM, 4, strategies=(name,)).candidates if one.plan.swap is None]
            assert bool(fitting) == (more == 0), (name, more)
        assert found[name].layers == found[name].blocks
        assert found[name].weights_bytes == found[name].blocks * 100e6
    for more in (0, 1):
        deeper = lengthened(MODEL, block, found["harmony"].blocks + more)
        needs = by_server(on_hosts(smallest_packs(Situation(deeper, ROOM, 4)), deeper, ROOM), ROOM)
        assert (needs[0] <= 2.5e9) == (more == 0)


def test_what_cannot_be_deeper() -> None:
    """Without a block there is no answer; with too little memory the answer is none."""
    with pytest.raises(RefusedError, match="comes three times"):
        largest(chain(2), ROOM, 4)
    small = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=1e8, host_memory_bytes=2.5e9)
    assert {one.blocks for one in largest(MODEL, small, 4, ("flush",))} == {0}
