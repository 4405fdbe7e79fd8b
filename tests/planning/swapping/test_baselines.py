"""Baselines with virtual memory are planned only by name, with the given policy."""

from dataclasses import replace

import pytest

from hocket.errors import InputError, RefusedError
from hocket.planning.explain.baseline_comparison import SWAPPED, of_profile
from hocket.planning.predict.predict import predict
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.util.compatibility import Feature, conflict
from tests.planning.swapping.test_search import MODEL, cluster, proved

FITS = cluster(1.5e9)  # a stage of half of the layers, with its gradients, or its optimizer state


@pytest.mark.parametrize("policy", ["lru", "next_use"])
def test_the_usual_ones(policy: str) -> None:
    """Each baseline is proved to fit.

    A strategy keeps its own stages if they fit. Data parallelism and GPipe are also planned with packs of one
    layer.
    """
    found = search(MODEL, FITS, PlanRequest(4, swap=policy))
    assert {"gpipe", "flush", "model_parallel", "harmony"} == {one.strategy for one in found.candidates}
    orders = {one.config.split(",")[0] for one in found.candidates if one.strategy == "harmony"}
    assert orders == {"in the order of data_parallel", "in the order of gpipe"}
    for one in found.candidates:
        assert one.plan.swap is not None
        assert one.plan.swap.policy == policy
    for one in found.candidates[:2]:
        proved(one.plan, MODEL)
    verdict = of_profile(found)
    assert verdict.winner == SWAPPED
    assert verdict.text == "swapping: nothing else was considered"


def test_by_name_and_as_a_memory_that_writes_all() -> None:
    """A single strategy can be named.

    Evicting the least recently used value swaps more, and is slower.
    """
    found = {
        policy: search(
            MODEL, cluster(700e6), PlanRequest(4, strategies=("data_parallel",), microbatch_sizes=(1,), swap=policy)
        )
        for policy in ("lru", "next_use")
    }
    swapped = {policy: predict(one.best.plan, MODEL)[1].swapped_bytes for policy, one in found.items()}
    assert found["lru"].best.iteration_s > found["next_use"].best.iteration_s
    assert swapped["lru"] > swapped["next_use"] > 0
    reasons = {one.strategy: one.reason for one in found["lru"].refused}  # the whole model is one stage
    assert set(reasons) == {"data_parallel"}
    assert "too few" in reasons["data_parallel"]


def test_baselines_come_with_the_notes_of_a_search() -> None:
    """A microbatch size that was not measured is noted, as in other searches."""
    request = PlanRequest(6, strategies=("gpipe",), microbatch_sizes=(3,), swap="lru")
    noted = [note for note in search(MODEL, FITS, request).notes if "microbatches of 3 were not measured" in note]
    assert len(noted) == 1


def test_what_cannot_be_asked_for() -> None:
    """Unknown policies and host memory, sharded state and groups are refused."""
    with pytest.raises(InputError, match=r"'task'.*one of next_use, lru"):
        search(MODEL, FITS, PlanRequest(4, swap="task"))
    with pytest.raises(RefusedError) as caught:
        search(MODEL, FITS, PlanRequest(4, swap="lru", shards=("full",)))
    assert caught.value.found == conflict((Feature.SWAP, Feature.SHARD_FULL))
    with pytest.raises(RefusedError, match="host_memory_bytes"):
        _ = search(MODEL, cluster(700e6, None), PlanRequest(4, swap="lru")).best
    with pytest.raises(InputError, match="groups do not swap"):
        search(replace(MODEL, tensor=2), FITS, PlanRequest(4, swap="lru"))
