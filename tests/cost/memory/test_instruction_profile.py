"""Memory inside forwards and backwards, between their start and end."""

from dataclasses import replace

import pytest

from hocket.cost.memory.instruction_profile import insides
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import played
from hocket.profiling.analytic.synthetic import chain
from hocket.program.instruction import Kind

CLUSTER = Cluster("one", (Level("server", 2, 1e9),), "v100-16gb")
PROFILE = chain(
    4,
    forward_s=[1e-3, 1e-3, 2e-3, 4e-3],
    backward_s=2e-3,
    stash_bytes=[40.0, 30.0, 20.0, 10.0],
    activation_bytes=1.0,
    weights_bytes=8.0,
    microbatch_sizes=(1,),
    device_type="v100-16gb",
)


def test_a_stash_grows_with_the_layers_and_goes_with_them() -> None:
    """A stash grows during a forward and shrinks during a backward.

    In a forward, the stash of later layers is not there yet. In a backward, the stash of later layers is gone;
    gradients have been added if it is the first of its update.
    """
    names = tuple(layer.name for layer in PROFILE.layers)
    plan = Plan("data_parallel", PROFILE.name, 2, 1, (PlanStage(names, (0,)),), CLUSTER)
    outcome = played(plan, PROFILE, repeats=1)
    found = insides(outcome.costs, outcome.program)
    assert set(found) == {(Kind.FORWARD, 0, False), (Kind.BACKWARD, 0, False)}
    forward, backward = found[Kind.FORWARD, 0, False], found[Kind.BACKWARD, 0, False]
    assert forward.until == pytest.approx([1 / 8, 2 / 8, 4 / 8, 1])
    assert forward.below_bytes == pytest.approx([60, 30, 10, 0])
    assert backward.until == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1])
    assert backward.below_bytes == pytest.approx([0, 0, 30 - 24, 60 - 32])
    assert forward.demand == backward.demand == 1.0


def test_gradients_that_are_summed_have_their_memory_already() -> None:
    """With replicas, gradients have their memory from the beginning.

    So all memory that a backward frees is free.
    """
    names = tuple(layer.name for layer in PROFILE.layers)
    plan = Plan("data_parallel", PROFILE.name, 2, 1, (PlanStage(names, (0, 1)),), CLUSTER)
    outcome = played(plan, PROFILE, repeats=1)
    found = insides(outcome.costs, outcome.program)
    assert found[Kind.BACKWARD, 0, False].below_bytes == pytest.approx([0, 10, 30, 60])


def test_a_forward_whose_stash_is_made_again_keeps_none() -> None:
    """A forward with recomputation keeps no stash; the second forward does."""
    names = tuple(layer.name for layer in PROFILE.layers)
    plan = Plan("data_parallel", PROFILE.name, 1, 1, (PlanStage(names, (0,), recompute=True),), CLUSTER)
    outcome = played(plan, PROFILE, repeats=1)
    found = insides(outcome.costs, outcome.program)
    assert not found[Kind.FORWARD, 0, False].below_bytes.any()
    assert found[Kind.FORWARD, 0, True].below_bytes == pytest.approx([60, 30, 10, 0])


def test_a_device_that_does_more_of_more_samples_is_not_full() -> None:
    """Eight samples in twice the seconds of two: two samples need half of the device."""
    many = chain(
        4, forward_s=1e-3, backward_s=2e-3, microbatch_sizes=(2, 8), device_type="v100-16gb", weights_bytes=8.0
    )

    def slower(layer):
        return replace(layer, forward_s=(4e-3, 8e-3), backward_s=(8e-3, 16e-3))

    many = replace(many, layers=tuple(slower(layer) for layer in many.layers))
    names = tuple(layer.name for layer in many.layers)
    plan = Plan("data_parallel", many.name, 2, 2, (PlanStage(names, (0,)),), CLUSTER)
    outcome = played(plan, many, repeats=1)
    assert {round(one.demand, 9) for one in insides(outcome.costs, outcome.program).values()} == {0.5}
