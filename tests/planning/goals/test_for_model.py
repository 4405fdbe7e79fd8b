"""Goals of analytic models and profiles: the best sub-cluster is chosen.

The reference is a separate search on each sub-cluster.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level, Node
from hocket.hardware.parts import parts
from hocket.planning.goals.for_model import by_equation_4_4_s, plan_sizes
from hocket.planning.goals.for_profile import plan_profile
from hocket.planning.goals.goal import Goal
from hocket.planning.goals.subclusters import Planned
from hocket.planning.mesh.plan_model import SizedSearch, search_sizes
from hocket.planning.plan import Plan
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Search
from hocket.planning.search.search import search_widths
from hocket.profiling.analytic.synthetic import chain
from tests.planning.mesh.test_layout import GPT, SERVERS

PRICED = replace(SERVERS, price_usd_per_hour=5.0)
SAMPLES = 10_000.0


def each_part() -> dict[int, float]:
    """Seconds of the best iteration by devices, from a search on each sub-cluster."""
    found = {}
    for part in parts(PRICED):
        try:
            found[part.devices] = search_sizes(GPT, part.cluster, PlanRequest(16)).best.iteration_s
        except RefusedError:
            continue
    return found


@pytest.mark.slow
def test_each_goal_is_the_best_of_all_parts() -> None:
    """Fewest devices for several deadlines, and least cost."""
    seconds = each_part()
    assert len(seconds) > 3
    for deadline_s in sorted(625 * s for s in seconds.values())[::2]:
        planned = plan_sizes(GPT, PRICED, PlanRequest(16), Goal("devices", SAMPLES, deadline_s * (1 + 1e-9)))
        assert planned.part.devices == min(n for n, s in seconds.items() if 625 * s <= deadline_s)
        assert planned.worth.training_s == pytest.approx(625 * seconds[planned.part.devices])
    planned = plan_sizes(GPT, PRICED, PlanRequest(16), Goal("cost"))
    assert planned.worth.iteration_s * planned.part.devices <= 1.01 * min(n * s for n, s in seconds.items())


@pytest.mark.slow
def test_the_closed_form_is_near_ours() -> None:
    """Equation 4.4 is near our time for a model with little attention and vocabulary.

    The equation leaves both out.
    """
    model = replace(GPT, layers=24, hidden=2048, vocabulary=512, sequence=64)
    planned = plan_sizes(model, PRICED, PlanRequest(16), Goal("time", samples=1e6))
    assert by_equation_4_4_s(planned) == pytest.approx(planned.worth.training_s, rel=0.05)
    assert by_equation_4_4_s(plan_sizes(model, PRICED, PlanRequest(16), Goal())) is None


def test_kinds_that_cannot_be_planned_together() -> None:
    """A sub-cluster of one type may serve if the whole cluster is refused."""
    for usd, kind in ((1.0, "h100"), (50.0, "a100-80gb")):
        nodes = (Node("a100-80gb", 4), Node("h100", 4, price_usd_per_hour=usd))
        planned = plan_sizes(GPT, replace(PRICED, device_type="", nodes=nodes), PlanRequest(16), Goal("cost"))
        assert {node.device_type for node in planned.part.cluster.nodes} == {kind}


def test_widths_that_fit_some_parts() -> None:
    """Groups of four are not tried on three devices.

    A size that the whole cluster cannot have is refused.
    """
    planned = plan_sizes(GPT, PRICED, PlanRequest(16, tensors=(4,)), Goal("cost"))
    assert planned.part.devices % 4 == 0
    with pytest.raises(InputError, match="tensor: found tensor-parallel size 16"):
        plan_sizes(GPT, PRICED, PlanRequest(16, tensors=(16,)), Goal("cost"))


@pytest.mark.slow
def test_in_python(tmp_path: Path) -> None:
    """Analytic models and profiles, with goals and without."""
    found = hocket.plan(GPT, PRICED, 16)
    assert isinstance(found, SizedSearch)
    found.save(tmp_path / "plan.yaml")
    assert Plan.read(tmp_path / "plan.yaml").profile == "plan.profile.json"
    assert hocket.simulate(tmp_path / "plan.yaml")[1].iteration_s == pytest.approx(found.best.iteration_s)
    planned = hocket.plan(GPT, PRICED, 16, tokens=1e6, objective="cost")
    assert isinstance(planned, Planned)
    assert planned.goal.samples == 1e6 / 512
    stale = hocket.plan(GPT, PRICED, 16, ["two_bw"])
    assert stale.best.mesh.strategy == "two_bw"
    stale.save(tmp_path / "stale.yaml")
    assert hocket.simulate(tmp_path / "stale.yaml")[1].iteration_s == pytest.approx(stale.best.iteration_s)
    profile = chain(4, forward_s=0.001, backward_s=0.002, device_type="v100-16gb")
    server = Cluster("server", (Level("server", 4, 1e9, 1e-5),), "v100-16gb", price_usd_per_hour=3.0)
    assert isinstance(hocket.plan(profile, server, 8), Search)
    cheap = hocket.plan(profile, server, 8, objective="cost", samples=800)
    assert cheap.part.devices == 1
    assert cheap.found.best.plan.cluster.devices == 1
    assert cheap.worth.training_s == pytest.approx(100 * cheap.found.best.iteration_s)


def test_a_profile_for_a_deadline() -> None:
    """The fewest devices that meet the deadline, as in separate searches."""
    profile = chain(8, forward_s=0.001, backward_s=0.002, device_type="v100-16gb")
    server = Cluster("server", (Level("server", 4, 1e9, 1e-5),), "v100-16gb")
    alone = [hocket.plan(profile, part.cluster, 8).best.iteration_s for part in parts(server)]
    goal = Goal("devices", 80, 10 * alone[1] * 1.001)
    planned = plan_profile({"": profile}, server, PlanRequest(8), goal)
    assert planned.part.devices == next(n for n, seconds in enumerate(alone, 1) if seconds <= alone[1] * 1.001)


def test_of_equal_plans_the_one_that_meets_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline decides between plans that count as equal.

    Without a deadline, the first of them is best.
    """
    profile = chain(4, forward_s=0.001, backward_s=0.002, device_type="v100-16gb")
    server = Cluster("server", (Level("server", 1, 1e9, 1e-5),), "v100-16gb")

    def with_a_twin(*arguments: Any, **options: Any) -> Search:
        found = search_widths(*arguments, **options)
        quicker = replace(found.best.predicted, iteration_s=0.995 * found.best.iteration_s)
        return replace(found, candidates=(found.best, replace(found.best, predicted=quicker)))

    monkeypatch.setattr("hocket.planning.goals.for_profile.search_widths", with_a_twin)
    first_s = search_widths({"": profile}, server, PlanRequest(8)).best.iteration_s
    for share, expected in ((0.997, 0.995), (1.001, 1.0)):
        planned = plan_profile({"": profile}, server, PlanRequest(8), Goal("devices", 80, 10 * first_s * share))
        assert planned.found.best.iteration_s == pytest.approx(expected * first_s, rel=1e-9)
