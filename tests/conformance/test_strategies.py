"""The contract of hocket/strategies, held by every member that the folder has: a new file is tested by being there."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.predict.extrapolate import shorter
from hocket.planning.predict.predict import predict_choice
from hocket.profiling.analytic.synthetic import chain
from hocket.program.check.check import check
from hocket.program.instruction import Kind, ValueKind
from hocket.program.passes.borders import stage_shapes
from hocket.program.program import SHARDS, Program, StageShape
from hocket.program.rule import KINDS, Rule
from hocket.program.text.printer import parse_program, print_program
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import Option, compile_strategy, complete, members, strategy
from tests.paths import GOLDEN
from tests.program.helpers.programs import CASES, pipeline, rounds, stages_on, two_waves, waves
from tests.program.helpers.symbolic import Run, Symbols
from tests.tiers import examples, thinned

Stages = tuple[StageShape, ...]

SHAPES: dict[str, Stages] = {
    "one device": pipeline((1,)),
    "one device, recompute": pipeline((1,), recompute=(0,)),
    "replicas": pipeline((3,), buckets=3),
    "straight": pipeline((1, 1, 1)),
    "straight, recompute": pipeline((1, 1, 1), recompute=(0, 2)),
    "skips": pipeline((1, 1, 1, 1), skips=((0, 2), (0, 3), (1, 3))),
    "a skip without gradient": pipeline((1, 1, 1), dry=((0, 2),)),
    "a border without gradient": pipeline((1, 1), dry=((0, 1),)),
    "ties": pipeline((1, 1, 1), tied=((0, 2),)),
    "several ties": pipeline((1, 2, 1), tied=((0, 1), (0, 1, 2), (1, 2))),
    "unequal replicas": pipeline((2, 1), buckets=2),
    "unequal replicas the other way": pipeline((1, 3)),
    "2-1-1 with a skip": pipeline((2, 1, 1), skips=((0, 2),)),
    "replicas that do not divide each other": pipeline((2, 3), skips=()),
    "equal replicas": pipeline((2, 2), buckets=2, recompute=(0,)),
    "one device, clipped": pipeline((1,), clips=True),
    "unequal replicas, clipped": pipeline((2, 1), buckets=2, clips=True),
    "unequal replicas, weighted": tuple(replace(stage, weighted=True) for stage in pipeline((2, 1), buckets=2)),
    "waves without whole weights, weighted": tuple(replace(one, weighted=True) for one in waves(2, 2, shard="full")),
    "unequal replicas, each stage clipped": tuple(
        replace(one, clips_alone=True) for one in pipeline((2, 1), buckets=2)
    ),
    "unequal replicas, scaled": tuple(replace(stage, scaled=True) for stage in pipeline((2, 1), buckets=2)),
    "ties, clipped": pipeline((1, 2, 1), tied=((0, 2),), clips=True),
    "rounds, clipped": rounds(2, 2, 2, clips=True),
    "rounds": rounds(2, 1, 2),
    "rounds with replicas": rounds(2, 2, 2, skips=((0, 2), (0, 3), (1, 3)), recompute=(1, 2)),
    "rounds with a tie on one device": rounds(2, 1, 2, tied=((0, 2),)),
    "rounds with a tie": rounds(3, 1, 2, tied=((0, 5),)),
    "replicas that share a step": pipeline((3,), buckets=3, shard="optimizer"),
    "replicas that share a step, recompute": pipeline((2, 2), recompute=(0,), shard="optimizer"),
    "unequal replicas that share a step": pipeline((2, 1), buckets=2, shard="optimizer"),
    "replicas that do not divide each other and share a step": pipeline((2, 3), shard="optimizer"),
    "ties of replicas that share a step": pipeline((1, 2, 1), tied=((0, 1), (1, 2)), shard="optimizer"),
    "replicas without whole weights": pipeline((2,), buckets=2, shard="full"),
    "stages of replicas without whole weights": pipeline((2, 2), recompute=(1,), shard="full"),
    "units on the same replicas": rounds(1, 2, 3, skips=((0, 2),), shard="full"),
    "units on the same replicas, recompute": rounds(1, 3, 2, recompute=(0, 1), shard="full"),
    "units on one device": rounds(1, 1, 3),
    "units with ties": rounds(1, 2, 3, tied=((0, 2), (0, 1, 2)), shard="optimizer"),
    "as many waves as devices": waves(3, 3, skips=((0, 2),), buckets=2),
    "as many waves as devices, tied": waves(3, 3, tied=((0, 2),)),
    "fewer waves than devices": waves(4, 2, recompute=(0, 2)),
    "fewer waves than devices, tied far apart": waves(4, 2, tied=((0, 2),), clips=True),
    "waves that go round several times": waves(2, 2, 5, shard="optimizer"),
    "waves without whole weights": waves(3, 3, 4, recompute=(1,), shard="full"),
    "waves without whole weights, clipped": waves(2, 2, shard="full", clips=True),
    "fewer waves without whole weights": waves(3, 2, shard="full"),
    "two waves on one device": two_waves(1),
    "two waves": two_waves(2, buckets=2),
    "two waves on three devices": two_waves(3),
    "rounds with replicas that share a step": rounds(2, 2, 2, skips=((0, 2),), shard="optimizer"),
}
MICROBATCHES = (1, 2, 3, 4, 6)


def option_sets(name: str) -> Iterator[dict[str, Any]]:
    """No options, each one by itself, and all switches at once."""
    options = strategy(name).options
    yield {}
    for key, option in options.items():
        tried: dict[type, tuple[Any, ...]] = {bool: (True,), tuple: ([2, 1], [1, 2])}
        for value in tried.get(option.kind, option.words or (1, 2)):
            yield {key: value}
    switches = {key: True for key, option in options.items() if option.kind is bool}
    if len(switches) > 1:
        yield switches


def compiled(name: str, stages: Stages, microbatches: int, options: dict[str, Any]) -> Program | None:
    """The program, or None when it is refused; a refusal gives its reason."""
    try:
        return compile_strategy(name, stages, microbatches, options)
    except RefusedError as error:
        place, reason = error.place, error.found
    assert place == f"strategy {name}"
    assert len(reason.split()) >= 4, f"{name} refuses without a reason that helps: {reason!r}"
    return None


def hold(name: str, program: Program, seed: int) -> None:
    """A compiled program is legal, goes round as text, and computes what its rule says."""
    problems = check(program)
    assert not problems, f"{program.name}: {problems[0]}"
    assert parse_program(print_program(program)) == program
    assert program.name.startswith(name)
    for repeats in range(2):
        Run(program, repeats, Random(seed), Symbols()).finish()


def staleness(program: Program) -> dict[int, set[int]]:
    """Per stage, updates between the version that the period's forwards use and the update they go into."""
    found: dict[int, set[int]] = {}
    whole = [i for row in program.period.values() for i in row if i.kind is Kind.ALL_GATHER]
    gathered = {(i.device, i.writes[0]): i.reads[0].index for i in whole}
    for i in (i for row in program.period.values() for i in row if i.kind is Kind.FORWARD):
        version = next(
            v.index if v.what is ValueKind.WEIGHTS else gathered[i.device, v]
            for v in i.reads
            if v.what in (ValueKind.WEIGHTS, ValueKind.GATHERED)
        )
        found.setdefault(i.stage, set()).add(program.rule.update(i.stage, i.index) - version)
    return found


