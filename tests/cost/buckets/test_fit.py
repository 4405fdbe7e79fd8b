"""Fits of overlap models find the model that samples were drawn from."""

import random

import pytest
from hypothesis import given

from hocket.cost.buckets.fit import Computed, Moved, fit
from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel
from tests.planning.helpers.overlaps import V100, models
from tests.tiers import examples

THREADS = (128, 256, 512, 1024, 2048, 4096)


def drawn(model: OverlapModel, noise: float, seed: int) -> tuple[list[Computed], list[Moved]]:
    """Tasks with the seconds of a model, each changed by up to `noise`."""
    rng = random.Random(seed)

    def seen(seconds: float) -> float:
        return seconds * (1 + rng.uniform(-noise, noise))

    computed, moved = [], []
    for threads in THREADS * 4:
        alone_s, size_bytes = rng.uniform(1e-3, 3e-2), 10 ** rng.uniform(5, 8.5)
        apart_s = rng.uniform(0.0, 0.5) * alone_s
        computed.append(Computed({threads: seen(model.computation_s(alone_s - apart_s, threads))}, apart_s, alone_s))
        share = rng.uniform(0.4, 1.0)
        partly = share * seen(model.beside_s(size_bytes, threads)), (1 - share) * model.alone_s(size_bytes, threads)
        moved.append(Moved(threads, size_bytes, *partly))
        moved.append(Moved(threads, size_bytes, 0.0, seen(model.alone_s(size_bytes, threads))))
    return computed, moved


@examples(30)
@given(models())
def test_without_noise_predictions_are_exact(model: OverlapModel) -> None:
    found = fit(*drawn(model, 0.0, 1), model.workers)
    assert max(found[1:]) < 1e-6
    for threads in (128, 700, 4096):
        assert found.model.computation_s(1.0, threads) == pytest.approx(model.computation_s(1.0, threads), rel=1e-6)
        for size_bytes in (1e5, 1e8):
            assert found.model.beside_s(size_bytes, threads) == pytest.approx(
                model.beside_s(size_bytes, threads), rel=1e-3
            )


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_reported_and_averaged(seed: int) -> None:
    """Noise of 5 % shows in the errors of the fit; the model is nearer to the truth."""
    found = fit(*drawn(V100, 0.05, seed), V100.workers)
    for error in found[1:]:
        assert 0.01 < error < 0.05
    for threads in THREADS:
        assert found.model.computation_s(1.0, threads) == pytest.approx(V100.computation_s(1.0, threads), rel=0.03)
        assert found.model.beside_s(1e8, threads) == pytest.approx(V100.beside_s(1e8, threads), rel=0.05)


def test_one_number_of_threads_is_a_constant() -> None:
    computed, moved = drawn(V100, 0.0, 1)
    one = [task for task in computed if 512 in task.beside_s]
    found = fit(one, [task for task in moved if task.threads == 512], V100.workers).model
    assert found.taken == 0
    assert found.computation_s(1.0, 512) == pytest.approx(V100.computation_s(1.0, 512))
    assert found.alone_s(1e7, 512) == pytest.approx(V100.alone_s(1e7, 512))


def test_threads_that_would_leave_no_speed_are_a_constant() -> None:
    """A line through a share of 0.5 beside 1 thread and -0.05 beside 16 is below 0 at 16: one share is fitted to both."""
    _, moved = drawn(V100, 0.0, 1)
    computed = [Computed({1: 1.0}, 0.5, 1.0), Computed({16: 1.0}, 1.05, 1.0)]
    found = fit(computed, moved, V100.workers).model
    assert found.taken == 0
    assert found.computation_s(1.0, 16) == pytest.approx(1 / 0.225)


def test_wrong_measurements() -> None:
    computed, moved = drawn(V100, 0.0, 1)
    with pytest.raises(InputError, match="all-reduces alone"):
        fit(computed, [one for one in moved if one.beside_s], 8)
    with pytest.raises(InputError, match="computations"):
        fit(computed[:1], moved, 8)
    with pytest.raises(InputError, match="one size"):
        fit(computed, [one._replace(size_bytes=1e6) for one in moved], 8)
    with pytest.raises(InputError, match=r"found a time of 0 s; expected .* times above 0 s"):
        fit([computed[0]._replace(alone_s=0.0), *computed], moved, 8)
    with pytest.raises(InputError, match="workers"):
        fit(computed, moved, 1)
    falling = [one._replace(apart_s=1 / one.size_bytes) for one in moved if not one.beside_s]
    with pytest.raises(InputError, match="grow with the number of bytes"):
        fit(computed, falling, 8)
