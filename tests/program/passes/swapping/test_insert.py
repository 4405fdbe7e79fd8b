"""Swaps of compiled programs.

Their bytes equal the formulas of docs/explanation/harmony.md, their memory is within budgets, and they are legal.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hocket.cost.swapping.volumes import (
    Scheme,
    SwapKind,
    SwapLayer,
    data_parallel,
    harmony_data,
    harmony_pipeline,
    pipeline_parallel,
    swap_volumes,
)
from hocket.errors import RefusedError
from hocket.program.check.check import check
from hocket.program.instruction import SWAPS, Kind, ValueKind
from hocket.program.memory_bound import happens_before
from hocket.program.memory_bound.footprint import Plain, footprints
from hocket.program.passes.swapping.insert import sizes_of, with_swaps
from hocket.program.passes.swapping.settings import Swapping, stages_of
from hocket.program.program import Program, StageShape
from hocket.program.text.printer import parse_program, print_program
from hocket.strategies.base.strategy import compile_strategy, habits
from tests.paths import golden
from tests.program.helpers.programs import stages_on
from tests.program.helpers.symbolic import Run, Symbols
from tests.tiers import examples

KINDS = {
    ValueKind.WEIGHTS: SwapKind.WEIGHTS,
    ValueKind.ACCUMULATOR: SwapKind.GRADIENTS,
    ValueKind.REDUCED: SwapKind.GRADIENTS,
    ValueKind.OPTIMIZER: SwapKind.OPTIMIZER,
    ValueKind.STASH: SwapKind.STASH,
    ValueKind.GRADIENT: SwapKind.ACTIVATION_GRADIENTS,
}


def shapes(scheme: Scheme, layers: int, recompute: bool) -> tuple[StageShape, ...]:
    """Stages of one layer each, on the devices of a scheme. The first reads the batch."""
    everywhere = tuple(range(scheme.devices))
    devices = [(scheme.forward_device(k, layers),) if scheme.pipeline else everywhere for k in range(layers)]
    made = stages_on(devices, recompute=range(layers) if recompute else ())
    return tuple(replace(stage, batch=s == 0) for s, stage in enumerate(made))


def compiled(scheme: Scheme, layers: int, recompute: bool, forward: tuple[int, ...] = ()) -> Program:
    """Program of a scheme with the swaps of policy `task`.

    Arguments:
        forward: stages of each forward task.
    """
    options: dict[str, Any] = {
        "mode": "pipeline" if scheme.pipeline else "data",
        "grouping": scheme.grouped,
        "just_in_time": scheme.just_in_time,
        "peer": scheme.peer,
        "forward": forward,
    }
    microbatches = scheme.microbatches * scheme.devices
    program = compile_strategy("harmony", shapes(scheme, layers, recompute), microbatches, options)
    swapping = Swapping("task", writes_clean=scheme.writes_clean)
    return with_swaps(program, swapping, habits("harmony", options))


def counted(
    program: Program, layers: list[SwapLayer], forward: tuple[int, ...] = ()
) -> dict[SwapKind, tuple[float, float]]:
    """Bytes to and from hosts, and between devices, by kind.

    A stage's input that its backward needs counts as stash: an input that is swapped after its forward, also in the
    forward task (of several stages) that made it.
    """
    task = [t for t, size in enumerate(forward or (1,) * len(layers)) for _ in range(size)]
    host: Counter[SwapKind] = Counter()
    peer: Counter[SwapKind] = Counter()
    for _, i in program.instructions():
        if i.kind in SWAPS or i.kind in (Kind.SEND, Kind.LOAD):
            value = i.writes[0] if i.kind is not Kind.SEND else i.reads[0]
            if value.what is ValueKind.INPUT:
                kind = SwapKind.ACTIVATIONS if i.kind is Kind.LOAD else SwapKind.STASH
                size = layers[value.stage].input_bytes
            elif value.what in (ValueKind.ACTIVATION, ValueKind.GRADIENT):
                apart = task[value.stage] != task[value.part]
                moved = SwapKind.ACTIVATIONS if value.copy <= 2 and apart else SwapKind.STASH
                kind = moved if value.what is ValueKind.ACTIVATION else SwapKind.ACTIVATION_GRADIENTS
                size = layers[value.part].input_bytes
            else:
                kind, layer = KINDS[value.what], layers[value.stage]
                stash = layer.stash_bytes - layer.input_bytes
                size = (layer.weights_bytes, layer.gradients_bytes, layer.optimizer_bytes, stash)[
                    list(SwapKind).index(kind)
                ]
            if i.kind is not Kind.SEND:
                host[kind] += size
            elif not value.copy:
                peer[kind] += size
    return {kind: (host[kind], peer[kind]) for kind in SwapKind}


SIZES = some.integers(0, 50).map(float)


@given(
    some.lists(some.tuples(SIZES, SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=5),
    some.integers(1, 3), some.integers(1, 3), some.booleans(), some.booleans(), some.booleans(), some.booleans(), some.booleans(),
    some.booleans(), some.booleans(),
)  # fmt: skip
@examples(50)
def test_bytes_of_swaps_equal_the_formulas(
    sizes: list[tuple[float, ...]], devices: int, microbatches: int, pipeline: bool, in_turn: bool, grouped: bool,
    just_in_time: bool, peer: bool, clean: bool, recompute: bool,
) -> None:  # fmt: skip
    """Swapped bytes equal the formulas for every combination of switches.

    This holds for any bytes, with and without recomputation, for every kind, to hosts and to peers. The programs are
    legal.
    """
    layers = [SwapLayer(w, g, k, x + (0.0 if recompute else s), x) for w, g, k, s, x in sizes]
    scheme = Scheme(devices, microbatches, pipeline, in_turn, grouped, just_in_time, peer, writes_clean=clean)
    program = compiled(scheme, len(layers), recompute)
    assert check(program) == ()
    assert counted(program, layers) == swap_volumes(layers, scheme)


@given(
    some.lists(some.tuples(SIZES, SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=6), some.integers(1, 3), some.integers(1, 3),
    some.sets(some.integers(1, 5)), some.sets(some.integers(1, 5)), some.booleans(), some.booleans(), some.booleans(), some.booleans(),
)  # fmt: skip
@examples(50)
def test_bytes_of_unequal_packs_equal_the_formulas(
    sizes: list[tuple[float, ...]], devices: int, microbatches: int, inner: set[int], outer: set[int], grouped: bool,
    just_in_time: bool, clean: bool, recompute: bool,
) -> None:  # fmt: skip
    """Swapped bytes equal the formulas for packs with any numbers of layers.

    Stages are the backward packs. A forward task is any union of neighbours.
    """
    packs = (0, *sorted(k for k in inner | outer if k < len(sizes)))
    forward = (0, *sorted(k for k in outer if k < len(sizes)))
    kept = [
        x if k in packs else 0.0 for k, (*_, x) in enumerate(sizes)
    ]  # a stage's input; and all inside where nothing is made again
    layers = [
        SwapLayer(w, g, k, (0.0 if recompute else s) + own, x) for (w, g, k, s, x), own in zip(sizes, kept, strict=True)
    ]
    stages = [_together(layers[a:e]) for a, e in pairwise((*packs, len(layers)))]
    each = tuple(sum(a <= k < e for k in packs) for a, e in pairwise((*forward, len(layers))))
    scheme = Scheme(
        devices,
        microbatches,
        grouped=grouped,
        just_in_time=just_in_time,
        packs=packs,
        writes_clean=clean,
        forward=forward,
    )
    program = compiled(scheme, len(stages), recompute, each)
    assert check(program) == ()
    assert counted(program, stages, each) == swap_volumes(layers, scheme)


def _together(layers: Sequence[SwapLayer]) -> SwapLayer:
    """One layer with the bytes of a pack."""
    sums = (sum(column) for column in zip(*(vars(layer).values() for layer in layers), strict=True))
    return replace(SwapLayer(*sums), input_bytes=layers[0].input_bytes)


@pytest.mark.parametrize(("devices", "m"), [(1, 1), (2, 3), (4, 2)])
def test_weights_of_compiled_programs_as_printed(devices: int, m: int) -> None:
    """Weights of programs that can run are swapped as printed in the paper.

    (4m + 2)N|W| for data parallelism, 3N|W| for Harmony-DP, 3|W| for Harmony-PP (Harmony, HotOS 2021, section 3).
    """
    layers = [SwapLayer(w, 1, 1, 1, 1) for w in (5.0, 7.0, 11.0, 2.0)]
    for scheme, times in (
        (data_parallel(devices, m), (4 * m + 2) * devices),
        (harmony_data(devices, m), 3 * devices),
        (harmony_pipeline(devices, m), 3),
        (pipeline_parallel(devices, m), 4 * m * devices + 2),
    ):
        assert counted(compiled(scheme, 4, False), layers)[SwapKind.WEIGHTS] == (times * 25.0, 0.0)


@pytest.mark.parametrize(("devices", "m", "layers"), [(1, 1, 3), (2, 3, 5)])
def test_least_recently_used_swaps_what_is_printed_but_for_turns(devices: int, m: int, layers: int) -> None:
    """LRU with room for one layer's weights swaps almost the printed bytes.

    (4m + 2)N|W|, minus 4m of one layer's weights on each device, which are still there when the direction turns.
    """
    options: dict[str, Any] = {"grouping": False, "just_in_time": False}
    program = compile_strategy("harmony", shapes(data_parallel(devices, m), layers, False), m * devices, options)
    sizes = Plain(lambda value: float(value.what is ValueKind.WEIGHTS))
    found = with_swaps(program, Swapping("lru", device_bytes=1.0), habits("harmony", options), sizes)
    swapped = [i for _, i in found.instructions() if i.kind in SWAPS and i.writes[0].what is ValueKind.WEIGHTS]
    assert len(swapped) == devices * ((4 * m + 2) * layers - 4 * m)
    assert {one.bytes for one in footprints(found, sizes).values()} == {1.0}


def test_knowing_the_order_swaps_less() -> None:
    """Policy `next_use` swaps less than `lru` with the same budget.

    It evicts the value with the latest next use, and drops clean values.
    """
    options: dict[str, Any] = {"grouping": False, "just_in_time": False}
    program = compile_strategy("harmony", shapes(data_parallel(1, 4), 4, False), 4, options)
    sizes = Plain(lambda value: {ValueKind.WEIGHTS: 8.0, ValueKind.OPTIMIZER: 8.0}.get(value.what, 1.0))
    counts = {}
    for policy in ("lru", "next_use"):
        found = with_swaps(program, Swapping(policy, device_bytes=40.0), habits("harmony", options), sizes)
        assert check(found, value_bytes=sizes, capacity_bytes={0: 40.0}) == ()
        counts[policy] = sum(sizes.value(i.writes[0], 0) for _, i in found.instructions() if i.kind in SWAPS)
    assert counts["next_use"] < 0.7 * counts["lru"], counts


CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("data_parallel", [(0, 1)], {}),
    ("gpipe", [(0,), (1,)], {}),
    ("flush", [(0,), (1,), (2, 3)], {}),
    ("interleaved", [(0,), (1,), (0,), (1,)], {}),
    ("fully_sharded", [(0, 1)] * 3, {}),
    ("harmony", [(0, 1)] * 3, {}),
    ("harmony", [(0, 1)] * 3, {"grouping": False, "just_in_time": False}),
    ("harmony", [(0, 1)] * 3, {"forward": [2, 1]}),
    ("harmony", [(0,), (1,)] * 2, {"mode": "pipeline"}),
    ("harmony", [(0,), (1,)] * 2, {"mode": "pipeline", "peer": False}),
    ("harmony", [(0,), (0,), (1,), (1,)], {"mode": "pipeline", "grouping": False}),
]


@given(
    some.sampled_from(CASES), some.sampled_from(["task", "next_use", "lru"]), some.integers(0, 3), some.floats(0.2, 1.2),
    some.booleans(), some.booleans(), some.sampled_from([{}, {"skips": ((0, 2),)}, {"buckets": 2}, {"clips": True}, {"tied": ((0, 2),)}]),
    some.lists(some.integers(0, 40), min_size=len(ValueKind), max_size=len(ValueKind)),
    some.sampled_from([0.0, 0.5]), some.integers(0, 999),
)  # fmt: skip
@examples(20)
def test_any_budget_is_kept_or_refused(
    case: tuple[str, list[tuple[int, ...]], dict[str, Any]], policy: str, prefetch: int, share: float, recompute: bool,
    writes_clean: bool, more: dict[str, Any], amounts: list[int], unlike: float, seed: int,
) -> None:  # fmt: skip
    """Any budget is kept or refused.

    For any strategy, policy, common or separate budgets, and depth of prefetching, a program is refused, or it is
    legal, parsed as printed, and proved to be within the budget for any timing. On symbols, in any order, it makes the
    weights of the rule within the budget.
    """
    name, devices, options = case
    if (more.get("skips") or more.get("tied")) and len(devices) < 3:
        more = {}
    if more.get("clips") and name == "harmony":
        options = options | {"just_in_time": False}
    program = compile_strategy(
        name, stages_on(devices, recompute=range(len(devices)) if recompute else (), **more), 4, options
    )
    of_kind = dict(zip(ValueKind, map(float, amounts), strict=True)) | {ValueKind.MARK: 0.0}
    # What takes the place of something is as large.
    of_kind |= {ValueKind.REDUCED: of_kind[ValueKind.ACCUMULATOR], ValueKind.NORM: of_kind[ValueKind.SQUARES]}
    sizes = Plain(lambda value: of_kind[value.what])
    budget = share * max(one.bytes for one in footprints(program, sizes).values()) + 1.0
    budgets = tuple(budget * (1 + unlike * k) for k in range(max(program.devices) + 1))
    swapping = Swapping(policy, budgets if unlike else budget, prefetch=prefetch, writes_clean=writes_clean)
    try:
        found = with_swaps(program, swapping, habits(name, options), sizes)
    except RefusedError:
        assert share < 1.0 or prefetch  # what everything fits into is never refused but for what is fetched ahead
        return
    assert check(found, value_bytes=sizes, capacity_bytes=dict(enumerate(budgets))) == ()
    assert parse_program(print_program(found)) == found
    assert all(value.on_host for value in found.initial(0) + found.final(0, 2))
    run = Run(found, 1, Random(seed), Symbols(), lambda value: 0.0 if value.on_host else sizes.value(value, 0))
    run.finish()
    assert all(size <= budgets[device] for device, size in run.peak_bytes.items())


@given(
    some.sampled_from(CASES), some.sampled_from(["task", "next_use"]), some.integers(0, 2), some.integers(0, 999),
)  # fmt: skip
@examples(30)
def test_few_periods_stand_for_all(
    case: tuple[str, list[tuple[int, ...]], dict[str, Any]], policy: str, prefetch: int, seed: int
) -> None:
    """Bounds from one or two periods equal bounds from more periods.

    This holds for programs in which these represent all periods.
    """
    name, devices, options = case
    program = compile_strategy(name, stages_on(devices), 4, options)
    rng = Random(seed)
    of_kind = {what: float(rng.randrange(40)) for what in ValueKind} | {ValueKind.MARK: 0.0}
    of_kind |= {ValueKind.REDUCED: of_kind[ValueKind.ACCUMULATOR], ValueKind.NORM: of_kind[ValueKind.SQUARES]}
    sizes = Plain(lambda value: of_kind[value.what])
    budget = max(one.bytes for one in footprints(program, sizes).values())
    try:
        found = with_swaps(program, Swapping(policy, budget, prefetch=prefetch), habits(name, options), sizes)
    except RefusedError:
        return
    with pytest.MonkeyPatch.context() as patched:
        quick = [footprints(found, sizes, host) for host in (False, True)]
        patched.setattr(happens_before, "_few_periods", lambda program: None)
        patched.setattr(happens_before, "_last", None)
        assert [footprints(found, sizes, host) for host in (False, True)] == quick


def test_the_figures_of_a_plan_are_bounds() -> None:
    """A plan's figures of its stages give the same swaps as the values' own bytes.

    This holds if microbatches are equal.
    """
    stages = shapes(harmony_data(2, 2), 3, False)
    program = compile_strategy("harmony", stages, 4, {})
    sizes = Plain(
        lambda value: {ValueKind.WEIGHTS: 8.0, ValueKind.OPTIMIZER: 16.0, ValueKind.STASH: 3.0}.get(value.what, 1.0)
    )
    swapping = Swapping("next_use", 40.0, stages=stages_of(program, sizes))
    known = sizes_of(program, swapping)
    assert known is not None
    plain, own = (with_swaps(program, swapping, habits("harmony", {}), one) for one in (sizes, known))
    for device, one in footprints(own, known).items():
        assert footprints(own, sizes)[device].bytes <= one.bytes <= 40.0
    assert counted_bytes(own, sizes) >= counted_bytes(plain, sizes)


def counted_bytes(program: Program, sizes: Plain) -> float:
    """Bytes of all swaps."""
    return sum(sizes.value(i.writes[0], 0) for _, i in program.instructions() if i.kind in SWAPS)


def test_too_little_is_refused_with_what_is_missing() -> None:
    """A refusal names the operation, its largest value and the missing bytes.

    A plan without the bytes that the policy needs is refused as well.
    """
    program = compile_strategy("harmony", shapes(harmony_data(1, 2), 2, False), 2, {})
    sizes = Plain(lambda value: 1000.0 if value.what is ValueKind.WEIGHTS else 10.0)
    with pytest.raises(RefusedError, match=r"forward 0 #0 needs .*largest: w.0v0"):
        with_swaps(program, Swapping("next_use", 900.0), habits("harmony", {}), sizes)
    with pytest.raises(RefusedError, match="bytes of 0 stages"):
        with_swaps(program, Swapping("next_use", 900.0), habits("harmony", {}))
    with pytest.raises(RefusedError, match="are on the host at once"):
        with_swaps(program, Swapping("next_use", 5000.0, host_bytes=10.0), habits("harmony", {}), sizes)


@pytest.mark.slow
def test_more_than_is_enough_is_enough() -> None:
    """A budget above one that can be kept can be kept as well.

    If reducing the limit by the excess changes no swap, it is reduced further.
    """
    options = {"mode": "pipeline"}
    program = compile_strategy("harmony", stages_on([(k % 3,) for k in range(12)]), 6, options)
    state = {ValueKind.WEIGHTS: 90.0, ValueKind.OPTIMIZER: 180.0, ValueKind.ACCUMULATOR: 90.0, ValueKind.REDUCED: 90.0}
    draw = Random(1)
    more = [float(draw.randrange(30)) for _ in range(12)]
    sizes = Plain(lambda value: state.get(value.what, 7.0) + more[value.stage])
    for budget in range(730, 900, 10):
        with_swaps(program, Swapping("next_use", float(budget)), habits("harmony", options), sizes)


@pytest.mark.parametrize("policy", ["task", "next_use", "lru"])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.thinned(most=1)
def test_sums_with_stages_of_other_devices_stay(policy: str, prefetch: int) -> None:
    """Sums of tied weights on several devices stay on their devices.

    The first stage shares weights with the last one on another device. Their sum arrives after the first stage's
    backward, and instructions after the last stage's backward must not wait to make room for it.
    """
    program = compile_strategy(
        "harmony", stages_on([(0,), (1,)] * 3, tied=((0, 5),), recompute=range(6)), 4, {"mode": "pipeline"}
    )
    sizes = Plain(lambda value: 0.0 if value.what is ValueKind.MARK else 10.0)
    for budget in range(60, 200, 20):
        try:
            found = with_swaps(
                program,
                Swapping(policy, float(budget), prefetch=prefetch),
                habits("harmony", {"mode": "pipeline"}),
                sizes,
            )
        except RefusedError:
            continue
        assert check(found, value_bytes=sizes, capacity_bytes=dict.fromkeys(found.devices, float(budget))) == ()
        Run(found, 1, Random(budget), Symbols(), lambda value: 0.0).finish()
    assert budget == 180
    assert found.swaps


def test_what_is_late_or_divided_is_refused() -> None:
    """Only synchronous strategies with whole state swap."""
    for name, stages in (("two_bw", stages_on([(0,), (1,)])), ("fully_sharded", stages_on([(0, 1)], shard="full"))):
        with pytest.raises(
            RefusedError, match=r"swap with (pipedream, two_bw or tick_tock: .*newest version|shard: full: .*whole)"
        ):
            with_swaps(compile_strategy(name, stages, 2), Swapping("task"), habits(name, {}))


def test_prefetching_gives_swaps_lanes_of_their_own() -> None:
    """With prefetching, swaps have separate lanes.

    The exception is the first swap, which has no predecessor. Without prefetching, swaps are in the compute lane.
    """
    program = compile_strategy("harmony", shapes(harmony_data(1, 2), 3, False), 2, {})
    for prefetch in (0, 1):
        found = with_swaps(program, Swapping("task", prefetch=prefetch), habits("harmony", {}))
        lanes = Counter(i.lane for _, i in found.instructions() if i.kind in SWAPS)
        assert (set(lanes) == {"compute"}) == (prefetch == 0)
        assert (lanes["compute"] == 1) == (prefetch == 1)


def test_the_text_of_a_forward_task_of_two_stages(update_golden: bool) -> None:
    """Golden text of a forward task with two stages.

    Inside the task, weights stay and the next stage's input is there. It is swapped out once, for the backward.
    """
    options = {"forward": [2, 1]}
    program = compile_strategy("harmony", stages_on([(0,)] * 3, recompute=range(3)), 2, options)
    text = print_program(with_swaps(program, Swapping("task"), habits("harmony", options)))
    path = golden("swaps-harmony-data-forward")
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text


def test_the_text_of_a_program_that_swaps(update_golden: bool) -> None:
    """Golden text of Harmony-PP on two devices, with and without prefetching."""
    program = compile_strategy("harmony", stages_on([(0,), (1,)] * 2, recompute=range(4)), 2, {"mode": "pipeline"})
    for prefetch in (0, 1):
        text = print_program(with_swaps(program, Swapping("task", prefetch=prefetch), habits("harmony", {})))
        path = golden(f"swaps-harmony-pipeline-prefetch-{prefetch}")
        if update_golden:
            path.write_text(text)
        assert path.read_text() == text
