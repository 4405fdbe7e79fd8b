"""Inspector: finds non-finite numbers in a replayed step.

It checks every tensor, layer by layer. It runs only after a guard has a finding. Its facts are plain data, which all
workers exchange.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from hocket.runtime.nan_guard.guard import faults, samples_of
from hocket.runtime.stage.data_stream import Stream

MADE, GRADIENT, WEIGHT_GRADIENT, WEIGHT = "made", "gradient", "weight gradient", "weight"
_MOST_FACTS = 4096  # per device: the store that carries them is small


class Fact(NamedTuple):
    """A tensor that is not finite.

    Attributes:
        way: kind of tensor: MADE (an input or output of a layer in a forward), GRADIENT (of such a tensor),
            WEIGHT_GRADIENT or WEIGHT.
        microbatch: number in the replayed segment; -1 for a weight.
        stage: stage of the tensor.
        name: name of the tensor or parameter.
        faults: numbers of nan and infinite elements, as text (`guard.faults`).
        samples: samples of the microbatch, as text (`guard.samples_of`); empty for a weight.
    """

    way: str
    microbatch: int
    stage: int
    name: str
    faults: str
    samples: str


class MergedMicrobatches(NamedTuple):
    """Microbatches that a stage computes at once.

    Attributes:
        stage: number of the stage.
        first: first of the microbatches in the replayed segment; -1 for none.
        merged: number of microbatches.
        samples: total number of samples.
    """

    stage: int
    first: int = -1
    merged: int = 0
    samples: int = 0


class Inspector:
    """Finds the tensors with nan or infinite elements on one device, while a step is replayed.

    Attributes:
        facts: facts by way, microbatch, stage and name.
        stream: data of the replayed segment.
    """

    def __init__(self) -> None:
        self.facts: dict[tuple[str, int, int, str], Fact] = {}
        self.stream: Stream | None = None

    def weights(self, stage: int, weights: Mapping[str, Tensor]) -> None:
        """Check a stage's weights, by name, before the first instruction."""
        for name, tensor in weights.items():
            self._note(WEIGHT, MergedMicrobatches(stage), name, tensor)

    def made(self, of: MergedMicrobatches, tensors: Mapping[str, Tensor]) -> None:
        """Check tensors of a forward, and later the gradients of these tensors.

        Arguments:
            of: the microbatches of the forward.
            tensors: tensors by name.
        """
        for name, tensor in tensors.items():
            self._note(MADE, of, name, tensor)
            if tensor.requires_grad:
                tensor.register_hook(self._hook(GRADIENT, of, name))  # type: ignore[no-untyped-call]

    @contextmanager
    def backward(self, of: MergedMicrobatches, leaves: Mapping[str, Tensor]) -> Iterator[None]:
        """Check the weight gradients that a backward computes inside this context.

        Arguments:
            of: the microbatches of the backward.
            leaves: weights by name.
        """
        handles = [
            leaf.register_hook(self._hook(WEIGHT_GRADIENT, of, name))  # type: ignore[no-untyped-call]
            for name, leaf in leaves.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, way: str, of: MergedMicrobatches, name: str) -> Any:
        return lambda gradient: self._note(way, of, name, gradient)

    def _note(self, way: str, of: MergedMicrobatches, name: str, tensor: Tensor) -> None:
        if len(self.facts) >= _MOST_FACTS or not (told := faults(tensor)):
            return
        samples = samples_of(self.stream, of.first, of.samples) if self.stream is not None and of.samples else ""
        # Merged microbatches count for each of them: another stage may run them one by one.
        for one in range(of.first, of.first + max(1, of.merged)):
            self.facts.setdefault((way, one, of.stage, name), Fact(way, one, of.stage, name, told, samples))
