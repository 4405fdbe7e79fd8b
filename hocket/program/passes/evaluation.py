"""Evaluation programs: the forwards of a plan's stages, without backwards and updates.

The stages keep their devices, so microbatches take the way that they take in training. A period is one round of all
replicas: the least number of microbatches after which it is the first replica's turn again in every stage. If a device
has several stages, a period has at least one microbatch for each device, so that the devices work at the same time.
If devices swap, weights come to the device at least once in each period, so a period has more microbatches.
"""

from collections.abc import Sequence
from math import lcm

from hocket.program.order import stages_on
from hocket.program.passes.assemble import assemble
from hocket.program.passes.swapping.insert import with_swaps
from hocket.program.passes.swapping.operations import Habits
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program, StageShape
from hocket.program.rule import Rule


def evaluated_stages(stages: Sequence[StageShape]) -> tuple[StageShape, ...]:
    """Stages of a training program as an evaluation needs them: one replica of the model, nothing for backwards.

    Waves are replicas of the whole model; the first is evaluated.
    """
    return tuple(
        StageShape(
            devices=stage.devices,
            sources=stage.sources,
            targets=stage.targets,
            batch=stage.batch,
            shard=stage.shard if stage.gathers else "none",
        )
        for stage in stages
        if not stage.wave
    )


def evaluation_program(
    name: str,
    stages: Sequence[StageShape],
    least: int = 1,
    swap: Swapping | None = None,
    habits: Habits = Habits(),  # noqa: B008 - it is immutable
) -> Program:
    """Compile the program that runs the forwards of these stages.

    Arguments:
        name: name of the plan's strategy.
        stages: stages of a training program, or of `evaluated_stages`.
        least: least number of microbatches of a period.
        swap: settings of swapping (passes/swapping/evaluation_settings.py); None if all values stay on their devices.
        habits: properties of the strategy's order, for swaps.

    Raises:
        RefusedError: a forward needs more than the budget of a device or of its host.
    """
    shapes = evaluated_stages(stages)
    devices = {device for shape in shapes for device in shape.devices}
    round = lcm(*(shape.round for shape in shapes))
    several = any(len(stages_on(shapes, device)) > 1 for device in devices)
    stride = round * -(-max(least, len(devices) if several else 1) // round)

    def order(device: int, total: int) -> list[Task]:
        return [
            Task(Work.FORWARD, stage, microbatch)
            for first in range(0, total, stride)
            for stage in stages_on(shapes, device)
            for microbatch in range(first, first + stride)
            if shapes[stage].device(microbatch) == device
        ]

    count = len(shapes)
    rule = Rule("evaluation", (stride,) * count, (0,) * count)
    program = assemble(f"{name} evaluation", shapes, rule, stride, order)
    return program if swap is None else with_swaps(program, swap, habits)