@pytest.mark.parametrize("name", members())
def test_a_member_has_what_the_room_asks(name: str) -> None:
    """PAPER, OPTIONS with defaults and help, and the four functions."""
    member = strategy(name)
    assert isinstance(member.paper, str)
    assert len(member.paper) > 10
    assert isinstance(member.steady, bool)
    for key, option in member.options.items():
        assert key.isidentifier()
        assert isinstance(option, Option)
        assert option.default is None or isinstance(option.default, option.kind)
        assert len(option.help) > 10
    for function in ("rule", "supports", "compile", "choices"):
        assert callable(getattr(member, function))
        assert getattr(member, function).__doc__


@pytest.mark.parametrize("name", members())
def test_a_member_compiles_legal_programs_or_refuses_with_the_reason(name: str, fast: bool) -> None:
    """On every shape, number of microbatches and option: a legal program under the declared rule, or a reason.

    The fast selection has every two of them together."""
    taken = 0
    every = list(product(SHAPES, MICROBATCHES, option_sets(name)))
    rows = [(shape, microbatches, repr(options)) for shape, microbatches, options in every]
    for shape, microbatches, options in thinned(every, rows, 2, fast):
        stages, full = SHAPES[shape], complete(name, options)
        program = compiled(name, stages, microbatches, options)
        reason = strategy(name).supports(stages, microbatches, full)
        if program is None:
            continue
        assert reason is None, shape
        # What overlaps is an option's to say.
        given = tuple(replace(stage, overlaps=False) for stage in program.stages)
        assert given == stages
        assert program.rule == strategy(name).rule(stages, microbatches, full)
        hold(name, program, taken)
        taken += 1
    assert taken >= 5


