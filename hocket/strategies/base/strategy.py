"""Strategy interface: options, common checks, and the names of all strategies."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

from hocket.errors import InputError, RefusedError, nearest
from hocket.program.check.structure import unlike
from hocket.program.microbatches import Microbatches
from hocket.program.passes.prefetch import with_prefetch
from hocket.program.passes.swapping.insert import with_swaps
from hocket.program.passes.swapping.operations import Habits
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import Program, StageShape
from hocket.program.rule import Rule
from hocket.util import registry
from hocket.util.compatibility import Feature, conflict
from hocket.util.units import show_count

# Maximum number of forwards in one steady-state period of a plan written by hand; compiling so many takes some ten
# seconds. A search considers only shorter programs.
MAX_FORWARDS = 2**16

Stages = tuple[StageShape, ...]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """One entry of a plan's `options`.

    Attributes:
        kind: type of its value; tuple for a list of whole numbers >= 1.
        help: its effect, in words.
        words: allowed texts; empty if any value of the type is allowed.
    """

    kind: type
    default: Any
    help: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Strategy:
    """One schedule: a compiler from stages to a Program, with facts for the search.

    The arguments of `rule`, `supports`, `in_flight` and `compile` are the stages, the number of microbatches in a
    batch, and the values of all options.

    Attributes:
        paper: where the schedule comes from.
        rule: function that returns the update rule that the Program implements.
        supports: function that returns the reason to refuse its arguments; None if they can be compiled.
        in_flight: function that returns, for each stage, the most microbatches of which one replica holds saved
            activations at a time.
        compile: function that returns the Program.
        choices: function that returns the candidates in a `search_space.SearchSpace`.
        steady: True if each further microbatch makes a batch longer by the same time, so that the time of long batches
            can be extrapolated.
        options: the options that a plan may set, by name.
        merges_microbatches: True if a replica runs its share of a batch as one forward and one backward.
        yields_idle: True if devices that a stage does not use are free for other jobs.
        several_waves: True if several replicas of the model share devices, each with its own stages.
        only_swapping: True if a search tries the schedule only in plans that swap.
        missing: function that says why `choices` yields nothing in a search space; None if the schedule gives no
            reason.
    """

    paper: str
    rule: Callable[[Stages, int, Options], Rule]
    supports: Callable[[Stages, int, Options], str | None]
    in_flight: Callable[[Stages, int, Options], tuple[int, ...]]
    compile: Callable[[Stages, int, Options], Program]
    choices: Callable[[Any], Iterable[Any]]
    steady: bool
    options: Mapping[str, Option] = field(default_factory=dict)
    merges_microbatches: bool = False
    yields_idle: bool = False
    several_waves: bool = False
    only_swapping: bool = False
    missing: Callable[[Any], str] | None = None


def members() -> tuple[str, ...]:
    """Names of all strategies."""
    return registry.names("hocket.strategies.schedules")


def strategy(name: str) -> Strategy:
    """The strategy of this name.

    Raises:
        InputError: no strategy has this name; the message suggests the nearest.
    """
    found: Strategy = registry.load("hocket.strategies.schedules", name, "strategy").STRATEGY
    return found


def description(name: str) -> str:
    """First paragraph of the docstring of a strategy's module, on one line."""
    text = registry.load("hocket.strategies.schedules", name, "strategy").__doc__ or ""
    return text.strip().split("\n\n")[0].replace("\n", " ")


def complete(name: str, options: Options) -> dict[str, Any]:
    """Fill in the defaults of a strategy's options.

    Raises:
        InputError: an unknown strategy or option, or a value that the option does not allow.
    """
    known = strategy(name).options
    for key, value in options.items():
        if key not in known:
            expected = f"one of {', '.join(known)}" if known else f"no options: {name} has none"
            raise InputError(f"options.{key}", "unknown option", expected, nearest(key, known))
        kind = known[key].kind
        if kind is tuple:
            _whole_numbers(key, value)
        elif value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise InputError(f"options.{key}", repr(value), f"a value of type {kind.__name__}")
        words = known[key].words
        if words and value is not None and value not in words:
            raise InputError(f"options.{key}", repr(value), f"one of {', '.join(words)}", nearest(str(value), words))
    full = {key: options.get(key, option.default) for key, option in known.items()}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in full.items()}


