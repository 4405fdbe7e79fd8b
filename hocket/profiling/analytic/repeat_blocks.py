"""Depth scaling: a profile with more or fewer repetitions of its repeated block.

The result stands for the profile of a deeper (or shallower) model.

Rules of this file: the block is found from layers alone, by kinds, parameters and bytes that repeat. Blocks between
the first and the last are copies of the second: inputs, outputs, seconds and bytes. Nothing else changes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hocket.profiling.layer import Layer, Tensor
from hocket.profiling.profile import ModelProfile

LEAST = 3  # smallest number of blocks: a first one, a copied one, a last one


@dataclass(frozen=True)
class RepeatedBlock:
    """A repeated block: `times` repetitions of `size` layers, from layer `first` on."""

    first: int
    size: int
    times: int


def repeated_block(profile: ModelProfile) -> RepeatedBlock | None:
    """Find the repeated block with the most bytes of weights in all its repetitions.

    None if no block with weights repeats LEAST times.
    """
    seen = [(one.kind, one.weights_bytes, len(one.parameters), one.optimizer_bytes) for one in profile.layers]
    best: tuple[float, int, RepeatedBlock] | None = None
    for size in range(1, len(seen) // LEAST + 1):
        start = 0
        for k in range(len(seen) - size + 1):
            if k + size < len(seen) and seen[k] == seen[k + size]:
                continue
            times = (k - start) // size + 1
            if times >= LEAST:
                weights = sum(one.weights_bytes for one in profile.layers[start : start + times * size])
                one = (weights, -size, RepeatedBlock(start, size, times))
                best = one if best is None or one[:2] > best[:2] else best
            start = k + 1
    return best[2] if best is not None and best[0] > 0 else None


def lengthened(profile: ModelProfile, block: RepeatedBlock, times: int) -> ModelProfile:
    """Return the profile with `times` repetitions of its block (at least LEAST)."""
    place = _Places(block, max(times, LEAST), len(profile.layers))
    layers: list[Layer] = []
    for k, layer in enumerate(profile.layers):
        if k < place.second or k >= place.last:
            layers.append(layer)
        elif k == place.second:  # all copies of the second block, one after the other
            for copy in range(place.copies):
                layers += [_copied(one, copy) for one in profile.layers[k : k + block.size]]
    made = (one for tensor in profile.tensors for one in _tensors(tensor, place))
    tensors = sorted(made, key=lambda tensor: tensor.source)
    ties = tuple(tuple(place.outside(k) for k in tie) for tie in profile.ties if not any(map(place.inside, tie)))
    return replace(
        profile,
        layers=tuple(layers),
        tensors=tuple(tensors),
        ties=ties,
        whole_forward_s=(),
        whole_backward_s=(),
        whole_forward_std_s=_longer(
            profile.whole_forward_std_s, *(_summed(one.forward_s for one in own) for own in (profile.layers, layers))
        ),
        whole_backward_std_s=_longer(
            profile.whole_backward_std_s, *(_summed(one.backward_s for one in own) for own in (profile.layers, layers))
        ),
        compiled=None,
        digest_of_model="",
        notes=(*profile.notes, f"{max(times, LEAST)} blocks instead of {block.times}"),
    )


def _summed(rows: Iterable[tuple[float, ...]]) -> list[float]:
    """Sum the seconds of all layers, for each microbatch size."""
    return [sum(column) for column in zip(*rows, strict=True)]


def _longer(deviations_s: tuple[float, ...], before: list[float], after: list[float]) -> tuple[float, ...]:
    """Scale standard deviations of the whole model's time to another depth.

    Layers vary independently, so variances grow in proportion to seconds.

    Arguments:
        before, after: seconds of all layers at the old and the new depth, by microbatch size.
    """
    if not deviations_s:
        return ()
    rows = zip(deviations_s, before, after, strict=True)
    return tuple(own * math.sqrt(long / short) if short > 0 else own for own, short, long in rows)


@dataclass(frozen=True)
class _Places:
    """New index of each layer if the block repeats `times` times.

    Attributes:
        layers: number of layers before.
    """

    block: RepeatedBlock
    times: int
    layers: int

    @property
    def copies(self) -> int:
        return self.times - 2

    @property
    def second(self) -> int:
        """Index of the first layer of the second block, which is copied."""
        return self.block.first + self.block.size

    @property
    def third(self) -> int:
        return self.second + self.block.size

    @property
    def last(self) -> int:
        """Index of the first layer of the last block, before the change."""
        return self.block.first + (self.block.times - 1) * self.block.size

    def inside(self, layer: int) -> bool:
        """True if a layer is in a block between the first and the last one."""
        return self.second <= layer < self.last

    def outside(self, layer: int) -> int:
        """Return the new index of a layer that stays as it is."""
        return layer if layer < self.second else layer + (self.times - self.block.times) * self.block.size

    def of(self, layer: int, copy: int) -> int:
        """Return the new index of a layer of the second block in one of its copies.

        For a layer of the third block, the result is a layer of the next copy.

        Arguments:
            layer: index before the change.
            copy: number of the copy, from 0.
        """
        return layer + copy * self.block.size


def _copied(layer: Layer, copy: int) -> Layer:
    if not copy:
        return layer
    names = tuple(f"{name}+{copy}" for name in layer.parameters)
    return replace(layer, name=f"{layer.name}+{copy}", parameters=names)


def _tensors(tensor: Tensor, place: _Places) -> Iterable[Tensor]:
    """Yield the new profile's copies of a tensor: none, one, or one for each block."""
    if place.second <= tensor.source < place.third:
        for copy in range(place.copies):
            # An input of the next block is read by the next copy, or by the last block.
            beyond = copy == place.copies - 1

            def moved(layers: tuple[int, ...], copy: int = copy, beyond: bool = beyond) -> tuple[int, ...]:
                near = {place.of(k, copy) for k in layers if k < place.third + place.block.size}
                far = {place.outside(k) for k in layers if k >= place.last and beyond}
                return tuple(sorted(near | far))

            until = place.of(tensor.gradient_until, copy) if tensor.gradient_until >= place.second else -1
            name = tensor.name if not copy else f"{tensor.name}+{copy}"
            source = place.of(tensor.source, copy)
            yield replace(
                tensor,
                name=name,
                source=source,
                targets=moved(tensor.targets),
                kept_by=moved(tensor.kept_by),
                gradient_until=until,
            )
        return
    if place.inside(tensor.source):
        return  # a tensor of a block that copies replace
    if tensor.source >= place.last:
        shift = place.outside
        until = shift(tensor.gradient_until) if tensor.gradient_until >= place.last else -1
        moved_to = (tuple(map(shift, tensor.targets)), tuple(map(shift, tensor.kept_by)))
        yield replace(
            tensor, source=shift(tensor.source), targets=moved_to[0], kept_by=moved_to[1], gradient_until=until
        )
        return
    # From before the second block: if later blocks read it too, all copies read it.
    everywhere = any(place.third <= k < place.last or k >= place.last for k in tensor.targets)

    def read(layers: tuple[int, ...]) -> tuple[int, ...]:
        found = {place.outside(k) for k in layers if not place.inside(k)}
        own = [k for k in layers if place.second <= k < place.third]
        found.update(place.of(k, copy) for k in own for copy in range(place.copies if everywhere else 1))
        return tuple(sorted(found))

    yield replace(tensor, targets=read(tensor.targets), kept_by=read(tensor.kept_by))
