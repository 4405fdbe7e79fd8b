"""Lower bound on the seconds of an iteration.

It is the largest of these terms:
- A device runs the forwards, backwards and steps of its own stages.
- With a flush, the path to the farthest stage and back lies between a batch's first forward and its update.
- A stage with w microbatches in flight needs, for every w of them, the path from there to the end and back (Little's
  law).
- An update waits for its all-reduce. The forward that reads its weight version waits for the update.
- A link carries the bytes of one message at a time. Each core of a host gives one second of compute per second.
"""

from collections.abc import Sequence

import numpy as np

from hocket.cost.contention import Resource, host_of
from hocket.planning.search.bounds.links import LinkFigures
from hocket.planning.search.bounds.stages import LayerRun, StageFigures, Stages
from hocket.program.passes.borders import StageCut
from hocket.program.program import StageShape
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import complete, strategy


class TimeBound:
    """Lower bounds on the iteration time of candidates of one search space."""

    def __init__(self, space: SearchSpace, stages: StageFigures) -> None:
        self._cluster = space.cluster
        self._figures, self._links = stages, LinkFigures(space, stages.columns)

    def seconds(self, name: str, shapes: tuple[StageShape, ...], choice: Candidate) -> float:
        """Lower bound in seconds: the largest term of the module docstring.

        The strategy must support the candidate.
        """
        stages, member = self._figures.of(choice), strategy(name)
        options = complete(name, choice.options)
        rule = member.rule(shapes, stages.microbatches, options)
        waiting = member.in_flight(shapes, stages.microbatches, options)
        forth_s, back_s = self._links.message_s(choice)
        tail_s, anywhere_s, ring_s = self._tails(choice, stages)
        updates = np.array([stages.microbatches / batch for batch in rule.batch])
        step_s = (
            np.array([_step_s(cut, run) for cut, run in zip(choice.stages, stages.runs, strict=True)]) * stages.factors
        )
        found = [
            _little_s(stages, waiting, forth_s, back_s),
            float((updates * ring_s).max()),
            self._links.busiest_s(choice, stages, updates),
        ]
        if rule.synchronous and rule.batch[0] == stages.microbatches:
            found.append(self._flushed_s(choice, stages, forth_s, back_s, (tail_s, anywhere_s), step_s))
        else:
            found.append(self._busy_s(choice, stages.batch_s / stages.widths + updates * step_s))
            ways_s = _ways_s(stages, forth_s, back_s)
            found.append(float((updates * (ways_s + tail_s) / (np.array(rule.delay) + 1)).max()))
        return max(found)

    def _busy_s(self, choice: Candidate, stage_s: np.ndarray) -> float:
        """Seconds of the busiest device, or of the busiest host's cores.

        Arguments:
            stage_s: seconds of each stage on each of its devices.
        """
        seconds = by_device(choice, stage_s)
        cluster = self._cluster
        most = max(seconds.values())
        if cluster.host_cores is not None:
            hosts: dict[Resource, float] = {}
            for device, each in seconds.items():
                host = host_of(cluster, device)
                hosts[host] = hosts.get(host, 0.0) + each
            most = max(most, max(hosts.values()) / cluster.host_cores)
        return most

    def _flushed_s(
        self,
        choice: Candidate,
        stages: Stages,
        forth_s: np.ndarray,
        back_s: np.ndarray,
        tails_s: tuple[np.ndarray, np.ndarray],
        step_s: np.ndarray,
    ) -> float:
        """Lower bound of a batch between two flushes, in seconds.

        It consists of warm-up, work, cool-down, and the update of the first stage.

        Arguments:
            forth_s, back_s: seconds of messages (`LinkFigures.message_s`).
            tails_s: the first two results of `_tails`.
            step_s: seconds of each stage's optimizer step.
        """
        tail_s, anywhere_s = tails_s
        count = len(stages.runs)
        into_s, out_s, root = np.zeros(count), np.zeros(count), np.zeros(count, dtype=int)
        for s in range(count):
            if s and forth_s[s - 1] >= 0 and back_s[s - 1] >= 0:
                run, factor = stages.runs[s - 1], stages.factors[s - 1]
                into_s[s] = into_s[s - 1] + run.least_forward_s * factor + forth_s[s - 1]
                out_s[s] = out_s[s - 1] + run.least_backward_s * factor + back_s[s - 1]
                root[s] = root[s - 1]
            else:
                root[s] = s
        hosted: dict[tuple[int, ...], list[int]] = {}
        for s, cut in enumerate(choice.stages):
            hosted.setdefault(cut.devices, []).append(s)
        most = 0.0
        for own in hosted.values():
            busy_s = (
                float(stages.busiest_s[own].sum())
                if len(own) == 1
                else float((stages.batch_s / stages.widths)[own].sum())
            )
            if len(own) == 1:
                # Another replica may be the busiest in the next batch. Then only the all-reduce keeps them together.
                turns = stages.microbatches % len(choice.stages[own[0]].devices)
                most = max(most, busy_s + float((anywhere_s if turns else tail_s)[own[0]]))
            if len({int(root[s]) for s in own}) == 1:
                way_s = float(into_s[own].min() + out_s[own].min())
                most = max(most, way_s + busy_s + float(anywhere_s[root[own[0]]]))
        return max(most, self._busy_s(choice, stages.batch_s / stages.widths + step_s))

    def _tails(self, choice: Candidate, stages: Stages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds after the last backward of every stage.

        Returns:
            - Until the end of the update on the device of that backward.
            - Until the end of the update on any replica; below 0 if gradients are complete earlier.
            - Duration of the stage's all-reduces.
        """
        tails, anywhere, rings = [], [], []
        for cut, run, factor in zip(choice.stages, stages.runs, stages.factors.tolist(), strict=True):
            ring = self._links.rings_s(cut, run)
            exposed = max(ring[-1] - run.behind_s * factor, sum(ring) - run.backward_s * factor) if ring else 0.0
            tails.append(max(0.0, exposed) + _step_s(cut, run) * factor)
            anywhere.append(exposed + _step_s(cut, run) * factor)
            rings.append(sum(ring))
        return np.array(tails), np.array(anywhere), np.array(rings)


def _step_s(cut: StageCut, run: LayerRun) -> float:
    """Seconds of the optimizer step on one replica."""
    return run.step_s / (cut.replicas if cut.sharded else 1)


def by_device(choice: Candidate, stage_s: np.ndarray) -> dict[int, float]:
    """Sum the seconds of all stages on each device.

    Arguments:
        stage_s: seconds of each stage on each of its devices.
    """
    seconds: dict[int, float] = {}
    for cut, each in zip(choice.stages, stage_s.tolist(), strict=True):
        for device in cut.devices:
            seconds[device] = seconds.get(device, 0.0) + each
    return seconds


def _little_s(stages: Stages, waiting: Sequence[int], forth_s: np.ndarray, back_s: np.ndarray) -> float:
    """Lower bound in seconds by Little's law; the smaller last microbatch is left out.

    A microbatch is in flight on a stage for one round trip to the last stage.

    Arguments:
        waiting: largest number of microbatches in flight on each stage.
        forth_s, back_s: seconds of messages (`LinkFigures.message_s`).
    """
    share = (stages.microbatches - 1) // stages.widths
    return float((share / np.array(waiting) * _ways_s(stages, forth_s, back_s)).max())


def _ways_s(stages: Stages, forth_s: np.ndarray, back_s: np.ndarray) -> np.ndarray:
    """Least seconds from a microbatch's forward to the end of its backward, by stage."""
    count = len(stages.runs)
    ways = np.array([r.least_forward_s + r.least_backward_s for r in stages.runs]) * stages.factors
    for s in range(count - 2, -1, -1):
        if forth_s[s] >= 0 and back_s[s] >= 0:
            ways[s] += ways[s + 1] + forth_s[s] + back_s[s]
    return ways
