"""CostModel: one plan's seconds and bytes on one cluster."""

from dataclasses import replace

import pytest

from hocket.cost.model import CostModel
from hocket.errors import InputError
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster, Level, Node
from hocket.hardware.device_type import DeviceType
from hocket.profiling.analytic.synthetic import chain
from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.strategies.base.strategy import compile_strategy

CUTS = (StageCut((0, 1), (0,)), StageCut((2,), (1,)))
LEVELS = (Level("server", 2, 1e6, 0.5),)


def model(kind: str = "cpu-core", on: str = "cpu-core", **more: object) -> CostModel:
    """Three layers of 1, 2 and 3 s forward on two devices."""
    profile = chain(3, forward_s=[1.0, 2.0, 3.0], device_type=kind)
    return CostModel(profile, Cluster("c", LEVELS, on), CUTS, (2, 2, 1), **more)  # type: ignore[arg-type]


def compute(kind: Kind, stage: int, index: int = 0, again: bool = False) -> Instruction:
    """A compute instruction on the stage's device."""
    return Instruction(kind, stage, index, stage, COMPUTE, again=again)


def test_seconds_of_compute() -> None:
    """Forward and backward are sums over the stage's layers.

    Figures are those of the microbatch's samples. A recomputation is a forward.
    """
    costs = model()
    assert costs.seconds(compute(Kind.FORWARD, 0)) == 6.0
    assert costs.seconds(compute(Kind.FORWARD, 0, again=True)) == 6.0
    assert costs.seconds(compute(Kind.FORWARD, 0, index=5)) == 3.0
    assert costs.seconds(compute(Kind.BACKWARD, 1)) == 4.0
    assert costs.seconds(compute(Kind.LOAD, 0)) == 0.0
    assert costs.seconds(compute(Kind.STEP, 0)) == 0.0


def test_seconds_of_a_load() -> None:
    """A load takes its measured seconds, on every type of device.

    Without a measurement it takes none.
    """
    profile = replace(model("v100-16gb").profile, load_s=(0.1, 0.2, 0.4, 0.8))
    for on in ("v100-16gb", "p100"):
        costs = CostModel(profile, Cluster("c", LEVELS, on), CUTS, (2, 2, 1))
        assert costs.seconds(compute(Kind.LOAD, 0)) == pytest.approx(0.2)
        assert costs.seconds(compute(Kind.LOAD, 0, index=2)) == pytest.approx(0.1)
        assert costs.seconds(compute(Kind.LOAD, 0), 3) == pytest.approx(0.3)
        assert costs.seconds(compute(Kind.DROP, 0)) == 0.0


def test_seconds_of_types_that_the_profile_knows() -> None:
    """On a device type in the profile, each layer has its own seconds there.

    Bounds use the smallest ratio of any layer.
    """
    there = chain(3, forward_s=[3.0, 4.0, 9.0], backward_s=[5.0, 5.0, 7.0], device_type="p100")
    there = replace(there, layers=tuple(replace(x, step_s=4.0, copy_s=0.25) for x in there.layers))
    here = chain(3, forward_s=[1.0, 2.0, 3.0], device_type="v100-16gb").knowing((there,))
    here = replace(here, layers=tuple(replace(x, step_s=1.0, copy_s=0.5) for x in here.layers))
    cluster = Cluster("c", LEVELS, nodes=(Node("p100", 1), Node("v100-16gb", 1)))
    costs = CostModel(here, cluster, CUTS, (2, 2, 1))
    assert costs.seconds(compute(Kind.FORWARD, 0)) == 14.0
    assert costs.seconds(compute(Kind.BACKWARD, 0)) == 20.0
    assert costs.seconds(compute(Kind.FORWARD, 1)) == 6.0
    old = replace(compute(Kind.STEP, 0), frees=(Value(ValueKind.WEIGHTS, 0, 0),))
    assert costs.seconds(old) == 8.0
    assert costs.seconds(compute(Kind.STEP, 0)) == 8.5
    assert (costs.factor(0), costs.factor(1)) == (0.5, 1.0)  # of copies
    assert type(here).from_json(here.to_json()) == here
    assert "elsewhere" not in chain(3).to_json()
    assert costs.profile.on("p100").layers == there.layers


