"""Differences between a model under a plan and the model of one process.

They exist whatever the plan's update rule is.

Rules of this file: differences are found when the job is captured and profiled: what a layer writes to its buffers
(hocket/profiling/capture/capture.py), and whether losses add up (hocket/profiling/checks/loss_additivity.py). Here
they are only collected and put into words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hocket.profiling.layer import BATCH_STATISTICS, WRITES
from hocket.util.units import show_count

_NAMED = 3  # buffers that are listed by name


@dataclass(frozen=True)
class Difference:
    """One difference of training under a plan from training one process on whole batches.

    Attributes:
        kind: "loss": the loss of a batch is not the mean of its microbatches' losses. "batch statistics": layers
            normalise with the statistics of each microbatch. "buffers": the forward writes buffers once for each
            microbatch. "clipping": each stage clips by the norm of its own gradients.
        text: the difference in a sentence.
    """

    kind: str
    text: str


STAGE_NORMS = Difference(
    "clipping",
    "clip_grad_norm_over: stage: each stage clips its gradients by their own norm, and not by the norm over the whole "
    "model: losses depend on where a plan cuts the model into stages",
)
"""Difference of a plan with several stages, if the job clips by the norm of each stage."""


class NotedLayer(Protocol):
    """A layer with its notes: of a profile, or of a captured model."""

    @property
    def name(self) -> str:
        """Name of the layer."""

    @property
    def notes(self) -> Sequence[str]:
        """Remarks about the layer, from its capture."""


def differences(layers: Iterable[NotedLayer], loss_parts: str = "") -> tuple[Difference, ...]:
    """Differences from one process if a batch is divided into microbatches or among replicas.

    Arguments:
        layers: layers of a profile or of a captured model.
        loss_parts: how the loss of a batch differs from the mean over its parts (`ModelProfile.loss_parts`).
    """
    known = [(layer.name, layer.notes) for layer in layers]
    found = [Difference("loss", loss_parts)] if loss_parts else []
    normalised = [name for name, notes in known if BATCH_STATISTICS in notes]
    if normalised:
        found.append(
            Difference(
                "batch statistics",
                f"{len(normalised)} layers ({normalised[0]}, ...) normalise with the statistics of each microbatch on each replica, "
                "not of the batch: losses depend on the microbatch size, as with any gradient accumulation",
            )
        )
    written = list(
        dict.fromkeys(note.removeprefix(WRITES) for _, notes in known for note in notes if note.startswith(WRITES))
    )
    if written:
        names = ", ".join([*written[:_NAMED], *(["..."] if len(written) > _NAMED else [])])
        found.append(
            Difference(
                "buffers",
                f"{show_count(len(written), 'buffer')} ({names}) {'is' if len(written) == 1 else 'are'} written in the forward: each "
                "replica writes its own, once for each microbatch that it runs, and not once with the whole batch; checkpoints hold those "
                "of the first replica",
            )
        )
    return tuple(found)
