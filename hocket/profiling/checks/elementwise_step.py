"""Checks of an optimizer: can devices step shards of a weight, and stages their own weights?

An elementwise step updates each number of a weight independently of the others. A step can also couple weights: for
example, it clips by the norm of all gradients.

The optimizer is tried on small weights in the parameter groups of the whole model. A small weight has as many
dimensions as a weight of its group.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hocket.errors import InputError, RefusedError
from hocket.profiling.checks.group_state import changed_entries, group_entries
from hocket.profiling.job.job import Job
from hocket.profiling.job.optimizer import (
    PLACE,
    group_names,
    optimizer_name,
    refill,
    whole_optimizer,
    written_parameters,
)
from hocket.util.compatibility import Feature, check_together

_SAME = 1e-9
_SIZE = 2
_SHAPES = ((8, 8), (8,))
# Sizes of successive gradients. Some optimizers look at several weights only if gradients are large, or often alike.
_SCALES = (1.0, 1.0, 1.0, 1e4, 1e4)

Cut = Callable[[Tensor], Sequence[Tensor]]
"""Function from a tensor to its shards."""
Groups = Sequence[Sequence[Tensor]]
"""Tensors of each parameter group."""


def is_elementwise(job: Job) -> bool:
    """True if optimizer steps on shards of a weight equal a step on the whole weight.

    They differ for Adafactor, for example. Also True if nothing is known, because the optimizer cannot step float64
    weights on the CPU.
    """
    try:
        # The check uses real tensors, even if the job runs on fake tensors.
        with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[no-untyped-call]
            check_optimizer(job, _SHAPES, lambda whole: whole.chunk(2), Feature.SHARD_OPTIMIZER)
    except RefusedError:
        return False
    except InputError:  # it cannot step float64 weights on the CPU: nothing is known
        return True
    return True


def is_coupled(job: Job) -> bool:
    """True if the optimizer's step of a weight depends on the other weights, as far as a trial shows.

    The result is False if nothing is known: the optimizer cannot step float64 weights on the CPU, or steps at random.
    """
    try:
        with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[no-untyped-call]
            check_stages(job)
    except RefusedError:
        return True
    return False


def check_optimizer(job: Job, shapes: Sequence[tuple[int, ...]], cut: Cut, way: Feature) -> None:
    """Refuse an optimizer that is not elementwise.

    A step of each shard must equal the shards of one step.

    Arguments:
        job: the job with the optimizer.
        shapes: shapes of the small weights to try, one with two or more dimensions and one with one dimension.
        cut: function that divides a weight into shards.
        way: the feature that divides weights, for the error.

    Raises:
        RefusedError: the optimizer needs whole weights.
        InputError: the optimizer's step fails on these weights.
    """
    draw = torch.Generator().manual_seed(0)
    optimizer = whole_optimizer(job)
    name = optimizer_name(optimizer)
    matrices = [{p.dim() > 1 for p in group["params"]} for group in optimizer.param_groups]
    kinds = [[shape for shape in shapes if (len(shape) > 1) in own] for own in matrices]

    def drawn() -> list[list[Tensor]]:
        return [[torch.randn(shape, generator=draw, dtype=torch.float64) for shape in own] for own in kinds]

    start, gradients = drawn(), [drawn(), drawn()]  # the second step sees state
    gradients.append([[max(_SCALES) * tensor for tensor in own] for own in gradients[-1]])
    try:
        whole = _stepped(job, start, gradients)
    except Exception as error:
        found = f"{name}, whose step fails: {type(error).__name__}: {error}"
        raise InputError(PLACE, found, "an optimizer with a step that works on float64 weights on the CPU") from error
    count = max((len(cut(tensor)) for own in start for tensor in own), default=0)
    try:
        parts = [
            _stepped(
                job,
                [[cut(tensor)[k] for tensor in own] for own in start],
                [[[cut(tensor)[k] for tensor in own] for own in each] for each in gradients],
            )
            for k in range(count)
        ]
    except Exception:
        check_together(PLACE, Feature.WHOLE_STEPS, way, found=name)
        raise
    for g, own in enumerate(whole):
        for i, tensor in enumerate(own):
            expected = torch.cat([part.flatten() for part in cut(tensor)])
            found_parts = torch.cat([part[g][i].flatten() for part in parts])
            if not torch.allclose(found_parts, expected, rtol=_SAME, atol=_SAME):
                check_together(PLACE, Feature.WHOLE_STEPS, way, found=name)


def check_stages(job: Job) -> None:
    """Refuse an optimizer with a step of a weight that depends on the other weights.

    Each stage has an optimizer of its own weights. A step of half of the weights must equal half of a step of all.
    Nothing is refused if nothing is known, because the optimizer cannot step float64 weights on the CPU, or steps at
    random.

    Raises:
        RefusedError: the optimizer needs the weights of all stages.
    """
    draw = torch.Generator().manual_seed(0)
    optimizer = whole_optimizer(job)
    dimensions = [{p.dim() > 1 for p in group["params"]} for group in optimizer.param_groups]
    kinds = [[shape for shape in _SHAPES if (len(shape) > 1) in own] for own in dimensions]

    def drawn() -> list[list[Tensor]]:
        return [[torch.randn(shape, generator=draw, dtype=torch.float64) for shape in 2 * own] for own in kinds]

    def half(groups: Groups, second: bool) -> Groups:
        return [group[len(group) // 2 :] if second else group[: len(group) // 2] for group in groups]

    start, gradient = drawn(), drawn()
    gradients = [[[scale * tensor for tensor in group] for group in gradient] for scale in _SCALES]
    try:
        with torch.random.fork_rng(devices=()):
            whole, again = _stepped(job, start, gradients), _stepped(job, start, gradients)
    except Exception:
        return
    if not _alike(whole, again):
        return
    for second in (False, True):
        try:
            alone = _stepped(job, half(start, second), [half(each, second) for each in gradients])
        except Exception:
            return
        if not _alike(alone, half(whole, second)):
            check_together(PLACE, Feature.STAGES, Feature.COUPLED_STEPS, found=optimizer_name(optimizer))


def kept_keys(job: Job) -> dict[str, frozenset[str]]:
    """Keys of the optimizer state after a step, by parameter name.

    They are found by a step on small weights. Keys with the value None are left out.
    """
    written = written_parameters(job)
    names = group_names(job)
    optimizer, own = _tried(job, [[torch.ones((_SIZE,) * written[n].dim()) for n in group] for group in names])
    for p in (p for group in own for p in group):
        p.grad = torch.ones_like(p)
    optimizer.step()
    return {
        name: frozenset(key for key, value in optimizer.state.get(p, {}).items() if value is not None)
        for group, parameters in zip(names, own, strict=True)
        for name, p in zip(group, parameters, strict=True)
    }


def _alike(found: Groups, expected: Groups) -> bool:
    pairs = (pair for groups in zip(found, expected, strict=True) for pair in zip(*groups, strict=True))
    return all(torch.allclose(a, b, rtol=_SAME, atol=_SAME) for a, b in pairs)


def kept_group_keys(job: Job) -> frozenset[str]:
    """Keys of parameter groups that the optimizer's step changes, such as a step counter.

    They are found by two steps on small weights, without a schedule.
    """
    written = written_parameters(job)
    optimizer, own = _tried(
        job, [[torch.ones((_SIZE,) * written[n].dim()) for n in group] for group in group_names(job)]
    )
    before = group_entries(optimizer)
    found: set[str] = set()
    for _ in range(2):
        for p in (p for group in own for p in group):
            p.grad = torch.ones_like(p)
        optimizer.step()
        found.update(key for entries in changed_entries(optimizer, before) for key in entries)
    return frozenset(found)


def _stepped(job: Job, start: Groups, gradients: Sequence[Groups]) -> list[list[Tensor]]:
    """Run successive optimizer steps on small weights; return the weights by group.

    Arguments:
        start: initial weights of each group, in place of the job's own weights.
        gradients: gradients of each step.
    """
    optimizer, own = _tried(job, start)
    for each in gradients:
        for p, gradient in ((p, g) for pair in zip(own, each, strict=True) for p, g in zip(*pair, strict=True)):
            p.grad = gradient.clone()
        optimizer.step()
    return [[p.detach() for p in group] for group in own]


def _tried(job: Job, weights: Groups) -> tuple[Optimizer, list[list[nn.Parameter]]]:
    """Return the job's optimizer with other weights in its groups, and these weights by group."""
    optimizer = whole_optimizer(job)
    own = [[nn.Parameter(tensor.detach().clone()) for tensor in group] for group in weights]
    for group, mine in zip(optimizer.param_groups, own, strict=True):
        refill(optimizer, group, [("", q, _like(q, group["params"])) for q in mine])
    return optimizer, own


def _like(weight: Tensor, group: Sequence[Tensor]) -> Tensor:
    """Return the first tensor of a group with the nearest number of dimensions."""
    return min(group, key=lambda p: abs(p.dim() - weight.dim()))
