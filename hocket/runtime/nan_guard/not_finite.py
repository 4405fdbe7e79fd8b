"""Origin of a nan or infinite number.

It is derived from the findings of all devices in a replay of the step. This file works on plain data, without tensors.
Layers are in forward order. Tensors between layers are identified by name (`hocket.profiling.capture.capture`).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hocket.errors import NotFinite
from hocket.runtime.nan_guard.inspector import GRADIENT, MADE, WEIGHT, WEIGHT_GRADIENT, Fact

if TYPE_CHECKING:
    from hocket.profiling.capture.capture import Captured


def origin(captured: "Captured", facts: Iterable[Fact]) -> str | None:
    """Find the origin of the first non-finite value, as a phrase.

    It is the first that applies of:

    1. A weight that was not finite before the step.
    2. In the first microbatch (or merged microbatches), a sample or the first layer in forward order that computed a
       non-finite tensor from finite ones. The tensor must have reached the loss.
    3. The last layer in forward order with a backward that computed a non-finite gradient from finite ones.

    Returns:
        The phrase; None if no loss or gradient depends on the findings.
    """
    facts = sorted(facts, key=lambda fact: fact.microbatch)
    weights = [fact for fact in facts if fact.way == WEIGHT]
    if weights:
        first = min(weights, key=lambda fact: min(_holders(captured, fact.name), default=0))
        return f"the weight {first.name} of stage {first.stage} ({first.faults}), before the step"
    for together in _bundled(facts):
        found = _forward(captured, together) or _backward(captured, together)
        if found is not None:
            return found
    return None


def _bundled(facts: Sequence[Fact]) -> list[list[Fact]]:
    """Group facts by microbatch, or by merged microbatches, in order of microbatch.

    One non-finite microbatch makes merged microbatches non-finite. Another stage may have run them one by one, so their
    facts belong together. Facts of the same merged microbatches name the same samples.
    """
    groups: list[tuple[set[int], set[tuple[int, str]], list[Fact]]] = []
    for fact in facts:
        bundle = (fact.stage, fact.samples)
        met = [group for group in groups if fact.microbatch in group[0] or bundle in group[1]]
        home = met[0] if met else (set[int](), set[tuple[int, str]](), list[Fact]())
        for group in met[1:]:
            home[0].update(group[0])
            home[1].update(group[1])
            home[2].extend(group[2])
            groups.remove(group)
        if not met:
            groups.append(home)
        home[0].add(fact.microbatch)
        home[1].add(bundle)
        home[2].append(fact)
    ordered = [sorted(own, key=lambda fact: fact.microbatch) for _, _, own in groups]
    return sorted(ordered, key=lambda own: own[0].microbatch)


def _forward(captured: "Captured", facts: Sequence[Fact]) -> str | None:
    """Find the sample or the first layer that made the loss non-finite.

    Non-finite tensors are traced back from the loss. So tensors that a later layer makes finite again (masks) do not
    count.

    Returns:
        A phrase; None if the loss is finite.
    """
    made: dict[str, Fact] = {}
    for fact in facts:
        if fact.way == MADE:
            made.setdefault(fact.name, fact)
    if captured.loss_tensor not in made:
        return None
    reads: dict[int, list[str]] = {}
    for tensor in captured.tensors:
        for layer in tensor.targets:
            reads.setdefault(layer, []).append(tensor.name)
    last = len(captured.layers) - 1
    roots: dict[int, str] = {}
    todo, seen = [(captured.loss_tensor, last)], set[str]()
    while todo:
        name, layer = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        before = [one for one in reads.get(layer, ()) if one in made] if layer >= 0 else []
        if not before:
            roots.setdefault(layer, name)
        todo += [(one, captured.tensor[one].source) for one in before]
    layer = min(roots)
    fact = made[roots[layer]]
    if layer < 0:
        return f"the input {fact.name.removeprefix('batch:')!r} itself ({fact.faults}), of {fact.samples}"
    what = "the loss" if fact.name == captured.loss_tensor else "the output"
    named = f"{what} of layer {captured.layers[layer].name!r}, stage {fact.stage} ({fact.faults})"
    return f"{named}, of {fact.samples}; all inputs of this layer are finite"


def _backward(captured: "Captured", facts: Sequence[Fact]) -> str | None:
    """Find the last layer that computes non-finite gradients from finite ones.

    Returns:
        A phrase; None if all gradients are finite.
    """
    bad: dict[int, Fact] = {}
    behind: set[int] = set()
    for fact in facts:
        if fact.way == GRADIENT and fact.name in captured.tensor:
            tensor = captured.tensor[fact.name]
            behind.add(tensor.source)
            for layer in tensor.targets:
                bad.setdefault(layer, fact)
        elif fact.way == WEIGHT_GRADIENT:
            for layer in _holders(captured, fact.name):
                if layer not in bad or bad[layer].way == GRADIENT:
                    bad[layer] = fact
    roots = [layer for layer in bad if layer not in behind] or list(bad)
    if not roots:
        return None
    layer = max(roots)
    fact = bad[layer]
    whose = f"of {fact.name}" if fact.way == WEIGHT_GRADIENT else "of its input"
    named = f"the gradient {whose} ({fact.faults}) in the backward of layer {captured.layers[layer].name!r}, stage {fact.stage}"
    return f"{named}, of {fact.samples}; the gradients that arrive there are finite"


def _holders(captured: "Captured", parameter: str) -> list[int]:
    return [k for k, layer in enumerate(captured.layers) if parameter in layer.parameters]


def not_finite(step: int, text: str, where: str, checkpoint: str | None, can_skip: bool = True) -> NotFinite:
    """Build the error that ends a run.

    Arguments:
        step: number of the step, from 0.
        text: the first finding.
        where: the origin of the finding.
        checkpoint: path of the newest checkpoint of the run, if any.
        can_skip: True if the strategy supports `--on-nan skip`.
    """
    kept = f"The newest checkpoint is from before: {checkpoint}. " if checkpoint else ""
    skip = "--on-nan skip skips updates with such gradients, " if can_skip else ""
    hint = (
        f"{kept}Check these samples and this layer, or use a smaller learning rate or clip_grad_norm; "
        f"{skip}--on-nan go continues."
    )
    return NotFinite(f"step {step + 1}", f"{text}; {where}", "finite losses, gradients and weights", hint)
