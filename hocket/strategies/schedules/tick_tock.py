"""Tick-tock: two waves on every device, each with its own replica of the model.

The waves are half a cycle apart, so that the forward of one wave runs beside the backward of the other.

A wave is a stage that holds all layers. The first half of every batch belongs to the tick wave, the second half to
the tock wave. Each wave sums its gradients over its devices. It steps with the average of this sum and the sum of the
half batch before (Wavelet, equation 1). The paper averages on each device first and sums afterwards. Summing first
gives the same result (Wavelet, lemma 1), and one wave then hands to the other only a sum that exists anyway.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import WAVES, Rule
from hocket.strategies.base.missing import even
from hocket.strategies.base.orders import own
from hocket.strategies.base.search_space import Candidate, SearchSpace, recomputing, replicas
from hocket.strategies.base.strategy import Option, Options, Stages, Strategy, config, reasons
from hocket.util.units import show_count

_WHOLE = (
    "sharding divides a step among replicas, but a wave passes its whole gradients to the other wave; use shard: none"
)
ALIGN = ("both", "forwards")
OPTIONS = {
    "align": Option(
        str,
        "both",
        "which instructions of a wave wait for the same instruction of the other wave: forwards and backwards, as in "
        "the paper, or only forwards",
        ALIGN,
    )
}


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Update rule: each wave updates once a batch, with the gradients of two halves.

    These are its own half of the batch and the half before, which the other wave computed (Wavelet, figure 9).
    """
    if (
        len(stages) != WAVES or microbatches % WAVES
    ):  # `supports` refuses these; the rule declares the updates of one process
        return Rule("sync", (microbatches,) * len(stages), (0,) * len(stages))
    return Rule("averaged", (microbatches,) * WAVES, (0,) * WAVES)


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why tick-tock cannot run, or None if it can.

    It needs two equal stages (waves) on the same devices, without sharding. Each replica of each wave must have the
    same number of microbatches.
    """
    return reasons((_waves(stages), _turns(stages, microbatches)))


def _waves(stages: Stages) -> str | None:
    if len(stages) != WAVES or stages[1] != replace(stages[0], wave=1):
        waves = ", ".join(str(stage.wave) for stage in stages)
        return (
            f"stages of waves {waves}; tick-tock needs two equal stages, waves 0 and 1, each with all layers, on the "
            "same devices"
        )
    if stages[0].sharded:
        return _WHOLE
    if stages[0].columns > 1:
        return "one column stands for several equal columns; tick-tock compiles the waves of all devices together"
    return None


def _turns(stages: Stages, microbatches: int) -> str | None:
    count = len(stages[0].devices)
    if microbatches % (WAVES * count):
        return (
            f"{show_count(microbatches, 'microbatch')} a batch for two waves of {show_count(count, 'replica')} each; "
            f"every replica of a wave needs equally many: use a multiple of {WAVES * count}"
        )
    return None


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One microbatch in flight on every replica of each wave."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: a forward of one wave beside a backward of the other, and updates.

    A steady-state period is one batch. With recomputation, the recomputed forward of one wave waits for the other
    wave's backward, and the other wave's next forward waits for it. There is therefore one set of saved activations at
    a time, and no two tasks draw random numbers at once.
    """
    ahead = not stages[0].recompute  # the other wave's next forward runs before this wave's backward
    stages = tuple(replace(stage, overlaps=options["align"] == "forwards") for stage in stages)

    def order(device: int, total: int) -> list[Task]:
        turns = list(_alternating(stages, device, microbatches, total))
        last = {(s, m // microbatches): m for s, m in turns}
        tasks: list[Task] = []
        for k, (s, m) in enumerate(turns):
            if not (k and ahead):
                tasks.append(Task(Work.FORWARD, s, m))
            if ahead:
                tasks += [Task(Work.FORWARD, *other) for other in turns[k + 1 : k + 2]]
            tasks.append(Task(Work.BACKWARD, s, m))
            if last[s, m // microbatches] == m:
                tasks.append(Task(Work.UPDATE, s, m // microbatches))
        return [*tasks, *(Task(Work.DROP, 0, m) for _, m in turns[-1:])]

    return assemble(f"tick_tock {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order)


def _alternating(stages: Stages, device: int, microbatches: int, total: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, microbatch) of one device: a microbatch of each wave in turn."""
    half = microbatches // WAVES
    for first in range(0, total, microbatches):
        for m in own(stages, 0, device, range(first, first + half)):
            yield 0, m
            yield 1, m + half


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Yield candidates on 1 to all devices, with both values of the option `align`.

    The number of devices must give every replica of both waves equally many microbatches. If memory is short,
    `align: both` is tried with recomputation, which keeps one set of saved activations at a time.
    """
    for choice in replicas(space) if space.shard in (None, "none") else ():
        (stage,) = choice.stages
        if choice.microbatches % (WAVES * len(stage.devices)) == 0:
            waves = replace(choice, stages=(stage, replace(stage, wave=1)), thriftier=())
            yield replace(waves, options={"align": "both"}, thriftier=(recomputing(waves),))
            yield replace(waves, options={"align": "forwards"})


def missing(space: SearchSpace) -> str:
    """Say why `choices` has no candidate, for an error message."""
    if space.shard not in (None, "none"):
        return _WHOLE
    return even(space, f"every replica of both waves needs equally many: a multiple of {WAVES} x the devices in use")


STRATEGY = Strategy(
    paper="Wavelet (Wang et al., MLSys 2021), section 3.2 and appendix B.1; figures 8 and 9",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=False,
    options=OPTIONS,
    several_waves=True,
    missing=missing,
)
