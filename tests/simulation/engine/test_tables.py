"""Tables of a simulation: memory of plans that merge microbatches, and resources that several instructions use."""

import random
from collections.abc import Mapping, Sequence

import pytest

from hocket.cost.contention import Resource, Use
from hocket.cost.model import CostModel
from hocket.planning.predict.predict import predict_choice, proven_peaks
from hocket.simulation.engine import tables
from hocket.simulation.simulator import play
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import members, strategy
from tests.drawn import cluster, model
from tests.simulation.helpers.drawn_runs import drawn_runs


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


@pytest.mark.parametrize("name", members())
@pytest.mark.thinned(most=4)
def test_one_of_several_links_with_the_same_users_is_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated seconds are the same to the last bit as with every link.

    Rings of two collectives at a time have links with the same users.
    """
    links, kept = [0, 0], tables._unlike

    def every(short: Sequence[Resource], uses: Mapping[int, Sequence[Use]], costs: CostModel) -> list[Resource]:
        links[0] += len(short)
        links[1] += len(kept(short, uses, costs))
        return list(short)

    for _, run in drawn_runs(name, range(12)):
        found = play(run.program, run.costs, record=False).makespan_s
        with monkeypatch.context() as patch:
            patch.setattr(tables, "_unlike", every)
            assert play(run.program, run.costs, record=False).makespan_s == found
    assert links[1] < links[0] or name not in ("data_parallel", "fully_sharded", "burst_parallel")