def _whole_numbers(key: str, value: Any) -> None:
    """Check that the value of an option is a list of whole numbers >= 1."""
    if not isinstance(value, list | tuple) or any(type(one) is not int or one < 1 for one in value):
        raise InputError(f"options.{key}", repr(value), "a list of whole numbers >= 1, such as [3, 2, 1]")


def compile_strategy(
    name: str,
    stages: Stages,
    microbatches: int,
    options: Options | None = None,
    swap: Swapping | None = None,
    prefetch: int = 0,
) -> Program:
    """Compile one strategy to a Program.

    Arguments:
        stages: replicas, boundaries and gradient buckets of each stage.
        microbatches: number of microbatches in a batch. Strategies without a batch (PipeDream) accept any number >= 1
            and ignore it.
        options: values of some options; the others have their defaults.
        swap: settings of swapping; None if all values stay on their devices.
        prefetch: number of microbatches that each stage of a device loads ahead; 0 to load in the compute lanes.

    Raises:
        InputError: an unknown strategy or option, or a value that the option does not allow.
        RefusedError: the strategy does not support these stages, microbatches or options, or its program cannot swap
            within the limits; with the reason.
    """
    member = strategy(name)
    full = complete(name, options or {})
    reason = refusal(name, stages, microbatches, full) or _too_long(stages, member.rule(stages, microbatches, full))
    if reason:
        raise RefusedError(f"strategy {name}", reason)
    program = member.compile(stages, microbatches, full)
    if swap is not None:
        program = with_swaps(program, swap, habits(name, full))
    return with_prefetch(program, prefetch) if prefetch else program


def refusal(name: str, stages: Stages, microbatches: int, options: Options) -> str | None:
    """Reason to refuse a strategy for given stages; None if it supports them.

    The length of the program is not considered.

    Arguments:
        microbatches: number of microbatches in a batch.
        options: values of all options, defaults included.
    """
    member = strategy(name)
    reason = (
        _always(stages, microbatches)
        or _waves(name, stages)
        or _bundles(name, stages)
        or member.supports(stages, microbatches, options)
    )
    if reason is not None:
        return reason
    rule = member.rule(stages, microbatches, options)
    return conflict(in_use(stages, rule, options)) or _whole_rounds(stages, rule)


def in_use(stages: Stages, rule: Rule, options: Options) -> frozenset[Feature]:
    """Features that the stages, update rule and options of a plan use."""
    widths = {len(stage.devices) * stage.columns for stage in stages}
    asked = {
        Feature.ASYNCHRONOUS: rule.kind != "sync",
        Feature.APART: rule.kind not in ("sync", "averaged"),
        Feature.PIPEDREAM: rule.kind in ("stashed", "vertical", "naive"),
        Feature.NAIVE: bool(options.get("naive")),
        Feature.VERTICAL_SYNC: bool(options.get("vertical_sync")),
        Feature.ROUNDS: one_stage_a_device(stages) is not None,
        Feature.RECOMPUTE: any(stage.recompute for stage in stages),
        Feature.REPLICAS: max(widths) > 1,
        Feature.UNEQUAL_REPLICAS: len(widths) > 1,
        Feature.SHARD_OPTIMIZER: any(stage.sharded and not stage.gathers for stage in stages),
        Feature.SHARD_FULL: any(stage.gathers for stage in stages),
        Feature.TIED: any(stage.tied for stage in stages),
        Feature.CLIP: any(stage.clips for stage in stages),
        Feature.CLIP_STAGES: any(stage.clips_alone for stage in stages),
        Feature.LOSS_WEIGHT: any(stage.weighted for stage in stages),
        Feature.LOSS_SCALE: any(stage.scaled for stage in stages),
    }
    return frozenset(feature for feature, wanted in asked.items() if wanted)


def searched() -> tuple[str, ...]:
    """Names of the strategies that every search tries.

    The other strategies are only for plans that swap.
    """
    return tuple(name for name in members() if not strategy(name).only_swapping)


def habits(name: str, options: Options) -> Habits:
    """Properties of a strategy's task order that a plan with swapping needs.

    Raises:
        InputError: an unknown strategy or option, or a value that the option does not allow.
    """
    full = complete(name, options)
    return Habits(**{key: full[key] for key in Habits._fields if key in full})


