"""Weight versions, gradient buckets and optimizer of a stage.

They are compared with plain torch.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import InputError, InternalError
from hocket.profiling.job.learning_rate.learning_rates import Scheduled
from hocket.runtime.engine.inline import add_up, gather_parts, scatter_sums
from hocket.runtime.update.buckets import GradientBucket
from hocket.runtime.update.slots import WeightSlot
from hocket.runtime.update.weight_versions import StageWeights


def adam(own: Mapping[str, nn.Parameter]) -> Scheduled:
    """Adam with weight decay, so that a missing gradient and one of zeros differ."""
    return Scheduled(torch.optim.Adam(own.values(), lr=0.1, weight_decay=0.1))


def tensors() -> dict[str, Tensor]:
    """Three parameters of odd shapes."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 5), "b": (5,), "c": (2, 2, 2)}
    return {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in shapes.items()}


def weights(summed: bool = False) -> StageWeights:
    """A stage of these parameters in two buckets."""
    return StageWeights(tensors(), [GradientBucket(names, summed) for names in (("c",), ("a", "b"))], adam)


def loss(leaves: dict[str, Tensor], skip: str = "") -> Tensor:
    """Something that depends on all parameters but one."""
    return sum((leaves[n].sin() * (k + 1)).sum() for k, n in enumerate(leaves) if n != skip) * 1.0


def plain(steps: int, passes: int = 1, skip: str = "") -> dict[str, Tensor]:
    """Train the same tensors with plain torch."""
    own = {n: nn.Parameter(t) for n, t in tensors().items()}
    optimizer = adam(own).optimizer
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            loss(own, skip).backward()
        optimizer.step()
    return {n: p.detach() for n, p in own.items()}


def train(stage: StageWeights, slot: WeightSlot, passes: int = 1, in_place: bool = True, skip: str = "") -> WeightSlot:
    """One update."""
    buckets = ()
    for _ in range(passes):
        stage.gradients.begin(slot, buckets)
        loss(slot.leaves, skip).backward()
        buckets = stage.gradients.end(slot)
    new = stage.step(slot, buckets, in_place)
    for bucket in buckets:
        stage.buckets.recycle(bucket)
    return new


def same(slot: WeightSlot, expected: dict[str, Tensor]) -> bool:
    """True if a slot holds these numbers."""
    return all(torch.equal(slot.leaves[n], t) for n, t in expected.items())


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("passes", [1, 3])
def test_updates_in_place_equal_plain_training(summed, passes):
    """Updates in place equal plain training bit for bit.

    There is one version, and gradients are accumulated over passes.
    """
    stage = weights(summed)
    slot = stage.newest
    for _ in range(4):
        assert train(stage, slot, passes) is slot
    assert same(slot, plain(4, passes))


@pytest.mark.parametrize("summed", [False, True])
def test_old_versions_stay_as_they_were(summed):
    """Old versions stay unchanged until they are released.

    Each version has its own slot. The optimizer state continues.
    """
    stage = weights(summed)
    slots = [stage.newest]
    for _ in range(3):
        slots.append(train(stage, slots[-1], in_place=False))
    assert len({id(slot) for slot in slots}) == 4
    for k, slot in enumerate(slots):
        assert same(slot, plain(k))


def test_slots_and_flat_buckets_are_used_again():
    """In the steady state no slot and no flat gradient is allocated."""
    stage = weights(summed=True)
    slot, seen, flats = stage.newest, set(), set()
    for _ in range(6):
        stage.gradients.begin(slot, ())
        loss(slot.leaves).backward()
        buckets = stage.gradients.end(slot)
        flats |= {flat.data_ptr() for bucket in buckets for flat in bucket.flats}
        new = stage.step(slot, buckets, in_place=False)
        for bucket in buckets:
            stage.buckets.recycle(bucket)
        stage.release(slot)
        slot = new
        seen.add(id(slot))
    assert len(seen) == 2
    assert len(flats) == 2
    assert same(slot, plain(6))


@pytest.mark.parametrize("summed", [False, True])
def test_a_parameter_without_gradient_is_left_alone(summed):
    """A parameter without a gradient is unchanged.

    The optimizer applies no weight decay and no momentum to it, as in plain torch.
    """
    stage = weights(summed)
    slot = stage.newest
    for _ in range(3):
        train(stage, slot, skip="b")
    assert same(slot, plain(3, skip="b"))
    assert torch.equal(slot.leaves["b"], tensors()["b"])


