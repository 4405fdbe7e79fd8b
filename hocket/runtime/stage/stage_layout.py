"""Parts of the model that one device needs for its stages.

These are layers, parameters by bucket, tensors of the batch, and tensors of stage boundaries.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

from hocket.profiling.capture.capture import Captured
from hocket.program.order import scattered, summed
from hocket.program.passes.borders import Tie, batch_tensors, crossing, ties_of
from hocket.program.program import StageShape
from hocket.program.rank_layout import RankLayout
from hocket.runtime.update.buckets import GradientBucket

Names = tuple[str, ...]


@dataclass(frozen=True)
class StagePart:
    """One stage as a device executes it.

    Attributes:
        number: number of the stage.
        shape: the program's description of the stage.
        layers: indices of the layers in the captured model, ascending.
        parameters: global names, in the model's order.
        buckets: gradient buckets of the trainable parameters.
        batch: (tensor name, key in the batch) of the tensors that the stage reads from the batch.
        arriving: names of the tensors that the stage receives in a forward, by the stage that computes them.
        leaving: names of the tensors that the stage sends in a forward, by the stage that reads them.
        arriving_gradients: names of the arriving tensors that need a gradient, by the stage that computes them. The
            stage sends these gradients back to that stage.
        leaving_gradients: names of the leaving tensors that need a gradient, by the stage that reads them. The stage
            receives these gradients from that stage.
        loss: name of the loss tensor if the stage computes it; else empty.
    """

    number: int
    shape: StageShape
    layers: tuple[int, ...]
    parameters: Names
    buckets: tuple[GradientBucket, ...]
    batch: tuple[tuple[str, str], ...]
    arriving: Mapping[int, Names]
    leaving: Mapping[int, Names]
    arriving_gradients: Mapping[int, Names]
    leaving_gradients: Mapping[int, Names]
    loss: str


def split(captured: Captured, layout: RankLayout, device: int) -> tuple[StagePart, ...]:
    """Return the stages of one device, ascending."""
    cuts, shapes, layers, tensors = layout.cuts, layout.shapes, captured.layers, captured.tensors
    ties, borders, of_batch = ties_of(layers, cuts), crossing(tensors, cuts), batch_tensors(tensors, cuts)
    key_of = {name: key for key, name in captured.batch_names.items()}
    every = dict(captured.job.model.named_parameters())
    with_gradient = {name for layer in layers for name in {*layer.parameters} - {*layer.without_gradient}}
    trainable = {name for name, p in every.items() if p.requires_grad}
    parts = []
    for s, cut in enumerate(cuts):
        if device not in cut.devices:
            continue
        used = {k: layers[k].parameters for k in cut.layers}
        tied = [tie for tie in ties if s in tie.stages]
        buckets = _parameter_buckets(used, cut.buckets, tied, trainable)
        elsewhere = {name for tie in tied for name in tie.parameters} & with_gradient
        held = {name for names in used.values() for name in names}
        own = {pair: [tensors[i] for i in indices] for pair, indices in borders.items() if s in pair}
        whole = {pair: tuple(tensor.name for tensor in some) for pair, some in own.items()}
        flowing = {pair: tuple(tensor.name for tensor in some if tensor.gradient) for pair, some in own.items()}
        parts.append(
            StagePart(
                number=s,
                shape=shapes[s],
                layers=cut.layers,
                parameters=tuple(name for name in every if name in held),
                buckets=tuple(
                    GradientBucket(names, summed(shapes, s, b), scattered(shapes, s, b), elsewhere & {*names})
                    for b, names in enumerate(buckets)
                ),
                batch=tuple((tensors[i].name, key_of[tensors[i].name]) for i in of_batch.get(s, ())),
                arriving=MappingProxyType({a: names for (a, b), names in whole.items() if b == s}),
                leaving=MappingProxyType({b: names for (a, b), names in whole.items() if a == s}),
                arriving_gradients=MappingProxyType({a: names for (a, b), names in flowing.items() if b == s}),
                leaving_gradients=MappingProxyType({b: names for (a, b), names in flowing.items() if a == s}),
                loss=captured.loss_tensor if len(layers) - 1 in cut.layers else "",
            )
        )
    return tuple(parts)


def _parameter_buckets(
    parameters: Mapping[int, Names], buckets: Sequence[Sequence[int]], ties: Sequence[Tie], trainable: Set[str]
) -> tuple[Names, ...]:
    """Return the trainable parameter names of each bucket of a stage.

    Buckets of weights tied to other stages come last. A parameter that several layers of the stage use belongs to the
    bucket that a backward completes last.

    Arguments:
        parameters: names of the parameters of each of the stage's layers.
        buckets: layers of each gradient bucket; empty for one bucket.
        ties: ties with other stages.
        trainable: names of the parameters that require a gradient.
    """
    tied = {name for tie in ties for name in tie.parameters}
    own = buckets or (tuple(parameters),)
    home: dict[str, int] = {}
    for bucket, layers in enumerate(own):
        for layer in layers:
            for name in parameters[layer]:
                if name in trainable and name not in tied:
                    home[name] = max(bucket, home.get(name, bucket))
    found = [tuple(name for name, bucket in home.items() if bucket == b) for b in range(len(own))]
    found += [tuple(name for name in tie.parameters if name in trainable) for tie in ties]
    return tuple(found)
