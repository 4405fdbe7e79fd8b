"""The bound of memory refuses only numbers of devices on which no plan fits, and spares their searches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.parts import parts
from hocket.planning.goals.for_model import plan_sizes
from hocket.planning.goals.goal import Goal
from hocket.planning.goals.least_memory import StateTooLarge, check_profile_fits, room_of, state_of_model
from hocket.planning.goals.time_to_accuracy import any_mesh, data_parallel, scale
from hocket.planning.mesh.plan_model import SizedSearch, search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.analytic.transformer import Transformer
from hocket.util.units import show_shortage
from tests.planning.goals.test_time_to_accuracy import CURVE, SERVER
from tests.planning.mesh.test_layout import GPT, SERVERS

SMALL = replace(SERVERS, memory_bytes=1.2e9)
UNTIED = Transformer("untied", 60, 256, 8, 256, 8, tied=False)  # nearly all memory is state
REQUEST = PlanRequest(8, microbatch_sizes=(1,), tensors=(1,))


def peaks(model: Transformer, cluster: Cluster, request: PlanRequest) -> Iterator[float]:
    """Bytes of all devices together, of each plan that a search simulates."""
    for one in search_sizes(model, cluster, request).candidates:
        yield one.mesh.tensor * sum(one.predicted.peak_memory_bytes.values())


@pytest.mark.parametrize("model", [GPT, UNTIED], ids=lambda model: model.name)
@pytest.mark.parametrize("strategies", [(), ("flush",), ("data_parallel",), ("fully_sharded",)])
@pytest.mark.thinned(most=3)
def test_no_plan_needs_less(model: Transformer, strategies: tuple[str, ...]) -> None:
    """The bound is at most the peaks of all devices of every simulated plan.

    A fully sharded plan needs less than weights, gradients and optimizer state, because it frees gradients early.
    """
    request = replace(REQUEST, strategies=strategies)
    if model.tied and strategies == ("fully_sharded",):
        return  # refused
    found = list(peaks(model, SERVERS, request))
    size, what = state_of_model(model, request)
    assert found
    assert size <= min(found)
    assert ("gradients" in what) == (model.tied or strategies in (("flush",), ("data_parallel",)))
    if strategies == ("fully_sharded",):
        assert min(found) < 18 * model.parameters


@pytest.mark.slow
def test_few_devices_are_refused_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of devices that are too small are left out, with a note; results of the others do not change."""
    request, searched = PlanRequest(16), list[int]()

    def noted(model: Transformer, cluster: Cluster, *arguments: Any, **options: Any) -> SizedSearch:
        searched.append(cluster.devices)
        return search_sizes(model, cluster, *arguments, **options)

    counts = [n for n in (1, 2, 4, 8) if 18 * GPT.parameters <= n * 1.2e9]
    assert counts == [2, 4, 8]
    alone = scale(any_mesh(GPT, request), SMALL, CURVE, 16, counts)
    monkeypatch.setattr("hocket.planning.goals.time_to_accuracy.search_sizes", noted)
    found = scale(any_mesh(GPT, request), SMALL, CURVE, 16)
    assert set(searched) == set(counts)
    assert found.rows == alone.rows
    needed, available = show_shortage(18 * GPT.parameters, 1.2e9)
    reason = f"found {needed} of weights, gradients and optimizer state; expected at most {available}"
    assert found.notes == (f"no plan on 1 device: {reason}, the memory of one device", *alone.notes)
    searched.clear()
    none = replace(SERVERS, memory_bytes=1e8)
    with pytest.raises(
        RefusedError, match=r"no plan on 1, 2, 4 and 8 devices: .* the memory of all 8 devices together"
    ):
        scale(any_mesh(GPT, request), none, CURVE, 16)
    assert not searched


def test_the_baseline_is_planned_first() -> None:
    """Without a plan on the fewest devices, the others are not planned."""
    asked = list[int]()

    def iteration(cluster: Cluster, batch_size: int, ceiling_s: float) -> float | None:
        asked.append(cluster.devices)
        return None

    with pytest.raises(RefusedError, match="no plan for a batch of 16 on 1 device;"):
        scale(iteration, SERVER, CURVE, 16)
    assert set(asked) == {1}


def test_data_parallelism_of_a_profile() -> None:
    """Each device holds the whole state, so no number of devices helps."""
    large = chain(4, weights_bytes=1e10, device_type="v100-16gb")
    with pytest.raises(RefusedError, match=r"no plan on 1, 2, 4 and 8 devices: .* the memory of the smallest device"):
        scale(data_parallel(large), SERVER, CURVE, 16)
    profile = chain(4, forward_s=1e-3, backward_s=2e-3, weights_bytes=1e8, device_type="v100-16gb")
    state = sum(layer.weights_bytes + layer.gradients_bytes + layer.optimizer_bytes for layer in profile.layers)
    request = PlanRequest(8, strategies=("data_parallel",))
    for one in search(profile, SERVER, request).candidates:
        assert state <= max(one.peak_memory_bytes.values())
    check_profile_fits(profile, replace(SERVER, memory_bytes=state * 1.01))
    with pytest.raises(StateTooLarge):
        check_profile_fits(profile, replace(SERVER, memory_bytes=state * 0.99))


@pytest.mark.slow
def test_a_part_that_only_a_fully_sharded_plan_fits() -> None:
    """It serves a goal, although weights, gradients and optimizer state together exceed its memory."""
    wide = Cluster("wide", (Level("server", 4, 1e11, 1e-6),), "a100-80gb", price_usd_per_hour=1.0)
    request = PlanRequest(4, microbatch_sizes=(1,), tensors=(1,), strategies=("fully_sharded",))
    need = next(peaks(UNTIED, wide, request)) / 4
    assert need < 18 * UNTIED.parameters / 4
    tight = replace(wide, memory_bytes=need * 1.001)
    planned = plan_sizes(UNTIED, tight, request, Goal("cost"))
    assert planned.part.devices == 4
    assert room_of(parts(tight)[-1].cluster) < 18 * UNTIED.parameters
