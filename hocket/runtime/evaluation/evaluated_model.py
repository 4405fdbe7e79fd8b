"""A training model in evaluation mode, cut into the stages of the training plan.

In evaluation mode a model may run other operations than in training: functions that drop out nothing, or a branch for
`self.training`. So it is captured once more. Its finest layers (segmentation.py, `pieces`) are compared with those of
the training capture, in their order and by module path, and go to the layers that hold these in training. What only the
evaluation has, such as its metrics, follows the layer before it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, groupby

from hocket.errors import CaptureError, InputError, RefusedError
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.capture.segmentation import LayerDraft, LiveGraph, pieces
from hocket.program.passes.borders import StageCut, check_cuts
from hocket.runtime.evaluation.evaluation_job import EvaluationJob


@dataclass(frozen=True)
class EvaluatedModel:
    """A model in evaluation mode.

    Attributes:
        captured: the model, with an `EvaluationJob`.
        cuts: stages of the training plan, with indices of the layers of `captured`; of waves, only the first.
    """

    captured: Captured
    cuts: tuple[StageCut, ...]


def capture_evaluation(
    trained: Captured, cuts: Sequence[StageCut], job: EvaluationJob, sizes: Sequence[int]
) -> EvaluatedModel:
    """Capture a model in evaluation mode, for the stages of a training plan.

    Arguments:
        trained: the model in training mode.
        cuts: stages of the plan, with indices of its layers.
        sizes: numbers of samples of a microbatch; the model is captured for all of them.

    Raises:
        CaptureError: the model or a metric cannot be captured.
        RefusedError: a stage would compute nothing, or would need parameters or buffers of another stage.
    """
    homes: list[int] = []  # training layer of each layer

    def joins(graph: LiveGraph) -> tuple[int, ...]:
        counts = []
        for home, group in groupby(_homes(trained, pieces(graph))):
            homes.append(home)
            counts.append(len(list(group)))
        return tuple(counts)

    with job.evaluating(), _named():
        captured = capture(job, sizes[0], like=trained, joins=joins)
        for size in sizes[1:]:
            captured.for_size(size)
    found = tuple(
        StageCut(
            layers=tuple(k for k, home in enumerate(homes) if home in cut.layers),
            devices=cut.devices,
            shard=cut.shard if cut.shard == "full" else "none",
            read_once=cut.read_once,
        )
        for cut in cuts
        if not cut.wave
    )
    _check(trained, cuts, captured, found)
    return EvaluatedModel(captured, found)


@contextmanager
def _named() -> Iterator[None]:
    """Say of an error in the model or the loss that it comes from the evaluation: training has passed before."""
    try:
        yield
    except CaptureError as error:
        if error.place.startswith("Evaluation."):
            raise
        step = error.next_step or "Give Evaluation.data samples like those of Job.data."
        raise CaptureError(f"Job.evaluate: {error.place}", error.found, error.expected, step) from error


def _homes(trained: Captured, finest: Sequence[LayerDraft]) -> list[int]:
    """Training layer of each finest layer of the model in evaluation mode, ascending."""
    own = pieces(trained.graph)
    ends = list(accumulate(trained.choices.joined))
    layer_of = [next(k for k, end in enumerate(ends) if piece < end) for piece in range(len(own))]
    matcher = SequenceMatcher(None, [piece.path for piece in own], [piece.path for piece in finest], autojunk=False)
    found: list[int | None] = [None] * len(finest)
    for one, other, count in matcher.get_matching_blocks():
        found[other : other + count] = layer_of[one : one + count]
    found[-1] = layer_of[-1]  # the loss
    homes, home = [], 0
    for known in found:
        home = home if known is None else known
        homes.append(home)
    return homes


def _check(trained: Captured, cuts: Sequence[StageCut], captured: Captured, found: Sequence[StageCut]) -> None:
    """Refuse stages that compute nothing, or with tensors that they do not hold in training.

    Raises:
        RefusedError: see above.
    """
    place = "Job.evaluate"
    try:
        check_cuts(captured.layers, captured.tensors, found)
    except InputError as error:
        raise RefusedError(
            place, f"in evaluation mode, {error.place}: {error.found}", "layers in every stage of the plan"
        ) from error
    for stage, cut in enumerate(found):
        held = {name for k in cuts[stage].layers for name in _tensors(trained, k)}
        for name in (name for k in cut.layers for name in _tensors(captured, k)):
            if name not in held:
                text = f"stage {stage} reads {name} in evaluation mode, but not in training"
                raise RefusedError(place, text, "parameters and buffers of its own stage")


def _tensors(captured: Captured, layer: int) -> tuple[str, ...]:
    return (*captured.layers[layer].parameters, *captured.layers[layer].buffers)
