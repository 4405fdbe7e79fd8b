"""The stream of samples and random numbers is the same whatever the plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.profiling.data.seeding import mixed
from hocket.runtime.stage.data_stream import Stream
from tests.runtime.helpers.plans import Case, captured


def stream(batch_size: int, size: int, start: int = 0) -> Stream:
    """The stream of a small job; its plan has these sizes."""
    graph = captured("gpt")
    return Stream(graph.job, Case("gpipe", (1, 1), batch_size, size).plan(graph).batches, start)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 100))
def test_every_sample_once_an_epoch(batch_size, size, start):
    """An epoch has every sample once.

    Microbatches follow one another in the stream without gap or overlap.
    """
    size = min(size, batch_size)
    found = stream(batch_size, size, start)
    total = len(found.job.data)
    indices, microbatch = [], 0
    while len(indices) < 2 * total:
        assert found.position(microbatch) == start + len(indices)
        own = found.indices(microbatch)
        assert len(own) == found.samples(microbatch)
        indices += own
        microbatch += 1
    skip = -start % total
    assert sorted(indices[skip : skip + total]) == list(range(total))


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 16))
def test_microbatch_sizes_cut_the_same_stream(batch_size, size, other):
    """However batches are cut, the samples come in the same order."""
    one, two = stream(batch_size, min(size, batch_size)), stream(16, other)
    first = [i for m in range(40) for i in one.indices(m)]
    second = [i for m in range(40) for i in two.indices(m)]
    common = min(len(first), len(second))
    assert first[:common] == second[:common]


def test_seeds_follow_from_layer_and_place():
    """Seeds depend on the layer and the position in the stream.

    They differ between layers and microbatches. A later segment that begins at the same position has the same seeds.
    """
    one = stream(8, 2)
    seeds = {(m, layer): one.seed_of(m)(layer) for m in range(30) for layer in range(30)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds.values())
    later = stream(8, 2, start=one.position(7))
    assert [later.seed_of(m)(3) for m in range(5)] == [seeds[7 + m, 3] for m in range(5)]


def test_seeds_depend_on_the_jobs_seed_in_every_bit():
    """Neighbouring numbers give unlike seeds: about half of the bits differ."""
    differing = [(mixed(k) ^ mixed(k + 1)).bit_count() for k in range(1000)]
    assert 30 < sum(differing) / len(differing) < 34
    assert min(differing) > 10


def test_a_negative_start_is_refused():
    """A segment cannot begin before the data."""
    with pytest.raises(InputError):
        stream(8, 2, start=-1)
