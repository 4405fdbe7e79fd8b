"""Tensor fusion against the printed Algorithm 1, and against all possible fusions."""

from collections.abc import Iterator
from itertools import combinations, product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel
from hocket.planning.buckets.tensor_fusion import THREADS, Fusion, ReadyGradients, allocate, joint, least_chunk
from tests.planning.helpers.overlaps import V100, gradients, models
from tests.tiers import examples

FEW = (128, 1024, 4096)


def printed(found: ReadyGradients, model: OverlapModel, threads: tuple[int, ...], most: int, chunks: int) -> float:
    """T(K, L, Z): Algorithm 1, loop for loop."""
    sizes, computes = found.sizes_bytes, found.computes_s
    layers, width = len(sizes), sum(computes) / chunks
    table = [[[inf] * (chunks + 1) for _ in range(layers + 1)] for _ in range(most + 1)]
    for z in range(chunks + 1):
        table[0][0][z] = z * width
    for i in range(1, most + 1):
        for end in range(1, layers + 1):
            least = least_chunk(sum(computes[:end]), width, chunks)
            for z in range(1, chunks + 1):
                for before in range(end + 1):
                    for begin in range(least, z + 1):
                        for lanes in threads:
                            stage = model.overlapped(sum(sizes[before:end]), (z - begin) * width, lanes)
                            if z < chunks and stage.communicating_s > 0:
                                continue
                            table[i][end][z] = min(table[i][end][z], table[i - 1][before][begin] + stage.seconds)
    return table[most][layers][chunks]


def on_edges(fusion: Fusion, found: ReadyGradients, model: OverlapModel, chunks: int) -> float:
    """Value of the search for given buckets and threads.

    It is the best way in which their all-reduces begin at edges of chunks.
    """
    computes = found.computes_s
    width = sum(computes) / chunks
    ends = {z: z * width for z in range(chunks + 1)}
    for own, lanes in zip(fusion.buckets, fusion.threads, strict=True):
        size = sum(found.sizes_bytes[own.start : own.stop])
        least = least_chunk(sum(computes[: own.stop]), width, chunks)
        later: dict[int, float] = {}
        for z, begin in product(range(least, chunks + 1), ends):
            if least <= begin <= z:
                stage = model.overlapped(size, (z - begin) * width, lanes)
                if z == chunks or stage.communicating_s == 0:
                    later[z] = min(later.get(z, inf), ends[begin] + stage.seconds)
        ends = later
    return ends[chunks]


def all_ways(layers: int, most: int, threads: tuple[int, ...]) -> Iterator[Fusion]:
    """Every fusion with at most this many buckets, with all threads."""
    for buckets in range(1, min(most, layers) + 1):
        for inner in combinations(range(1, layers), buckets - 1):
            for lanes in product(threads, repeat=buckets):
                yield Fusion((*inner, layers), lanes)


@examples(40)
@given(gradients(5), models(), st.integers(1, 4), st.integers(1, 7))
def test_the_search_is_algorithm_1(found: ReadyGradients, model: OverlapModel, most: int, chunks: int) -> None:
    fusion = joint(found, model, FEW, most, chunks)
    most = min(most, len(found.sizes_bytes))
    assert len(fusion.ends) <= most
    assert on_edges(fusion, found, model, chunks) == pytest.approx(printed(found, model, FEW, most, chunks), rel=1e-12)


@examples(60)
@given(gradients(5), models(), st.integers(1, 4), st.integers(1, 40))
def test_within_the_bound_of_theorem_2(found: ReadyGradients, model: OverlapModel, most: int, chunks: int) -> None:
    """The result is at most (1 + (K - 1) / Z) times the optimum."""
    best = min(way.backward_s(found, model) for way in all_ways(len(found.sizes_bytes), most, FEW))
    took = joint(found, model, FEW, most, chunks).backward_s(found, model)
    buckets = min(most, len(found.sizes_bytes))
    assert took <= best * (1 + (buckets - 1) / chunks) * (1 + 1e-9)


@examples(60)
@given(gradients(5), models(), st.integers(1, 40), st.data())
def test_within_the_bound_of_theorem_1(
    found: ReadyGradients, model: OverlapModel, chunks: int, data: st.DataObject
) -> None:
    """The same bound holds for given buckets."""
    layers = len(found.sizes_bytes)
    inner = data.draw(st.sets(st.integers(1, layers - 1))) if layers > 1 else set()
    ends = (*sorted(inner), layers)
    best = min(Fusion(ends, lanes).backward_s(found, model) for lanes in product(FEW, repeat=len(ends)))
    fusion = allocate(found, model, ends, FEW, chunks)
    assert fusion.ends == ends
    assert fusion.backward_s(found, model) <= best * (1 + (len(ends) - 1) / chunks) * (1 + 1e-9)


def test_threads_follow_what_is_on_the_critical_path() -> None:
    """Few threads beside much computation, many beside little (LIBRA, figure 1(b))."""
    sizes = (20e6,) * 4
    much, little = (ReadyGradients(sizes, (each,) * 4) for each in (0.2, 0.002))
    assert joint(much, V100).threads[0] == THREADS[0]
    assert min(joint(little, V100).threads) >= 1024


def test_the_last_bucket_has_nothing_beside_it() -> None:
    """A bucket that is moved alone uses all threads."""
    found = ReadyGradients((1e8,) * 3, (0.01,) * 3)
    assert joint(found, V100).threads[-1] == THREADS[-1]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda g: joint(g, V100, ()), "threads"),
        (lambda g: joint(g, V100, (0,)), "threads"),
        (lambda g: joint(g, V100, (10**6,)), "leave no core for computation"),
        (lambda g: joint(g, V100, FEW, 0), "buckets"),
        (lambda g: joint(g, V100, FEW, 2, 0), "chunks"),
        (lambda g: allocate(g, V100, (2, 1)), "ascending"),
        (lambda g: allocate(g, V100, (1,)), "the last 2"),
        (lambda g: ReadyGradients((1.0,), ()), "one time for each size"),
        (lambda g: ReadyGradients((-1.0,), (1.0,)), "gradients.sizes_bytes.0"),
        (lambda g: ReadyGradients((0.0,), (1.0,)), "gradients of 0 bytes, or a backward of 0 s"),
    ],
)
def test_wrong_questions(wrong, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=told):
        wrong(ReadyGradients((1e6, 1e6), (0.01, 0.01)))
