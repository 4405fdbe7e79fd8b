"""The deepest models fit, and one more block does not."""

import re
from dataclasses import replace

import pytest

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.planning.swapping.candidates import by_server, on_hosts
from hocket.planning.swapping.max_depth import block_in_words, largest
from hocket.planning.swapping.search import smallest_packs
from hocket.profiling.analytic.repeat_blocks import lengthened, repeated_block
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import searched
from hocket.util.units import show_bytes

MODEL = chain(5, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb")
ROOM = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=1.5e9, host_memory_bytes=2.5e9)


def test_the_deepest_fit_and_one_block_more_does_not() -> None:
    """The reference is the search; with swapping, the proof of host memory."""
    block = repeated_block(MODEL)
    assert block is not None
    found = {one.strategy: one for one in largest(MODEL, ROOM, 4, ("flush", "data_parallel"))}
    assert list(found) == ["harmony", "flush", "data_parallel"]
    for name in ("flush", "data_parallel"):
        for more in (0, 1):
            deeper = lengthened(MODEL, block, found[name].blocks + more)
            fitting = [
                one
                for one in search(deeper, ROOM, PlanRequest(4, strategies=(name,))).candidates
                if one.plan.swap is None
            ]
            assert bool(fitting) == (more == 0), (name, more)
        assert found[name].layers == found[name].blocks
        assert found[name].weights_bytes == found[name].blocks * 100e6
        assert re.fullmatch(
            rf"{found[name].blocks + 1} blocks: device \d needs .* and has 1\.40 GiB", found[name].limit
        )
    for more in (0, 1):
        deeper = lengthened(MODEL, block, found["harmony"].blocks + more)
        needs = by_server(on_hosts(smallest_packs(SearchSpace(deeper, ROOM, 4))), ROOM)
        assert (needs[0] <= 2.5e9) == (more == 0)
    lacks = f"the host of server 0 needs {show_bytes(needs[0])} and has 2.33 GiB"
    assert found["harmony"].limit == f"{found['harmony'].blocks + 1} blocks: {lacks}"


def test_what_cannot_be_deeper() -> None:
    """Without a block there is an error; with too little memory the depth is 0."""
    with pytest.raises(RefusedError, match="repeated three times"):
        largest(chain(2), ROOM, 4)
    assert block_in_words(chain(2)) == ""
    assert block_in_words(MODEL).startswith("a block: 1 layer, layer0, 95.37 MiB of weights; the profile has 5 of it")
    small = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=1e8, host_memory_bytes=2.5e9)
    found = largest(MODEL, small, 4, ("flush",))
    assert {one.blocks for one in found} == {0}
    assert all("has 95.37 MiB" in one.limit for one in found)
    assert next(one.limit for one in found if one.strategy == "flush").startswith("3 blocks: device ")
    every = {one.strategy for one in largest(MODEL, small, 4)}
    assert every == {*searched(), "harmony"}
    assert {"tick_tock", "waves", "pipedream"} < every, "of other mathematics than one process, too"
    host = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=1.5e9, host_memory_bytes=1e8)
    (none,) = (one for one in largest(MODEL, host, 4, ("flush",)) if one.strategy == "harmony")
    assert re.fullmatch(r"3 blocks: the host of server 0 needs .* and has (95\.37 MiB|0\.093 GiB)", none.limit)


def test_unknown_host_memory_is_asked_for() -> None:
    """Without host_memory_bytes a plan that swaps has no known depth, and the limit says what is missing."""
    unknown = replace(ROOM, host_memory_bytes=None)
    (harmony,) = (one for one in largest(MODEL, unknown, 4, ("flush",)) if one.strategy == "harmony")
    assert harmony.blocks == 0
    assert "host memory of server 0 is unknown: set host_memory_bytes" in harmony.limit
