"""Tick-tock: two waves on every device, each with its replica of the model, half a cycle apart, so that one's forward runs beside the
other's backward.

A wave is a stage that holds all layers; the first half of every batch is the tick wave's, the second the tock wave's. Each sums its
gradients over its devices, and steps with their average with those of the half before (equation 1). The paper averages on each device
and sums then; to sum first and average then gives the same (its lemma 1) and nothing but a sum that is there anyway is handed on.
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
    "shard divides a step among replicas, and a wave hands its whole gradients on to the other wave; take shard: none"
)
ALIGN = ("both", "forwards")
OPTIONS = {
    "align": Option(
        str,
        "both",
        "which of a wave's instructions wait for their like of the other wave: forwards and backwards, as in the paper, or forwards alone",
        ALIGN,
    )
}


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Update rule: each wave updates once a batch with its half and the previous half (figure 9)."""
    if (
        len(stages) != WAVES or microbatches % WAVES
    ):  # which is refused: what is declared are the updates of one process
        return Rule("sync", (microbatches,) * len(stages), (0,) * len(stages))
    return Rule("averaged", (microbatches,) * WAVES, (0,) * WAVES)


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Require two stages, the waves of one model on the same devices, with equal microbatches for all replicas."""
    return reasons((_waves(stages), _turns(stages, microbatches)))


def _waves(stages: Stages) -> str | None:
    if len(stages) != WAVES or stages[1] != replace(stages[0], wave=1):
        waves = ", ".join(str(stage.wave) for stage in stages)
        return f"stages of waves {waves}; tick-tock has two that are alike, waves 0 and 1, each with all layers on the same devices"
    if stages[0].sharded:
        return _WHOLE
    if stages[0].columns > 1:
        return "one column stands for several alike; waves of all devices are compiled together"
    return None


def _turns(stages: Stages, microbatches: int) -> str | None:
    count = len(stages[0].devices)
    if microbatches % (WAVES * count):
        return (
            f"{show_count(microbatches, 'microbatch')} a batch for two waves of {show_count(count, 'replica')} each; here every "
            f"replica of a wave has as many: take a multiple of {WAVES * count}"
        )
    return None


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One microbatch in flight on every replica of each wave."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile; a period is one batch: a forward of one wave beside a backward of the other, and their updates.

    What is made again waits for the other wave's backward, and the other wave's next forward for it: so there is one stash at a time, and
    no two draw random numbers at once.
    """
    ahead = not stages[0].recompute  # whether the other wave's forward needs nothing that is made for a backward
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
    """(stage, microbatch) of one device, a microbatch of each wave in turn."""
    half = microbatches // WAVES
    for first in range(0, total, microbatches):
        for m in own(stages, 0, device, range(first, first + half)):
            yield 0, m
            yield 1, m + half


def choices(situation: SearchSpace) -> Iterable[Candidate]:
    """All numbers of devices that give every replica of both waves equal microbatches, in both alignments.

    If memory is short, with one stash at a time.
    """
    for choice in replicas(situation) if situation.shard in (None, "none") else ():
        (stage,) = choice.stages
        if choice.microbatches % (WAVES * len(stage.devices)) == 0:
            waves = replace(choice, stages=(stage, replace(stage, wave=1)), thriftier=())
            yield replace(waves, options={"align": "both"}, thriftier=(recomputing(waves),))
            yield replace(waves, options={"align": "forwards"})


def missing(situation: SearchSpace) -> str:
    """Missing condition if there is no candidate."""
    if situation.shard not in (None, "none"):
        return _WHOLE
    return even(
        situation, f"every replica of both waves has as many of them: a multiple of {WAVES} x the devices that are used"
    )


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