def test_other_types_are_the_same_in_all_layers() -> None:
    """All layers have the same other device types, each once.

    Each has an entry for every microbatch size, and the profile's own type is not among them.
    """
    there = chain(3, device_type="p100")
    here = chain(3, device_type="v100-16gb")
    short = replace(there, microbatch_sizes=(1, 2), layers=chain(3, microbatch_sizes=(1, 2)).layers, tensors=())
    for others, message in (
        ((there, there), r"^layers\.0\.elsewhere: found types p100, p100; expected equal types in every layer"),
        ((here,), r"^layers\.0\.elsewhere: found types v100-16gb"),
        ((short,), r"^layers\.0\.elsewhere\.p100\.forward_s: found 2 values; expected 4"),
    ):
        with pytest.raises(InputError, match=message):
            here.knowing(others)
    mixed = here.knowing((there,)).layers
    with pytest.raises(InputError, match=r"^layers\.1\.elsewhere: found types none"):
        replace(here, layers=(mixed[0], *here.layers[1:]))


def test_a_step_that_keeps_the_old_weights_copies_them() -> None:
    """A step that keeps the version that it reads also takes the seconds of a copy."""
    profile = model().profile
    profile = replace(profile, layers=tuple(replace(x, step_s=2.0, copy_s=0.5) for x in profile.layers))
    costs = replace(model(), profile=profile)
    old = Value(ValueKind.WEIGHTS, 0, 3)
    keeps = replace(compute(Kind.STEP, 0, 3), reads=(old,))
    assert costs.seconds(keeps) == 5.0
    assert costs.seconds(replace(keeps, frees=(old,))) == 4.0
    assert costs.seconds(replace(keeps, frees=(Value(ValueKind.ACCUMULATOR, 0, 5, 0),))) == 5.0


def test_the_first_gradients_of_an_update_are_copied_where_replicas_sum_them() -> None:
    """The first gradients of an update on replicas are copied into flat tensors.

    Later gradients are added there. A stage without replicas has no flat tensors.
    """
    profile = model().profile
    profile = replace(profile, layers=tuple(replace(x, copy_s=0.5) for x in profile.layers))
    costs = replace(model(), profile=profile, cuts=(StageCut((0, 1, 2), (0, 1)),))
    first = replace(compute(Kind.BACKWARD, 0), writes=(Value(ValueKind.ACCUMULATOR, 0, 0, 0),))
    later = replace(compute(Kind.BACKWARD, 0, 1), frees=first.writes, writes=(Value(ValueKind.ACCUMULATOR, 0, 1, 0),))
    assert costs.seconds(first) - costs.seconds(later) == pytest.approx(1.5)
    alone = replace(costs, cuts=(StageCut((0, 1, 2), (0,)),))
    assert alone.seconds(first) == alone.seconds(later) == costs.seconds(later)


def test_batches() -> None:
    """A batch consists of its microbatches."""
    costs = replace(model(), samples=(3, 3, 1))
    assert costs.batch_size == 7
    with pytest.raises(InputError, match="samples"):
        replace(costs, samples=())


def test_transfers() -> None:
    """A send takes the link's latency and its bytes' time.

    Compute instructions have no transfer time.
    """
    value = Value(ValueKind.ACTIVATION, 0, 0, 1)
    send = Instruction(Kind.SEND, 0, 0, 0, "send>1", (value,), (), (value,), peer=1)
    assert model().transfer(send) == (0.5, 2.0)
    assert model().transfer(compute(Kind.FORWARD, 0)) == (0.0, 0.0)


def test_what_a_device_holds_at_first() -> None:
    """A device first holds weights, optimizer state and buffers of its stages."""
    costs = model()
    assert [costs.initial_bytes(d) for d in range(2)] == [16e6, 8e6]