@pytest.mark.parametrize("name", members())
@examples(40)
@given(data=st.data())
def test_a_member_compiles_legal_programs_on_any_shape(name: str, data: st.DataObject) -> None:
    """Random stages, replicas, skips, ties, buckets and recomputation."""
    count = data.draw(st.integers(1, 4))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    far = [(a, b) for a, b in pairs if b > a + 1]
    more = {
        "skips": tuple(data.draw(st.lists(st.sampled_from(far), unique=True))) if far else (),
        "dry": tuple(data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2))) if pairs else (),
        "recompute": tuple(data.draw(st.lists(st.sampled_from(range(count)), unique=True))),
        "buckets": data.draw(st.integers(1, 2)),
        "clips": data.draw(st.booleans()),
        "tied": tuple(data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2))) if pairs else (),
        "shard": data.draw(st.sampled_from(SHARDS)),
    }
    kind = data.draw(st.sampled_from(("pipeline", "rounds", "waves")))
    if kind == "pipeline":
        stages = pipeline(data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)), **more)
    elif kind == "waves":
        devices = data.draw(st.integers(1, 4))
        stages = waves(devices, data.draw(st.integers(1, devices)), count, **more)
    else:
        depth = data.draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        stages = rounds(depth, data.draw(st.integers(1, 2)), count // depth, **more)
    options = data.draw(st.sampled_from(list(option_sets(name))))
    program = compiled(name, stages, data.draw(st.integers(1, 7)), options)
    if program is not None:
        hold(name, program, 0)


@pytest.mark.parametrize("name", members())
def test_a_member_is_as_steady_as_it_declares(name: str) -> None:
    """What a long batch takes is foreseen from two shorter ones, its memory too; who declares nothing is not foreseen."""
    member = strategy(name)
    cluster = Cluster("servers", (Level("server", 4, 1e9, 1e-5, False),), "v100-16gb")
    profile = chain(
        12, activation_bytes=1e3, stash_bytes=1e6, microbatch_sizes=(1,), device_type="v100-16gb", forward_s=1e-3
    )
    for choice in member.choices(SearchSpace(profile, cluster, 8)):
        width = len(choice.stages[0].devices)
        if any(len(stage.layers) * len(choice.stages) != 12 or len(stage.devices) != width for stage in choice.stages):
            continue
        batch = 48 * width
        sizes = shorter(name, choice.stages, (batch, 1))
        assert (sizes is not None) == member.steady
        if sizes is None:
            continue
        space = SearchSpace(profile, cluster, batch)
        whole = predict_choice(space, name, choice, most_forwards=10**9)
        told = predict_choice(space, name, choice, most_forwards=0)
        assert told.iteration_s == pytest.approx(whole.iteration_s, rel=1e-6), choice
        assert told.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes), choice


def test_long_batches_are_foreseen_where_they_can_be() -> None:
    """A strategy that is declared unsteady by mistake would be simulated whole: slowly, and noticed by nobody."""
    known = {"burst_parallel", "gpipe", "harmony", "pipedream", "tick_tock"}
    unsteady = {name for name in members() if not strategy(name).steady}
    assert unsteady == known, "add a new strategy here if a further microbatch does not always add the same time"


