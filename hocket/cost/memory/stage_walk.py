"""Peak memory of a forward or backward on its way through a stage's layers.

Rules of this file:

- A position is the index of a layer in the stage, ascending. A backward visits the positions from the last to the
  first.
- A tensor between layers that autograd saves lives until the backward of the first layer that saves it. The tensor's
  gradient lives from the last layer that reads the tensor to the layer that made it.
- If a profile does not know which layers save a tensor, each layer's saved activations are counted at this layer, and
  gradients between the layers of a stage are not counted.
- If a tensor has several readers, its gradients are added out of place. Torch adds in place only if no hook observes
  the operations and nothing else refers to the first gradient.

Source: none; measured facts about torch's autograd engine, see profiling/measure/memory.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.cost.compute import Columns

LOSS_BYTES = 8.0  # the gradient of the loss is one number, which stays until the backward is over

Span = tuple[float, int, int]  # bytes, and the first and last position at which they are there


@dataclass(frozen=True)
class Walk:
    """Bytes of one stage's layers and tensors at one microbatch size.

    Arrays are by position.

    Attributes:
        inner: bytes that autograd saves inside a layer, without tensors between layers.
        outputs: bytes of the tensors that leave the layer.
        working, backward_bytes, fresh_bytes: as in a layer of the profile.
        made: bytes of weight gradients by position and gradient bucket.
        waiting: by position and bucket, bytes of parts of gradients that exist before the gradient is complete and is
            added to an accumulator.
        passing: tensors between layers that the stage does not save: bytes, position of the layer that makes the
            tensor, and last position that reads it (the number of layers if the tensor leaves the stage).
        kept: tensors between layers that the stage saves for its backward: bytes, position of the layer that makes the
            tensor, first position that saves it, and last position as above.
        leaving: bytes of the tensors that leave the stage.
        gradients: gradients of tensors that the stage's layers read, with the positions at which they exist.
        joined: by position, additional memory at the moment when the layer's backward is over but one of its gradients
            is still added to an earlier gradient: the sum and all that the layer has made, minus the memory that it
            has freed by then. 0 if there is no such gradient.
        known: True if the profile knows which layers save a tensor.
    """

    inner: np.ndarray
    outputs: np.ndarray
    working: np.ndarray
    backward_bytes: np.ndarray
    fresh_bytes: np.ndarray
    made: np.ndarray
    kept: tuple[tuple[float, int, int, int], ...]
    passing: tuple[Span, ...]
    leaving: float
    gradients: tuple[Span, ...]
    joined: np.ndarray
    known: bool
    waiting: np.ndarray

    @classmethod
    def of(
        cls,
        columns: Columns,
        samples: int,
        layers: Sequence[int],
        made: np.ndarray,
        readers: Mapping[int, int] | None = None,
        waiting: np.ndarray | None = None,
    ) -> "Walk":
        """Build the walk over the layers of a stage.

        Arguments:
            columns: costs of the profile.
            samples: samples of a microbatch.
            layers: the stage's layers, ascending.
            made: bytes of weight gradients by position and gradient bucket.
            readers: by index of a tensor that leaves the stage, the number of other stages that read it.
            waiting: bytes of parts of gradients, with the shape of `made`; zero if not given.
        """
        own, readers = list(layers), readers or {}
        profile, figures = columns.profile, columns.at(samples)
        place = {layer: k for k, layer in enumerate(own)}
        inner, outputs = figures.stash_bytes[own], np.zeros(len(own))
        kept: list[tuple[float, int, int, int]] = []
        passing: list[Span] = []
        gradients: list[Span] = []
        leaving = 0.0
        over, sums = np.array([profile.layers[layer].gradients_bytes for layer in own]), np.zeros(len(own))
        for index, tensor in enumerate(profile.tensors):
            size, source = float(figures.tensor_bytes[index]), place.get(tensor.source)
            targets = [place[t] for t in tensor.targets if t in place]
            keepers = [place[k] for k in tensor.kept_by if k in place]
            if source is not None:
                outside = len(targets) < len(tensor.targets)
                outputs[source] += size
                leaving += size * outside
                inner[source] -= size * bool(tensor.kept_by)
                until = len(own) if outside else max(targets, default=source)
                if keepers:
                    kept.append((size, source, min(keepers), until))
                    over[min(keepers)] -= size * (min(keepers) > source)
                else:
                    passing.append((size, source, until))
            if tensor.gradient and tensor.source >= 0 and targets:
                # The gradient of a tensor from another stage is collected in a leaf until the backward is over.
                if source is None:
                    gradients.append((size, 0, max(targets)))
                else:
                    first = place.get(tensor.gradient_until, 0) if tensor.gradient_until >= 0 else source
                    gradients.append((size, first, max(targets) - 1))
                over[targets] += size
                if source is not None:
                    over[source] -= size
                met = [t for t in targets if t < max(targets) or readers.get(index)]
                sums[met] = np.maximum(sums[met], size)
            if tensor.gradient and source is not None and readers.get(index, 0) > 1:
                gradients.append((size, max(targets, default=source), len(own) - 1))
        if own[-1] == len(profile.layers) - 1:  # the layer that makes the loss already counts the loss's gradient
            gradients.append((LOSS_BYTES, 0, len(own) - 2))
        return cls(
            np.maximum(inner, 0.0),
            outputs,
            figures.working_bytes[own],
            figures.backward_bytes[own],
            figures.fresh_bytes[own],
            made,
            tuple(kept),
            tuple(passing),
            leaving,
            tuple(gradients),
            np.where(sums > 0, over + sums, 0.0),
            any(layer.backward_bytes for layer in profile.layers),
            np.zeros_like(made) if waiting is None else waiting,
        )

    @cached_property
    def stash_bytes(self) -> float:
        """Bytes of activations that a forward saves for its backward."""
        return float(self.inner.sum()) + sum(size for size, *_ in self.kept)

    @cached_property
    def _peaks(self) -> dict[object, float]:
        """Results of `forward_peak` and `backward_peak`, by their arguments."""
        return {}

    def forward_peak(self, kept: bool, leaves: bool) -> float:
        """Maximum bytes that a forward adds to the memory at its start.

        Arguments:
            kept: True if the forward saves activations for its backward.
            leaves: True if it makes the tensors that leave the stage.
        """
        if (kept, leaves) not in self._peaks:
            self._peaks[kept, leaves] = self._forward_peak(kept, leaves)
        return self._peaks[kept, leaves]

    def _forward_peak(self, kept: bool, leaves: bool) -> float:
        end = len(self.inner) - 1
        before = np.cumsum(self.inner) - self.inner
        if not self.known:
            inside = [span for span in self.passing if span[2] <= end]
            held = before if kept else self._there(inside)
            return self.leaving * leaves + float((held + self.inner + self.working).max())
        earlier = [(size, source + 1, until) for size, source, until in self.passing]
        if kept:
            earlier += [(size, source + 1, end) for size, source, _, _ in self.kept]
        else:
            earlier += [(size, source + 1, until) for size, source, _, until in self.kept]
            before = np.zeros(len(self.inner))
        return float((before + self._there(earlier) + self.inner + self.outputs + self.working).max())

    def backward_peak(self, fresh: Iterable[int], gradients: float) -> float:
        """Maximum bytes that a backward adds to the memory at its start.

        The memory at the start includes the saved activations.

        Arguments:
            fresh: gradient buckets that the backward allocates, instead of adding to existing gradients.
            gradients: bytes of gradients that it makes for other stages.
        """
        key = (tuple(fresh), gradients)
        if key not in self._peaks:
            self._peaks[key] = self._backward_peak(*key)
        return self._peaks[key]

    def _backward_peak(self, fresh: Sequence[int], gradients: float) -> float:
        made = self.made[:, list(fresh)].sum(axis=1)
        before = np.cumsum(made[::-1])[::-1] - made
        inner = np.cumsum(self.inner) - self.inner
        if not self.known:
            gone = self.inner.sum() - inner - self.inner
            return gradients + float((before + made - gone + self.working).max())
        alone = np.where(made > 0, np.maximum(self.fresh_bytes, self.backward_bytes), self.backward_bytes)
        alone = np.maximum(alone, self.joined)
        end = len(self.inner) - 1
        stash = [(size, max(source + 1, keeper), end) for size, source, keeper, _ in self.kept]
        parts = self.waiting.sum(axis=1) - self.waiting[:, list(fresh)].sum(axis=1)
        held = inner + self._there(stash) + self._there(self.gradients) + parts
        return float((held + before + alone).max()) - self.stash_bytes

    def _there(self, spans: Iterable[Span]) -> np.ndarray:
        """Bytes at each position of tensors that exist during given spans of positions."""
        change = np.zeros(len(self.inner) + 1)
        for size, first, last in spans:
            if first <= last:
                change[min(first, len(self.inner))] += size
                change[min(last + 1, len(self.inner))] -= size
        return np.cumsum(change)[:-1]
