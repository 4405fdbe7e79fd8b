"""Executable: a program with its model and the torch device of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from hocket.profiling.capture.capture import Captured
from hocket.program.program import Program
from hocket.program.rank_layout import RankLayout
from hocket.runtime.stage.stage_runner import StageRunner
from hocket.runtime.swapping.swapper import Swapper
from hocket.runtime.tensor_parallel.shard_model import Division


@dataclass(frozen=True)
class SharedStages:
    """Stages of another program on the same device, for a program that uses their weights.

    Attributes:
        stages: stages of the other program, by number, with weights and buffers that the stages of these numbers use.
            Stages without an entry get their own weights.
        swapping: swapper of the other program; None if its device does not swap.
    """

    stages: Mapping[int, StageRunner] = field(default_factory=dict)
    swapping: Swapper | None = None


@dataclass(frozen=True)
class Executable:
    """A program together with the model and the torch device with which an engine runs it.

    Attributes:
        captured: the job's model, or a tensor-parallel rank's shard of it.
        layout: layers, samples and memory limits of the program's stages.
        program: instructions of all devices.
        device: torch device of the tensors. Workers communicate over NCCL if it is a CUDA device, else over gloo.
        division: tensor-parallel split by which `captured` was divided; None without tensor parallelism.
        shared: stages of another program that this one uses; by default none.
    """

    captured: Captured
    layout: RankLayout
    program: Program
    device: torch.device | str = "cpu"
    division: Division | None = None
    shared: SharedStages = SharedStages()
