"""RankLayout: the facts of a plan that an engine needs in addition to the Program.

A plan file names a strategy, layers and devices. It is resolved once, for one graph, into a Program (what each device
does, in which order) and a RankLayout (the layers, samples and memory limits of each device). Engines read these two
and no plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from hocket.program.microbatches import Microbatches
from hocket.program.passes.borders import StageCut
from hocket.program.passes.swapping.operations import Habits
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import StageShape


@dataclass(frozen=True)
class RankLayout:
    """Layers, devices, samples and memory limits of a program's stages.

    Attributes:
        batches: sizes of all microbatches.
        cuts: layers, devices and gradient buckets of each stage, as indices into the graph.
        shapes: the same stages as the program describes them.
        compilers: for each stage, the backend of torch.compile; "" runs the stage eagerly.
        tensor: tensor-parallel size.
        slices: True if each rank of a tensor-parallel group sends a slice of a stage boundary's tensors, which the
            receiving group then gathers.
        swap: settings of swapping; None if all values stay on their devices.
        habits: properties of the strategy's order that swaps depend on.
        host_bytes: for each device, maximum bytes of host memory. A missing device has no limit.
        plan_digest: SHA-256 of the plan file's text.
        profile_digest: SHA-256 of the profile that the plan was made with.
    """

    batches: Microbatches
    cuts: tuple[StageCut, ...]
    shapes: tuple[StageShape, ...]
    compilers: tuple[str, ...]
    tensor: int = 1
    slices: bool = False
    swap: Swapping | None = None
    habits: Habits = Habits()  # noqa: RUF009 - it is immutable
    host_bytes: Mapping[int, float] = field(default_factory=dict)
    plan_digest: str = ""
    profile_digest: str = ""

    @property
    def batch_size(self) -> int:
        """Number of samples of one batch, over all replicas."""
        return self.batches.batch_size

    def budgets(self, device: int) -> tuple[float, float]:
        """Maximum bytes that a device may hold, and that its host may hold for it.

        A budget without a limit is infinite.
        """
        if self.swap is None:
            return inf, inf
        limit = self.swap.budget_bytes(device)
        return inf if limit is None else limit, self.host_bytes.get(device, inf)
