"""Plan requests: sequences, early errors, and fields for one kind of model."""

from typing import Any

import pytest

from hocket.cost.analytic.transformer import Precision
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.goals.for_model import plan_sizes
from hocket.planning.goals.for_profile import plan_profile
from hocket.planning.goals.goal import Goal
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.sizes import published
from hocket.profiling.analytic.synthetic import chain

PROFILE = chain(4, forward_s=0.01, backward_s=0.02, device_type="v100-16gb")
CLUSTER = Cluster("two", (Level("server", 2, 1e9, 1e-5),), "v100-16gb", price_usd_per_hour=1.0)


def test_lists_and_sets_are_kept_as_tuples() -> None:
    """Lists keep their order, sets are sorted, and equal requests compare equal."""
    request = PlanRequest(8, ["gpipe", "flush"], {4, 1, 2}, tensors=range(1, 3))  # type: ignore[arg-type]
    assert request == PlanRequest(8, ("gpipe", "flush"), (1, 2, 4), tensors=(1, 2))
    assert hash(request) == hash(PlanRequest(8, ("gpipe", "flush"), (1, 2, 4), tensors=(1, 2)))


def test_repetitions_are_left_out() -> None:
    """A size or strategy that is given twice is searched once."""
    assert PlanRequest(8, ("gpipe", "gpipe"), (4, 2, 4)) == PlanRequest(8, ("gpipe",), (4, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: found 0; expected >= 1"),
        (
            {"shards": ("optimiser",)},
            "shard: found 'optimiser'; expected one of none, optimizer, full. Did you mean 'o",
        ),
        ({"recomputes": ("some",)}, "recompute: found 'some'; expected one of none, selective, full"),
        ({"swap": "task"}, "swap: found 'task'; expected one of "),
        ({"buckets": "many"}, "buckets: found 'many'; expected auto, default or a number of bytes"),
        ({"buckets": -1.0}, "buckets: found -1.0; expected auto, default or a number of bytes"),
    ],
)
def test_what_needs_no_model_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    """Errors name the place and what was expected."""
    with pytest.raises(InputError) as found:
        PlanRequest(**{"batch_size": 8, **options})
    assert str(found.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"tensors": (2,)}, "tensors"),
        ({"recomputes": ("none",)}, "recomputes"),
        ({"sequence_parallel": (False,)}, "sequence_parallel"),
        ({"precision": Precision("float32")}, "precision"),
    ],
)
def test_a_profile_refuses_what_is_for_models(options: dict[str, Any], place: str) -> None:
    """Profiles refuse fields of analytic models, and several shards."""
    for found in (
        lambda r: search(PROFILE, CLUSTER, r),
        lambda r: plan_profile({"": PROFILE}, CLUSTER, r, Goal("cost")),
    ):
        with pytest.raises(
            InputError, match=f"^{place}: found this option with a profile; expected it only with an analytic model"
        ):
            found(PlanRequest(8, **options))
        with pytest.raises(InputError, match=r"^shards: found none, full; expected one, for every plan of a profile"):
            found(PlanRequest(8, shards=("none", "full")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amplification_limit": 1.5}, "amplification_limit: found an analytic model"),
        ({"swap": "lru"}, "swap: found an analytic model; expected a profile"),
        ({"buckets": 4e6}, "buckets: found 4e\\+06; expected auto or default, for an analytic model"),
    ],
)
def test_a_model_refuses_what_is_for_profiles(options: dict[str, Any], message: str) -> None:
    """Analytic models refuse fields of profiles, in searches and planning for goals."""
    model, request = published("bert-large"), PlanRequest(8, **options)
    with pytest.raises(InputError, match=f"^{message}"):
        search_sizes(model, CLUSTER, request)
    with pytest.raises(InputError, match=f"^{message}"):
        plan_sizes(model, CLUSTER, request, Goal("cost"))
