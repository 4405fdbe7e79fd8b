"""Lower bounds on time and memory of a candidate, without compiling it.

Rules of this file:
- A bound is never above the simulated value, so a search may leave out candidates by their bounds.
- No strategy is known by name, only by its update rule and its microbatches in flight.
"""

import numpy as np

from hocket.planning.search.bounds.memory import peak_bytes
from hocket.planning.search.bounds.stages import StageFigures
from hocket.planning.search.bounds.time import TimeBound, by_device
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.program import StageShape
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import complete, strategy


class Bounds:
    """Lower bounds for the candidates of one search space.

    Figures that candidates share are computed once.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._profile = space.profile
        self._stages = StageFigures(space)
        self._time = TimeBound(space, self._stages)
        self._steps = any(layer.step_s for layer in space.profile.layers)
        self._quick: dict[tuple[int, int], float] = {}
        self._shapes: dict[int, tuple[tuple[StageCut, ...], tuple[StageShape, ...]]] = {}

    def quick_s(self, choice: Candidate) -> float:
        """Quick lower bound in seconds: compute of the busiest device."""
        key = (id(choice.stages), choice.microbatch_size)
        if key not in self._quick:
            stages = self._stages.of(choice)
            busy_s = by_device(choice, stages.batch_s / stages.widths)
            if _bundled(choice):
                busy_s = self._stages.bundles_s(choice)
            # Each wave has its part of the batch, and all waves may compute at once.
            count = 1 + max(cut.wave for cut in choice.stages)
            self._quick[key] = max(busy_s.values()) / count**2
        return self._quick[key]

    def step_share(self, name: str, shapes: tuple[StageShape, ...], choice: Candidate) -> float:
        """Upper bound of the share of an iteration that sharded optimizer steps save.

        The strategy must support the candidate.
        """
        if not self._steps or _waved(choice):
            return 0.0
        stages = self._stages.of(choice)
        rule = strategy(name).rule(shapes, stages.microbatches, complete(name, choice.options))
        steps_s = np.array([run.step_s for run in stages.runs]) * stages.factors
        saved_s = steps_s * (1 - 1 / stages.widths) * stages.microbatches / np.array(rule.batch)
        quick_s = self.quick_s(choice)
        return max(by_device(choice, saved_s).values()) / quick_s if quick_s > 0 else 1.0

    def shapes(self, choice: Candidate) -> tuple[StageShape, ...]:
        """Shapes of a candidate's stages; cached, since many candidates share them."""
        key = id(choice.stages)
        if key not in self._shapes:
            self._shapes[key] = (choice.stages, stage_shapes(self._profile, choice.stages))
        return self._shapes[key][1]

    def seconds(self, name: str, shapes: tuple[StageShape, ...], choice: Candidate) -> float:
        """Lower bound of the iteration time in seconds.

        For merged microbatches and waves it counts compute alone. The strategy must support the candidate.
        """
        if _bundled(choice) or _waved(choice):
            return self.quick_s(choice)
        return self._time.seconds(name, shapes, choice)

    def peak_bytes(self, name: str, shapes: tuple[StageShape, ...], choice: Candidate) -> dict[int, float]:
        """Lower bound of each device's peak memory in bytes, by device.

        It counts weights with their optimizer state, and the larger of gradients and saved activations.
        """
        return peak_bytes(name, shapes, choice, self._stages.of(choice))


def _bundled(choice: Candidate) -> bool:
    """True if stages run merged microbatches, which is faster than one by one."""
    return any(cut.merged > 1 for cut in choice.stages)


def _waved(choice: Candidate) -> bool:
    """True if devices compute for several waves at once."""
    return any(cut.wave for cut in choice.stages)