def test_buckets_lie_flat_and_gradients_are_views():
    """Buckets are flat, and gradients are views of them.

    A bucket that is summed over devices is one tensor. A change of it changes the gradients.
    """
    stage = weights(summed=True)
    slot = stage.newest
    stage.gradients.begin(slot, ())
    loss(slot.leaves).backward()
    buckets = stage.gradients.end(slot)
    assert [len(bucket.flats) for bucket in buckets] == [1, 1]
    before = [g.clone() for bucket in buckets for g in bucket.gradients]
    for bucket in buckets:
        bucket.flats[0].mul_(2)
    after = [g for bucket in buckets for g in bucket.gradients]
    assert all(torch.equal(2 * a, b) for a, b in zip(before, after, strict=True))
    # Two replicas with half of the gradient each are one with all of it.
    assert same(stage.step(slot, buckets, in_place=True, factor=0.5), plain(1))


def test_buckets_are_ready_in_order_and_early():
    """Buckets are ready early and in order.

    From the second backward on, a bucket is handed out with its last gradient, in the order of the bucket numbers.
    """
    stage = weights(summed=True)
    slot = stage.newest
    train(stage, slot)
    order: list[str] = []
    slot.leaves["a"].register_post_accumulate_grad_hook(lambda _: order.append("gradient a"))
    stage.gradients.begin(slot, (), lambda bucket: order.append(f"bucket {bucket.number}"))
    # The later layer uses c, so that its gradient comes first.
    ((slot.leaves["a"] * slot.leaves["b"]).sum() * slot.leaves["c"].exp()).sum().backward()
    assert order == ["bucket 0", "bucket 1", "gradient a"] or order == ["bucket 0", "gradient a", "bucket 1"]
    stage.gradients.end(slot)
    assert [entry for entry in order if entry.startswith("bucket")] == ["bucket 0", "bucket 1"]


def test_an_unexpected_gradient_is_refused():
    """An unexpected gradient is refused.

    If the first backward did not have it, an early all-reduce would miss it.
    """
    stage = weights(summed=True)
    slot = stage.newest
    train(stage, slot, skip="b")
    stage.gradients.begin(slot, ())
    with pytest.raises(InputError, match="parameter b"):
        loss(slot.leaves).backward()


def test_a_graph_in_flight_sees_an_update_in_place():
    """A graph in flight sees an update in place.

    Under `naive`, a backward uses the current weights, and autograd accepts this.
    """
    stage = StageWeights(
        {"a": torch.tensor([2.0])},
        [GradientBucket(("a",))],
        lambda own: Scheduled(torch.optim.SGD(own.values(), lr=1.0)),
    )
    slot = stage.newest
    x = torch.tensor([3.0], requires_grad=True)
    y = (x * slot.leaves["a"]).sum()
    stage.gradients.begin(slot, ())
    slot.leaves["a"].sum().backward()
    stage.step(slot, stage.gradients.end(slot), in_place=True)
    stage.gradients.begin(slot, ())
    y.backward()
    stage.gradients.end(slot)
    assert x.grad == torch.tensor([1.0])  # 2 - 1, not 2


def test_state_goes_on_in_another_stage():
    """State continues in another stage.

    Loaded weights and optimizer state give the same training.
    """
    first, second = weights(), weights(summed=True)
    for _ in range(2):
        train(first, first.newest)
    state = {n: {k: v.clone() for k, v in entries.items()} for n, entries in first.state().items()}
    second.load({n: leaf.detach() for n, leaf in first.newest.leaves.items()}, state)
    train(second, second.newest)
    assert same(second.newest, plain(3))
    assert same(first.newest, plain(2))


def test_a_stage_without_parameters():
    """A stage without parameters has empty versions."""
    stage = StageWeights({}, [GradientBucket(())], adam)
    stage.gradients.begin(stage.newest, ())
    buckets = stage.gradients.end(stage.newest)
    slot = stage.step(stage.newest, buckets, in_place=False)
    assert slot is stage.newest
    assert stage.optimizer is None