def test_another_device_type_takes_the_quotient_of_the_peak_rates() -> None:
    """Another device type of the catalogue scales by the ratio of peak rates.

    A given factor is used instead.
    """
    rates = [device_type(name).flops_per_s["float32"] for name in ("v100-16gb", "p100")]
    costs = model("v100-16gb", "p100")
    assert costs.seconds(compute(Kind.FORWARD, 0)) == pytest.approx(6.0 * rates[0] / rates[1])
    assert model("v100-16gb", "p100", factors={"p100": 3.0}).seconds(compute(Kind.FORWARD, 0)) == 18.0


def test_mixed_clusters() -> None:
    """Every device has the factor of its own type, which a cluster file may describe."""
    own = DeviceType("half", 1e9, {"float32": device_type("p100").flops_per_s["float32"] / 2}, 1e9)
    cluster = Cluster("mixed", LEVELS, nodes=(Node("p100", 1), Node("half", 1)), types=(own,))
    costs = replace(model("p100", "p100"), cluster=cluster)
    assert costs.seconds(compute(Kind.FORWARD, 0)) == 6.0
    assert costs.seconds(compute(Kind.FORWARD, 1)) == pytest.approx(12.0)


def test_unknown_types_are_refused() -> None:
    """A profile of an unknown type can only be used for that type."""
    with pytest.raises(InputError, match="synthetic") as error:
        model("synthetic", "p100").seconds(compute(Kind.FORWARD, 0))
    assert "types" in error.value.next_step
    assert model("odd", "odd").seconds(compute(Kind.FORWARD, 0)) == 6.0


def test_cuts_must_fit() -> None:
    """A layer without a stage is refused."""
    with pytest.raises(InputError, match="layer2"):
        replace(model(), cuts=CUTS[:1])


def test_what_the_sender_copies_is_its_own_time() -> None:
    """Inside a server, the compute lane copies a message and the send takes no time.

    Outside it, nothing changes.
    """
    profile, levels = chain(3, device_type="cpu-core", activation_bytes=3e6), (*LEVELS, Level("cluster", 2, 1e5, 0.5))
    for cuts, inside in ((CUTS, True), ((CUTS[0], StageCut((2,), (2,))), False)):
        program = compile_strategy("flush", stage_shapes(profile, cuts), 3, {})
        free, costs = (
            CostModel(profile, Cluster("c", levels, "cpu-core", sender_copies=copies), cuts, (2, 2, 1))
            for copies in (False, True)
        )
        for _, i in program.instructions():
            sends = i.kind in (Kind.FORWARD, Kind.BACKWARD) and i.stage == (0 if i.kind is Kind.FORWARD else 1)
            samples = (2, 2, 1)[i.index % 3]
            assert costs.seconds(i) - free.seconds(i) == pytest.approx(3 * samples if inside and sends else 0)
            if i.kind is Kind.SEND:
                assert costs.at_once(i) == inside
                assert costs.transfer(i).flow_s == (0 if inside else pytest.approx(30 * samples))


def test_the_engines_own_share() -> None:
    """Every forward, backward and step has the engine's share.

    It also has the seconds to begin the transfers after it. A load has neither.
    """
    profile = chain(3, forward_s=[1.0, 2.0, 3.0], device_type="cpu-core")
    plain = Cluster("c", LEVELS, "cpu-core")
    busy = replace(plain, instruction_s=0.25, post_s=0.0625)
    program = compile_strategy("flush", stage_shapes(profile, CUTS), 3, {})
    free, costs = (CostModel(profile, on, CUTS, (2, 2, 1)) for on in (plain, busy))
    extra = {
        (i.kind, i.stage): costs.seconds(i) - free.seconds(i)
        for _, i in program.instructions()
        if i.kind in (Kind.LOAD, Kind.FORWARD, Kind.BACKWARD, Kind.STEP)
    }
    assert extra == {
        (Kind.LOAD, 0): 0.0,
        (Kind.FORWARD, 0): 0.3125,  # sends its activation
        (Kind.FORWARD, 1): 0.3125,  # makes room for the next
        (Kind.BACKWARD, 0): 0.3125,
        (Kind.BACKWARD, 1): 0.3125,
        (Kind.STEP, 0): 0.25,
        (Kind.STEP, 1): 0.25,
    }