def merges_microbatches(name: str) -> bool:
    """True if a replica runs its share of a batch as one forward and one backward."""
    return strategy(name).merges_microbatches


def yields_idle(name: str) -> bool:
    """True if devices that a stage does not use are free for other jobs."""
    return strategy(name).yields_idle


def missing(name: str, space: Any) -> str:
    """Say why a strategy has no candidate in a search space; empty if unknown."""
    says = strategy(name).missing
    return says(space) if says else ""


def microbatches_of(name: str, batch_size: int, size: int, widths: Iterable[int]) -> Microbatches:
    """Divide a batch into microbatches as a strategy needs it.

    Arguments:
        batch_size: samples of a batch.
        size: maximum size of a microbatch, in samples.
        widths: number of replicas of each stage.

    Raises:
        InputError: the strategy merges microbatches, and some would have no sample.
    """
    return (
        Microbatches.bundled(batch_size, size, widths)
        if merges_microbatches(name)
        else Microbatches.of(batch_size, size)
    )


def merged(name: str, replicas: int, microbatches: int) -> int:
    """Number of microbatches that one forward of a stage runs together.

    The result is 1 for strategies that do not merge microbatches, and if the replicas cannot divide the microbatches
    evenly.

    Arguments:
        replicas: number of replicas of the stage.
        microbatches: number of microbatches in a batch.
    """
    return microbatches // replicas if merges_microbatches(name) and microbatches % replicas == 0 else 1


def several_waves(name: str) -> bool:
    """True if several replicas of the model share devices, each with its own stages."""
    return strategy(name).several_waves


def _waves(name: str, stages: Stages) -> str | None:
    """Reason to refuse a second replica of the model on the same devices, or None."""
    s = next((s for s, stage in enumerate(stages) if stage.wave), None)
    return (
        None
        if s is None or several_waves(name)
        else f"stage {s} belongs to wave {stages[s].wave}; {name} allows one replica of the model on a device"
    )


def _bundles(name: str, stages: Stages) -> str | None:
    """Reason to refuse stages that merge microbatches; None if this is allowed."""
    s = next((s for s, stage in enumerate(stages) if stage.merged != 1), None)
    if s is None or merges_microbatches(name):
        return None
    return (
        f"stage {s} merges {stages[s].merged} microbatches; this strategy runs a separate forward and backward for each"
    )


def _whole_rounds(stages: Stages, rule: Rule) -> str | None:
    """Reason to refuse full sharding if replicas have unequal shares of a batch.

    The replicas of a stage gather its weights together, once for every round in which each replica runs a microbatch.
    """
    for s, stage in enumerate(stages):
        if stage.gathers and rule.batch[s] % stage.round:
            return (
                f"shard is full, and {show_count(rule.batch[s], 'microbatch')} a batch are not divisible into whole "
                f"rounds of the {len(stage.devices)} replicas of stage {s}, which gather weights together"
            )
    return None


def _always(stages: Stages, microbatches: int) -> str | None:
    """Reason to refuse stages and microbatches under every strategy, or None."""
    if not stages:
        return "there are no stages"
    if microbatches < 1:
        return f"{show_count(microbatches, 'microbatch')}; at least one is needed"
    for s, stage in enumerate(stages):
        if not stage.devices or len(set(stage.devices)) != len(stage.devices):
            return f"stage {s} has devices {stage.devices}; it needs at least one device, and each only once"
        if any(source >= s for source in stage.sources):
            return f"stage {s} reads from stage {max(stage.sources)}, which does not come before it"
        for _, tied in stage.tied:
            for other in tied:
                shared = unlike(stages, tied, s, other)
                if other != s and shared:
                    return (
                        f"stages {s} and {other} share tied weights and device {min(shared)}; stages with tied weights "
                        "must be one stage, have the same devices, or have no device in common"
                    )
    return None


