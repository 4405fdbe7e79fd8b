"""Harmony: training of models that are larger than the devices' memory.

Packs of layers run in an order that keeps swapping small.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate, pairwise
from math import ceil

from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.strategies.base.balance import Balancer, runs
from hocket.strategies.base.missing import microbatches as too_few
from hocket.strategies.base.orders import most_own, own
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut, recomputing
from hocket.strategies.base.strategy import Option, Options, Stages, Strategy, config, enough_microbatches, reasons
from hocket.strategies.base.synchronous import rule
from hocket.strategies.swapping.tuner import Mode
from hocket.util.units import show_count

MOST_PACKS = 64  # of a search's candidates
OPTIONS: dict[str, Option] = {
    "mode": Option(
        str,
        "data",
        "data: every pack on all devices; pipeline: each pack on one device, usually in turn",
        tuple(map(str, Mode)),
    ),
    "grouping": Option(bool, True, "run all microbatches of a pack before the next pack (input-batch grouping)"),
    "just_in_time": Option(bool, True, "update a pack right after its last backward, not after all backwards"),
    "peer": Option(
        bool,
        True,
        "send values to other devices directly; otherwise through the host, where values are swapped",
    ),
    "forward": Option(
        tuple,
        (),
        "number of stages of each forward task, in mode data, such as [3, 2, 1]: each microbatch goes through all "
        "stages of a task before the next microbatch; by default one stage each (a backward task has one stage)",
    ),
}


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why Harmony cannot run, or None if it can.

    These conditions must hold:

    - In data mode all stages are on the same devices, in pipeline mode each stage is on one device.
    - The option `forward` needs data mode, and its numbers add up to the number of stages.
    - If steps wait for the norm of all gradients, `just_in_time` is false.
    - Each replica has at least one microbatch.
    """
    if options["mode"] == Mode.DATA:
        apart = next((s for s, stage in enumerate(stages) if stage.devices != stages[0].devices), None)
        other = f"stage {apart} is on other devices than stage 0; data mode needs the same devices" if apart else None
    else:
        wide = next((s for s, stage in enumerate(stages) if len(stage.devices) > 1), None)
        other = None if wide is None else f"stage {wide} is on several devices; pipeline mode needs one device a stage"
    late = (
        "steps wait for a sum over all devices (clip_grad_norm, loss_weight, precision float16), and just_in_time is true: "
        "set just_in_time: false"
    )
    waits = any(stage.needs_norm for stage in stages)
    return reasons(
        (
            other,
            _forward(stages, options),
            late if waits and options["just_in_time"] else None,
            enough_microbatches(stages, microbatches),
        )
    )


def _forward(stages: Stages, options: Options) -> str | None:
    """Reason to refuse the value of the option `forward`; None if it is allowed."""
    sizes = options["forward"]
    if sizes and options["mode"] != Mode.DATA:
        return (
            f"forward is {list(sizes)}, and mode is {options['mode']}; forward tasks of several stages need mode data"
        )
    if sizes and sum(sizes) != len(stages):
        return f"forward is {list(sizes)}, {sum(sizes)} stages in total, and the plan has {len(stages)}"
    return None


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """Microbatches in flight: a replica's whole share of the batch.

    In data mode without grouping only one is in flight, because its backwards run before the next forward.
    """
    if options["mode"] == Mode.DATA and not options["grouping"]:
        return (1,) * len(stages)
    return tuple(most_own(stage, microbatches) for stage in stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: forwards pack by pack, then backwards from the last pack to the first.

    A pack is a group of layers that run as one task. The stages are the packs of the backward. A pack of the forward
    is a union of neighbouring stages (option `forward`).

    With grouping, a pack runs all microbatches before the next pack. Each microbatch goes through all stages of a
    forward pack before the next microbatch does. Without grouping, a microbatch goes through all packs before the next
    one does. In data mode, its backwards then follow at once. In pipeline mode, all forwards run before all backwards.

    Steps of packs that share weights wait for each other's gradients, so they come last. Swaps are inserted later
    (program/passes/swapping/insert.py).
    """
    grouping, just_in_time, data = options["grouping"], options["just_in_time"], options["mode"] == Mode.DATA

    def at_once(s: int) -> bool:
        return just_in_time and not stages[s].tied

    def order(device: int, total: int) -> list[Task]:
        hosted = [s for s, stage in enumerate(stages) if device in stage.devices]
        tasks: list[Task] = []
        ends = (0, *accumulate(options["forward"] or (1,) * len(hosted)))
        packs = [hosted[a:e] for a, e in pairwise(ends)]
        for update in range(total // microbatches):
            mine = own(stages, hosted[0], device, range(update * microbatches, (update + 1) * microbatches))

            def backward(s: int, m: int, last: int = mine[-1], update: int = update) -> list[Task]:
                behind = [Task(Work.UPDATE, s, update)] if at_once(s) and m == last else []
                return [Task(Work.BACKWARD, s, m), *behind]

            if grouping:
                tasks += [Task(Work.FORWARD, s, m) for pack in packs for m in mine for s in pack]
                tasks += [task for s in reversed(hosted) for m in mine for task in backward(s, m)]
            else:
                for several in [[m] for m in mine] if data else [mine]:
                    tasks += [Task(Work.FORWARD, s, m) for m in several for s in hosted]
                    tasks += [task for m in several for s in reversed(hosted) for task in backward(s, m)]
            tasks += [Task(Work.UPDATE, s, update) for s in hosted if not at_once(s)]
        return tasks

    name = f"harmony {options['mode']} {config(stages)}"
    if options["forward"]:
        name += f" forward {'-'.join(map(str, options['forward']))}"
    return assemble(name, stages, rule(stages, microbatches, options), microbatches, order)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Yield candidates in data mode: 1, 2, 4, ... balanced packs on all devices."""
    devices = tuple(range(space.cluster.devices))
    for size in space.sizes:
        microbatches = ceil(space.batch_size / size)
        found = Balancer(space.profile, size).cuts(min(len(space.profile.layers), MOST_PACKS))
        for count in (2**k for k in range(len(found).bit_length())):
            if count <= len(found) and microbatches >= len(devices):
                plain = Candidate(
                    tuple(cut(space, layers, devices) for layers in runs(found[count - 1])), size, microbatches
                )
                yield replace(plain, thriftier=(recomputing(plain),))


def missing(space: SearchSpace) -> str:
    """Say why `choices` has no candidate, for an error message."""
    devices = space.cluster.devices
    return too_few(space, f"each of {show_count(devices, 'device')} needs one or more", lambda count: count >= devices)


STRATEGY = Strategy(
    paper="Harmony (Li et al., HotOS 2021), section 3; what is swapped: docs/explanation/harmony.md",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=False,
    options=OPTIONS,
    only_swapping=True,
    missing=missing,
)