def test_misuse_is_our_bug():
    """Misuse raises an internal error.

    Cases: a step from an old version, release of the newest version, and buckets that are no partition.
    """
    stage = weights()
    old = stage.newest
    train(stage, old, in_place=False)
    with pytest.raises(InternalError):
        stage.step(old, (), in_place=True)
    with pytest.raises(InternalError):
        stage.release(stage.newest)
    with pytest.raises(InternalError):
        StageWeights(tensors(), [GradientBucket(("a", "b"))], adam)


def shared(parts: int) -> list[StageWeights]:
    """Replicas that share the step; weights of the first bucket are whole on each."""
    buckets = [GradientBucket(("c",), summed=True), GradientBucket(("a", "b"), summed=True, scattered=True)]
    return [StageWeights(tensors(), buckets, adam, (number, parts)) for number in range(parts)]


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("in_place", [True, False])
def test_replicas_that_share_the_step_are_one(parts: int, in_place: bool) -> None:
    """Replicas that share the step equal one replica.

    Each replica updates its part. The gathered weights and optimizer state equal those of one replica.
    """
    replicas, steps = shared(parts), 4
    for _ in range(steps):
        backward = []
        for stage in replicas:
            stage.gradients.begin(stage.newest, ())
            (loss(stage.newest.leaves) / parts).backward()
            backward.append(stage.gradients.end(stage.newest))
        add_up([buckets[0] for buckets in backward])
        scatter_sums([buckets[1] for buckets in backward])
        old = [stage.newest for stage in replicas]
        new = [s.step(s.newest, buckets, in_place) for s, buckets in zip(replicas, backward, strict=True)]
        gather_parts(new)
        for stage, before, buckets in zip(replicas, old, backward, strict=True):
            assert (stage.newest is before) == in_place
            if not in_place:
                stage.release(before)
            for bucket in buckets:
                stage.buckets.recycle(bucket)
    alone = weights()
    for _ in range(steps):
        train(alone, alone.newest)
    for stage, state in zip(replicas, states(replicas), strict=True):
        for name, leaf in alone.newest.leaves.items():
            assert torch.allclose(stage.newest.leaves[name], leaf, rtol=1e-12)
        kept = sum(t.numel() for m in stage.optimizer.state.values() for t in m.values() if t.dim())
        assert kept <= 2 * (8 + 64 / parts)
        assert state.keys() == alone.state().keys()
        for name, entries in alone.state().items():
            assert state[name].keys() == entries.keys()
            for key, value in entries.items():
                assert torch.allclose(state[name][key], value, rtol=1e-12)
                assert state[name][key].dtype == value.dtype


def states(replicas: list[StageWeights]) -> list[dict[str, dict[str, object]]]:
    """Return the gathered state of each replica (threads that meet)."""
    meet, given = threading.Barrier(len(replicas)), {}

    def gather(number: int, tensor: Tensor) -> list[Tensor]:
        given[number] = tensor
        meet.wait(10)
        found = [given[k] for k in range(len(replicas))]
        meet.wait(10)
        return found

    with ThreadPoolExecutor(len(replicas)) as pool:
        pairs = [(stage, partial(gather, number)) for number, stage in enumerate(replicas)]
        return list(pool.map(lambda pair: pair[0].state(pair[1]), pairs))


def test_a_state_goes_into_parts_and_back() -> None:
    """A state can be divided among replicas and gathered again.

    One replica trained it, and replicas that share the step load it.
    """
    alone, replicas = weights(), shared(2)
    for _ in range(3):
        train(alone, alone.newest)
    before = {n: leaf.detach().clone() for n, leaf in alone.newest.leaves.items()}
    for stage in replicas:
        stage.load(before, alone.state())
    for stage, state in zip(replicas, states(replicas), strict=True):
        assert same(stage.newest, before)
        for name, entries in alone.state().items():
            assert {k: v.tolist() for k, v in state[name].items()} == {k: v.tolist() for k, v in entries.items()}


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("scattered", [False, True])
def test_replicas_without_parameters_have_nothing_to_sum(scattered: bool, gathers: bool) -> None:
    """A stage of layers without weights has a bucket of nothing."""
    stage = StageWeights({}, [GradientBucket((), True, scattered)], adam, (0, 2), gathers and scattered)
    stage.gradients.begin(stage.newest, ())
    (bucket,) = stage.gradients.end(stage.newest)
    assert bucket.flats == bucket.parts == ()
    assert stage.step(stage.newest, [bucket], True) is stage.newest
    assert stage.state(lambda tensor: [tensor]) == {} == stage.whole(lambda tensor: [tensor])
