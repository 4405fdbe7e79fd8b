"""Algorithm 1 of Narayanan's dissertation, section 3.3.2, as printed.

It covers one corner of the search.
"""

from dataclasses import replace
from math import inf

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.search.simulated import simulated
from hocket.planning.plan import Predicted
from hocket.planning.predict.predict import predict_choice
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.search_space import Candidate, SearchSpace, recomputing
from hocket.strategies.base.search_space import cut as stage
from tests.planning.mesh.test_layout import GPT, source

BLOCKS, SAFE_BATCH, DEVICES = 8, 32, 4
MODEL = chain(
    BLOCKS,
    forward_s=1e-3,
    backward_s=2e-3,
    activation_bytes=1e5,
    stash_bytes=2e7,
    weights_bytes=1e7,
    microbatch_sizes=(1, 2, 4),
    device_type="v100-16gb",
)


class Costs:
    """Cost functions by simulation of whole configurations (section 3.3.3)."""

    blocks = BLOCKS

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def _run(self, d: int, p: int, b: int, r: bool) -> Predicted:
        each = BLOCKS // p
        space = SearchSpace(MODEL, self.cluster, SAFE_BATCH, (b,))
        stages = tuple(
            stage(space, tuple(range(s * each, (s + 1) * each)), tuple(range(s * d, (s + 1) * d))) for s in range(p)
        )
        choice = Candidate(stages, b, SAFE_BATCH // b)
        name = "data_parallel" if p == 1 else "two_bw"
        return predict_choice(space, name, recomputing(choice) if r else choice)

    def throughput(self, d: int, p: int, b: int, r: bool) -> float:
        """Samples per second."""
        return self._run(d, p, b, r).samples_per_s

    def memory(self, d: int, p: int, b: int, r: bool) -> float:
        """Peak bytes of the fullest device."""
        return max(self._run(d, p, b, r).peak_memory_bytes.values())

    def search(self, d: int, p: int, capacity: float) -> tuple[int, bool]:
        """Best microbatch size that fits, and whether activations are recomputed."""
        every = [(b, r) for b in MODEL.microbatch_sizes for r in (False, True) if SAFE_BATCH // (d * b) >= p]
        fitting = [(b, r) for b, r in every if self.memory(d, p, b, r) <= capacity]
        return max(fitting or every, key=lambda one: self.throughput(d, p, *one))


class CostsBySizes(Costs):
    """Cost functions of an analytic transformer with recomputation by block."""

    blocks = GPT.layers

    def _run(self, d: int, p: int, b: int, r: bool) -> Predicted:
        word, schedule = "full" if r else "none", "flush" if p == 1 else "two_bw"
        layout_space = LayoutSpace.of(source, self.cluster, LayoutFamily(1, word, MODEL.microbatch_sizes))
        mesh = ParallelLayout(1, p, d, 1, b, SAFE_BATCH // (d * b), word, layout_space.ends[p - 1], schedule=schedule)
        return simulated(layout_space, mesh).predicted


def algorithm_1(costs: Costs, capacity: float) -> tuple[float, int, int, int, bool, float]:
    """The printed algorithm.

    Returns:
        Throughput, d, p, b, r and the gradient accumulation g of the optimum.
    """
    best_t, best = 0.0, (0, 0, 0, False)
    for d in range(1, DEVICES + 1):
        for p in range(1, DEVICES // d + 1):
            if costs.blocks % p or SAFE_BATCH % d:
                continue
            b, r = costs.search(d, p, capacity)
            t = costs.throughput(d, p, b, r)
            if costs.memory(d, p, b, r) > capacity:
                continue
            if t > best_t:
                best_t, best = t, (d, p, b, r)
    d, p, b, r = best
    return best_t, d, p, b, r, SAFE_BATCH / (d * b) if b else inf


@pytest.mark.parametrize("gigabytes", [0.35, 0.5, 0.75, 1.2, 16.0])
@pytest.mark.parametrize("link", [1e9, 1e10])
@pytest.mark.thinned(most=2)
def test_the_search_has_its_answer(gigabytes: float, link: float) -> None:
    """The algorithm finds nothing better than the search under the same limits.

    If the algorithm's best is among the search's candidates, both are equally good.
    """
    cluster = Cluster("c", (Level("server", DEVICES, link, 1e-5, False),), "v100-16gb", memory_bytes=gigabytes * 1e9)
    best_t, d, p, *_ = algorithm_1(Costs(cluster), gigabytes * 1e9)
    found = search(MODEL, cluster, PlanRequest(SAFE_BATCH, strategies=("two_bw", "data_parallel"), shards=("none",)))
    assert d * p <= DEVICES
    assert found.best.samples_per_s >= best_t / (1 + TIE)
    same = [
        one
        for one in found.candidates
        if len(one.plan.stages) == p
        and all(len(s.devices) == d and s.recompute == one.plan.stages[0].recompute for s in one.plan.stages)
    ]
    assert max(one.samples_per_s for one in same) == pytest.approx(best_t, rel=0.02)


@pytest.mark.parametrize("gigabytes", [0.9, 1.5, 80.0])
@pytest.mark.parametrize("link", [1e10, 3e11])
@pytest.mark.thinned(most=1)
def test_the_search_by_sizes_has_its_answer(gigabytes: float, link: float) -> None:
    """The algorithm finds nothing better for an analytic model.

    Only strategies that it knows count. Links are fast enough to use all devices.
    """
    cluster = Cluster("c", (Level("server", DEVICES, link, 3e-6, False),), "a100-80gb", memory_bytes=gigabytes * 1e9)
    best_t, *_ = algorithm_1(CostsBySizes(cluster), gigabytes * 1e9)
    assert best_t > 0
    sizes = {"tensors": (1,), "shards": ("none",), "microbatch_sizes": MODEL.microbatch_sizes}
    found = search_sizes(GPT, cluster, PlanRequest(SAFE_BATCH, strategies=("two_bw", "data_parallel"), **sizes))  # type: ignore[arg-type]
    assert found.best.predicted.samples_per_s >= best_t / (1 + TIE)


def test_memory_decides_about_pipelines() -> None:
    """Data parallelism if all weights fit, otherwise a pipeline."""
    cluster = Cluster("c", (Level("server", DEVICES, 1e9, 1e-5, False),), "v100-16gb")
    depths = []
    for gigabytes in (0.35, 16.0):
        small = replace(cluster, memory_bytes=gigabytes * 1e9)
        depths.append(algorithm_1(Costs(small), gigabytes * 1e9)[2])
    assert depths[0] > depths[1]