@pytest.mark.parametrize("name", members())
def test_a_member_holds_its_declared_rule(name: str) -> None:
    """Once warm, each stage's gradients are as many updates old as the rule declares; synchronous ones never."""
    for stages in SHAPES.values():
        for options in option_sets(name):
            program = compiled(name, stages, 4, options)
            if program is None:
                continue
            assert program.rule.kind in KINDS
            lags = {stage: {program.rule.staleness(stage)} for stage in range(len(stages))}
            assert staleness(program) == lags
            assert program.rule.synchronous or program.rule.kind != "sync"


@pytest.mark.parametrize("name", members())
def test_a_member_refuses_what_nobody_can_do(name: str) -> None:
    """No stages, no microbatches, a device twice, a border backwards, a tie half on one device, an unknown option."""
    straight = pipeline((1, 1))
    backwards = (StageShape((0,), sources=(1,)), StageShape((1,), targets=(0,)))
    twice = (StageShape((0, 0)),)
    for stages, microbatches in (
        ((), 1),
        (straight, 0),
        (twice, 2),
        (backwards, 2),
        (stages_on([(0,), (0,), (1,)], tied=((0, 1, 2),)), 2),
    ):
        with pytest.raises(RefusedError):
            compile_strategy(name, stages, microbatches)
    with pytest.raises(InputError, match="unknown option"):
        compile_strategy(name, straight, 4, {"no_such_option": 1})


@pytest.mark.parametrize("name", members())
def test_a_member_compiles_the_same_program_each_time(name: str) -> None:
    """Compiling is a function: the same text to the byte."""
    case = next(case for case in CASES if case.strategy == name)
    again = compile_strategy(name, case.stages, case.microbatches, dict(case.options))
    assert print_program(again) == print_program(case.program())


@pytest.mark.parametrize("name", members())
def test_a_member_has_golden_drawings(name: str) -> None:
    """At least one staircase in tests/golden; add a case to tests/program/helpers/programs.py and run `make golden`."""
    assert list(GOLDEN.glob(f"{name}/{name}-*.txt")), f"no golden drawing of {name}"


@pytest.mark.parametrize("name", members())
def test_a_members_choices_can_be_compiled(name: str) -> None:
    """What a member offers to the planner is legal, or refused with a reason; something is legal."""
    profile = chain(6, forward_s=[1.0, 2.0, 1.0, 3.0, 1.0, 1.0], microbatch_sizes=(1, 2), device_type="cpu-core")
    cluster = Cluster("four", (Level("server", 4, 1e9),), device_type="cpu-core")
    space = SearchSpace(profile, cluster, batch_size=4)
    legal = 0
    for choice in islice(strategy(name).choices(space), 40):
        program = compiled(name, stage_shapes(profile, choice.stages), choice.microbatches, choice.options)
        if program is not None:
            assert check(program) == ()
            legal += 1
    assert legal >= 1


@pytest.mark.parametrize(
    ("name", "options", "lags"),
    [
        ("gpipe", {}, (0, 0, 0, 0)),
        ("flush", {}, (0, 0, 0, 0)),
        ("model_parallel", {}, (0, 0, 0, 0)),
        ("two_bw", {}, (1, 1, 1, 1)),
        ("pipedream", {}, (3, 2, 1, 0)),
        ("pipedream", {"naive": True}, (3, 2, 1, 0)),
        ("pipedream", {"vertical_sync": True}, (3, 3, 3, 3)),
        ("pipedream", {"in_flight": 2}, (1, 1, 1, 0)),
    ],
)
def test_the_staleness_of_section_2_4_3(name: str, options: dict[str, Any], lags: tuple[int, ...]) -> None:
    """Stage s of p: p - 1 - s updates with stashing, p - 1 with vertical sync, 1 with 2BW, none with a flush."""
    program = compile_strategy(name, pipeline((1, 1, 1, 1)), 4, options)
    assert staleness(program) == {stage: {lag} for stage, lag in enumerate(lags)}


def test_a_rule_declares_what_it_means() -> None:
    """version = max(0, m // batch - delay), and what makes up an update."""
    rule = Rule("stashed", (1, 2), (3, 1))
    assert [rule.version(0, m) for m in range(6)] == [0, 0, 0, 0, 1, 2]
    assert [rule.version(1, m) for m in range(6)] == [0, 0, 0, 0, 1, 1]
    assert list(rule.microbatches(1, 2)) == [4, 5]