def test_replicas_that_share_the_step() -> None:
    """A reduce-scatter and a gather go round the ring once, an all-reduce twice.

    Step, copy and optimizer state are a part of the whole.
    """
    profile = chain(3, forward_s=[1.0, 2.0, 3.0], weights_bytes=[4e6, 0.0, 2e6], device_type="cpu-core")
    profile = replace(
        profile,
        layers=tuple(replace(x, step_s=2.0, copy_s=0.5, step_bytes=6e6) for x in profile.layers),
        step_together=True,
    )
    cluster = Cluster("c", (Level("server", 2, 1e6, 0.5),), "cpu-core")
    plain, shared = (
        CostModel(profile, cluster, (StageCut((0, 1, 2), (0, 1), shard=shard),), (2, 2))
        for shard in ("none", "optimizer")
    )
    old = Value(ValueKind.WEIGHTS, 0, 3)
    step = Instruction(Kind.STEP, 0, 3, 0, COMPUTE, (old,), (Value(ValueKind.SHARD, 0, 4),))
    assert shared.seconds(step) == plain.seconds(step) / 2 == 3.75
    gap = shared.memory.stages[0].gaps_bytes.sum()
    assert 0 < gap < 1000
    whole, part = (m.memory.value_bytes(Value(ValueKind.OPTIMIZER, 0, 0), 2) for m in (plain, shared))
    assert part == pytest.approx((whole + gap) / 2)
    assert shared.memory.hold_bytes(step, 2, pooled=False) == plain.memory.hold_bytes(step, 2, pooled=False) / 2
    accumulated, summed = (Value(what, 0, 0, 0) for what in (ValueKind.ACCUMULATOR, ValueKind.REDUCED))
    sums = [
        Instruction(kind, 0, 0, 0, "reduce@0,1", (accumulated,), (summed,), (accumulated,), group=(0, 1))
        for kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
    ]
    part, whole = Value(ValueKind.SHARD, 0, 1), Value(ValueKind.WEIGHTS, 0, 1)
    gather = Instruction(Kind.ALL_GATHER, 0, 1, 0, "gather@0,1", (part,), (whole,), (part,), group=(0, 1))
    assert plain.transfer(sums[0]) == pytest.approx((1.0, 6.0))
    assert shared.transfer(sums[1]) == pytest.approx((0.5, 3.0))
    assert shared.transfer(gather) == pytest.approx((0.5, (6e6 + gap) / 2e6))
    assert shared.memory.net_bytes(gather, 2) == 0.0
    assert sum(shared.memory.pooled(value) for value in (part, whole)) == 2


def test_stages_share_the_models_variance() -> None:
    """Stages have shares of the model's variance by their seconds.

    All stages together vary as the undivided model. On a device that is twice as slow, deviations are twice as large.
    """
    deviations = {"whole_forward_std_s": (0.5, 0.5, 0.5, 0.5), "whole_backward_std_s": (2.0, 2.0, 2.0, 2.0)}
    profile = replace(chain(3, forward_s=[1.0, 2.0, 3.0], device_type="cpu-core"), **deviations)  # type: ignore[arg-type]
    cluster = Cluster("c", LEVELS, "cpu-core")
    costs = CostModel(profile, cluster, CUTS, (2, 2, 1))
    assert [costs.variance(compute(Kind.FORWARD, s), 2) for s in (0, 1)] == pytest.approx([0.125, 0.125])
    assert sum(costs.variance(compute(Kind.BACKWARD, s), 2) for s in (0, 1)) == pytest.approx(4.0)
    assert costs.variance(compute(Kind.STEP, 0), 2) == costs.variance(compute(Kind.LOAD, 0), 2) == 0.0
    mixed = Cluster("c", LEVELS, nodes=(Node("cpu-core", 1), Node("v100-16gb", 1)))
    slower = CostModel(profile, mixed, CUTS, (2, 2, 1), factors={"v100-16gb": 2.0})
    assert slower.variance(compute(Kind.FORWARD, 1), 2) == pytest.approx(4 * 0.125)
    assert model().variance(compute(Kind.FORWARD, 0), 2) == 0.0
    assert (costs.varies, model().varies) == (True, False)