def _too_long(stages: Stages, rule: Rule) -> str | None:
    """Reason to refuse a steady-state period of too many forwards, or None.

    A period covers whole batches, and every replica of a stage has the same number of turns in it.
    """
    microbatches = lcm(*rule.batch, *(stage.round for stage in stages))
    if sum(microbatches // stage.merged for stage in stages) <= MAX_FORWARDS:
        return None
    each = f"{microbatches:,} microbatches through {show_count(len(stages), 'stage')}"
    return (
        f"its period has {each}; programs of more than {MAX_FORWARDS:,} forwards are not compiled: "
        "use larger microbatches"
    )


def one_stage_a_device(stages: Stages) -> str | None:
    """Reason to refuse two stages on one device; None if each device has one."""
    seen: dict[int, int] = {}
    for s, stage in enumerate(stages):
        for device in stage.devices:
            if device in seen:
                return (
                    f"device {device} hosts stages {seen[device]} and {s}; this strategy allows one stage on a device"
                )
            seen[device] = s
    return None


def enough_microbatches(stages: Stages, microbatches: int) -> str | None:
    """Reason to refuse fewer microbatches than a stage has replicas, or None."""
    widest = max(len(stage.devices) for stage in stages)
    if microbatches < widest:
        return (
            f"{show_count(microbatches, 'microbatch')} a batch for {widest} replicas of one stage; "
            "each replica needs at least one"
        )
    return None


def rounds(stages: Stages) -> tuple[int, int]:
    """Depth p of a pipeline, and number v of virtual stages (chunks) on each device.

    Returns:
        p, the number of stages until the first stage's devices have a stage again; and v, the number of such passes
        over the devices. v is 0 if stage s is not on the devices of stage s mod p, or if stages of one pass share a
        device.
    """
    first = stages[0].devices
    depth = next((s for s in range(1, len(stages)) if stages[s].devices == first), len(stages))
    regular = len(stages) % depth == 0 and all(
        stage.devices == stages[s % depth].devices for s, stage in enumerate(stages)
    )
    places = [device for stage in stages[:depth] for device in stage.devices]
    return depth, len(stages) // depth if regular and len(set(places)) == len(places) else 0


def ring_of(stages: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Devices in the order in which a wave (a microbatch) visits them.

    Replica r of stage s must be on device (r + s) mod N of this ring (Wavelet, figure 10).

    Arguments:
        stages: the devices of each stage.

    Returns:
        None if the stages are placed otherwise.
    """
    ring = tuple(dict.fromkeys(device for devices in stages for device in devices))
    waves = len(stages[0])
    for s, devices in enumerate(stages):
        if devices != tuple(ring[(r + s) % len(ring)] for r in range(waves)):
            return None
    return ring


def config(stages: Stages) -> str:
    """Short text for the stages' placement, as in the papers: '15-1', 'straight 4'.

    - One stage on each device: '15-1', 'straight 4', or '16' for data parallelism.
    - Several passes over the devices: 'straight 2 x 4 chunks'.
    - All stages on the same replicas: '4 x 8 units'.
    - Tick-tock: '4 x 2 waves'.
    - Merged microbatches: the number of devices of every stage, '4-2-1-2-4'.
    - Replicas of each stage rotated over the devices: '3 waves x 4 partitions'.
    - Any other placement: '5 stages on 3 devices'.
    """
    if any(stage.merged > 1 for stage in stages):
        return "-".join(str(len(stage.devices)) for stage in stages)
    if any(stage.wave for stage in stages):
        return f"{len(stages[0].devices)} x {len(stages)} waves"
    depth, chunks = rounds(stages)
    if chunks == 0:
        if len(stages[0].devices) > 1 and ring_of([stage.devices for stage in stages]) is not None:
            return f"{len(stages[0].devices)} waves x {show_count(len(stages), 'partition')}"
        devices = {device for stage in stages for device in stage.devices}
        return f"{len(stages)} stages on {show_count(len(devices), 'device')}"
    counts = [len(stage.devices) for stage in stages[:depth]]
    straight = len(counts) > 1 and all(c == 1 for c in counts)
    once = f"straight {len(counts)}" if straight else "-".join(map(str, counts))
    return once if chunks == 1 else f"{once} x {chunks} {'chunks' if depth > 1 else 'units'}"


def reasons(found: Iterable[str | None]) -> str | None:
    """The first text among the results of several checks; None if all are None."""
    return next((reason for reason in found if reason), None)


def all_strategies() -> Iterator[tuple[str, Strategy]]:
    """Yield the name of every strategy, and the strategy."""
    for name in members():
        yield name, strategy(name)
