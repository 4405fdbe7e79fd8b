"""Check of loss additivity: a batch's loss is the mean of its parts' losses.

The check runs the model and its loss on samples of the job.

Rules of this file:
- The model does not change.
- Random numbers are replaced by their means (no dropout), because different parts draw different numbers.
- Batch normalisation uses running statistics, because the capture already reports such layers.
- A difference above the rounding of the model is a finding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.profiling.capture.record_forward import all_modules, untouched
from hocket.profiling.checks.mean_draws import Means
from hocket.profiling.checks.suggest_weight import Suggestion, suggestions
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Batch, loss_weight, whole_loss

_SCANNED = 32  # number of samples searched for dissimilar ones
_SPLITS = 2
_HALF = 2  # samples per half; the capture has run the same number
_KEPT = 4_000_000  # maximum number of compared gradient elements
# About a thousand consecutive operations round about this many times as much as the weights alone.
_ROUNDINGS = 30.0
_COARSE = 0.05  # larger rounding makes the comparison meaningless


@dataclass(frozen=True)
class Additivity:
    """Result of comparing the loss of a batch with the losses of its parts.

    Attributes:
        finding: difference between the loss of a batch and the mean of its parts' losses, with advice; empty without one.
        notes: reasons why no comparison was possible, if any.
    """

    finding: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ran:
    """Result of a forward and backward.

    Attributes:
        gradients: all gradients, or evenly spread elements of them, in one dimension.
    """

    batch: Batch
    samples: int
    loss: float
    gradients: Tensor


@dataclass(frozen=True)
class _Split:
    """A batch and its two halves, with the differences that rounding explains.

    Attributes:
        whole: run of the whole batch.
        halves: runs of the two halves.
        allowed: relative differences of loss and gradients that rounding explains.
    """

    whole: _Ran
    halves: tuple[_Ran, _Ran]
    allowed: tuple[float, float]

    def apart(self, shares: Sequence[float]) -> tuple[float, float]:
        """Return the relative differences of loss and gradients.

        The weighted sum of the halves is compared with the whole.

        Arguments:
            shares: weight of each half in the sum.
        """
        loss = sum(share * half.loss for share, half in zip(shares, self.halves, strict=True) if share)
        gradients = sum(
            (share * half.gradients for share, half in zip(shares, self.halves, strict=True) if share),
            torch.zeros_like(self.whole.gradients),
        )
        return _distance(self.whole, loss, gradients)

    def fits(self, shares: Sequence[float]) -> bool:
        """True if the shares explain the whole up to rounding."""
        return all(found <= most for found, most in zip(self.apart(shares), self.allowed, strict=True))

    def shares(self, weights: Sequence[float]) -> tuple[float, ...]:
        """Normalize the weights to a sum of one."""
        total = sum(weights)
        return tuple(weight / total if total else 0.0 for weight in weights)


def additivity(job: Job, written: Sequence[str] = ()) -> Additivity:
    """Compare loss and gradients of a few samples with those of their halves.

    The losses of the halves are added up with the weights of `Job.loss_weight`. Samples are chosen so that the halves
    differ in the number of ignored labels, or in classes. The allowed difference is measured: the same samples run
    again with weights that are rounded in another way.

    Arguments:
        written: names of buffers that the forward writes, a possible reason for a difference.

    Raises:
        InputError: `Job.loss_weight` returns no valid weight.
    """
    if job.batch_size == 1 or job.samples < 2:
        return Additivity()
    means = Means()
    try:
        with _steady(job):
            splits = [_ran(job, means, *halves) for halves in _halves(job)]
    except InputError:
        raise
    # The job's own code may fail for more samples than it was captured with: no reason not to measure the job.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Additivity(notes=(f"the loss of a batch was not compared with that of its parts: {reason}",))
    if means.unknown:
        reason = f"random numbers of {', '.join(sorted(means.unknown))}"
        return Additivity(notes=(f"the loss of a batch was not compared with that of its parts: {reason}",))
    splits = [split for split in splits if isfinite(split.whole.loss) and max(split.allowed) <= _COARSE]
    if not splits:
        return Additivity(notes=("the loss of a batch was not compared with that of its parts: it is too coarse",))
    missed = [split for split in splits if not split.fits(_given(job, split))]
    if not missed:
        return Additivity()
    return Additivity(_finding(job, max(missed, key=lambda split: split.apart(_given(job, split))[1]), splits, written))


def _given(job: Job, split: _Split) -> tuple[float, ...]:
    """Return the shares of the halves according to `Job.loss_weight`."""
    weights = [loss_weight(job, half.batch, half.samples) for half in split.halves]
    by_size = [whole_loss(job, 1.0, half.samples) / whole_loss(job, 1.0, split.whole.samples) for half in split.halves]
    return tuple(share * size for share, size in zip(split.shares(weights), by_size, strict=True))


def _finding(job: Job, split: _Split, splits: Sequence[_Split], written: Sequence[str]) -> str:
    """Describe the difference, with its cause if one cause explains all splits."""
    loss, gradients = split.apart(_given(job, split))
    figures = [f"{name} by {by:.2%}" for name, by in (("it differs", loss), ("gradients", gradients)) if isfinite(by)]
    told = f" ({', '.join(figures)})" if figures else ""
    by = "weighted by loss_weight" if job.loss_weight is not None else "weighted by samples"
    head = f"the loss of {split.whole.samples} samples is not the mean of the losses of its halves {by}{told}"
    if all(one.fits((1.0, 1.0)) for one in splits):
        return f'{head}: it is a sum over samples; give the job loss_weight="sum"'
    for found in suggestions(job, split.whole.batch):
        if all(one.fits(_suggested(found, one)) for one in splits):
            return f"{head}: it is {found.text}; give the job {found.line}"
    one, other = split.halves
    difference = one.gradients - other.gradients
    share = float(((split.whole.gradients - other.gradients) @ difference) / (difference @ difference))
    if 0 <= share <= 1 and split.fits((share, 1 - share)):
        return (
            f"{head}: it is a mean that weights two halves of {one.samples} samples by {share:.3f} and {1 - share:.3f}; give the job a "
            "loss_weight, a function of the microbatch that returns the divisor of that mean"
        )
    why = "as contrastive losses, statistics over the batch and losses that balance experts do"
    if written:
        why = f"perhaps by what it writes into {', '.join(written)}"
    return (
        f"{head}, and no weighted mean of them: the loss or a layer looks at several samples together, {why}; each microbatch is "
        "computed as a separate batch"
    )


def _suggested(found: Suggestion, split: _Split) -> tuple[float, ...]:
    return split.shares([float(found.weight(half.batch)) for half in split.halves])


# -- running


@contextmanager
def _steady(job: Job) -> Iterator[None]:
    """Context that restores the model; batch normalisation uses running statistics."""
    modules = all_modules(job.model, job.loss)
    device = next((p.device for p in job.model.parameters()), torch.device("cpu"))
    with untouched(modules, device), torch.enable_grad():
        for module in modules.values():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.training = False
        yield


def _ran(job: Job, means: Means, first: Sequence[int], second: Sequence[int]) -> _Split:
    """Run two halves of a batch, and the whole batch.

    The effect of rounding in the model is measured if they differ by more than the dtype's rounding.

    Arguments:
        first, second: indices of the samples of each half.
    """
    weights = [p for p in job.model.parameters() if p.requires_grad]
    eps = max(torch.finfo(torch.float32).eps, *(torch.finfo(p.dtype).eps for p in weights))
    one, other, whole = (_run(job, means, indices) for indices in (first, second, (*first, *second)))
    split = _Split(whole, (one, other), (_ROUNDINGS * eps, _ROUNDINGS * eps))
    if split.fits(_given(job, split)):
        return split
    with _rounded_otherwise(weights, eps):
        again = _run(job, means, (*first, *second))
    loss, gradients = (_ROUNDINGS * (eps + noise) for noise in _distance(whole, again.loss, again.gradients))
    return replace(split, allowed=(loss, gradients))


@contextmanager
def _rounded_otherwise(weights: Sequence[Tensor], eps: float) -> Iterator[None]:
    """Perturb the weights by one rounding within the context."""
    kept = [p.detach().clone() for p in weights]
    draw = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for p in weights:
                sign = torch.randint(0, 2, p.shape, generator=draw).mul_(2).sub_(1).to(p.device)
                p.mul_(1 + eps * sign)
        yield
    finally:
        with torch.no_grad():
            for p, before in zip(weights, kept, strict=True):
                p.copy_(before)


def _run(job: Job, means: Means, indices: Sequence[int]) -> _Ran:
    weights = [p for p in job.model.parameters() if p.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in job.model.named_buffers()}
    batch = job.batch(indices)
    here = {key: value.to(weights[0].device) for key, value in batch.items()}
    with means:
        loss = job.loss_of(here)
        grads = torch.autograd.grad(loss, weights, allow_unused=True)
    for name, buffer in job.model.named_buffers():
        buffer.copy_(buffers[name])
    step = max(1, sum(p.numel() for p in weights) // _KEPT)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(weights, grads, strict=True)]
    return _Ran(
        batch, len(indices), float(loss.detach()), torch.cat([g.reshape(-1)[::step].double().cpu() for g in flat])
    )


def _distance(whole: _Ran, loss: float, gradients: Tensor) -> tuple[float, float]:
    """Return the relative distances of a loss and gradients from a run."""
    size = float(whole.gradients.norm())
    apart = float((whole.gradients - gradients).norm())
    return (
        abs(whole.loss - loss) / abs(whole.loss) if whole.loss else abs(loss),
        apart / size if size else apart,
    )


# -- choice of samples


def _halves(job: Job) -> list[tuple[list[int], list[int]]]:
    """Choose pairs of dissimilar halves, by several criteria."""
    total = job.samples
    known = (
        list(dict.fromkeys(k * total // _SCANNED for k in range(_SCANNED))) if total > _SCANNED else list(range(total))
    )
    half = min(_HALF, len(known) // 2)
    found: list[tuple[list[int], list[int]]] = []
    for values in _scores(job, known):
        usable = [k for k, value in enumerate(values) if value > 0]
        ordered = sorted(usable, key=lambda k: values[k])
        low, high = ordered[:half], ordered[-half:]
        if len(ordered) < 2 * half or sum(values[k] for k in low) == sum(values[k] for k in high):
            continue
        pair = [known[k] for k in low], [known[k] for k in high]
        if pair not in found:
            found.append(pair)
    return found[:_SPLITS] or [(known[:half], known[half : 2 * half])]


def _scores(job: Job, known: Sequence[int]) -> Iterator[list[float]]:
    """Yield scores of samples by several criteria: weights, counted tokens, classes.

    Arguments:
        known: indices of the samples. Each result has one score for each of them; 0 excludes a sample.
    """
    batches = [job.batch([i]) for i in known]
    if callable(job.loss_weight):
        yield [loss_weight(job, batch, 1) for batch in batches]
    whole = {key for key, value in batches[0].items() if not value.is_floating_point() and not value.is_complex()}
    for ignored in (-100, 0):
        for key in (key for key in batches[0] if key in whole and batches[0][key].numel() > 1):
            yield [float(batch[key].ne(ignored).sum()) for batch in batches]
    for key in (key for key in batches[0] if key in whole and batches[0][key].numel() == 1):
        yield [float(batch[key]) + 1 for batch in batches]
