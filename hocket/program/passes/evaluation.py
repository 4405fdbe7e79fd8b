"""Evaluation programs: the forwards of a plan's stages, without backwards and updates.

The stages keep their devices, so microbatches take the way that they take in training. A period is one round of all
replicas: the least number of microbatches after which it is the first replica's turn again in every stage. If a device
has several stages, a period has at least one microbatch for each device, so that the devices work at the same time.
"""

from collections.abc import Sequence
from math import lcm

from hocket.program.order import stages_on
from hocket.program.passes.assemble import assemble
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


def evaluation_program(name: str, stages: Sequence[StageShape]) -> Program:
    """Compile the program that runs the forwards of these stages.

    Arguments:
        name: name of the plan's strategy.
        stages: stages of a training program, or of `evaluated_stages`.
    """
    shapes = evaluated_stages(stages)
    devices = {device for shape in shapes for device in shape.devices}
    round = lcm(*(shape.round for shape in shapes))
    several = any(len(stages_on(shapes, device)) > 1 for device in devices)
    stride = round * -(-len(devices) // round) if several else round

    def order(device: int, total: int) -> list[Task]:
        return [
            Task(Work.FORWARD, stage, microbatch)
            for first in range(0, total, stride)
            for stage in stages_on(shapes, device)
            for microbatch in range(first, first + stride)
            if shapes[stage].device(microbatch) == device
        ]

    count = len(shapes)
    return assemble(f"{name} evaluation", shapes, Rule("evaluation", (stride,) * count, (0,) * count), stride, order)
