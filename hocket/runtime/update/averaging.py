"""Averaging between two waves, that is two replicas of a stage on one device.

Waves share gradients, and average their weights between segments. Nothing is sent, because both replicas are on this
device. The gradients of each wave are already summed over all its devices.

Source: Wang et al., Wavelet (MLSys 2021), section 3.2.3, equation 1. By lemma 1, sums may be averaged as well.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hocket.runtime.update.buckets import Bucket, Buckets


def averaged(own: Sequence[Bucket], lent: Sequence[Bucket]) -> list[Bucket]:
    """Add the gradients of two halves of a batch, each computed by one wave.

    Each half is already weighted by its share of the batch's samples (loss/factors.py).

    Arguments:
        own: gradients of this wave's half; unchanged.
        lent: gradients of the other wave's half; the sum is written into their memory.

    Returns:
        The sum, by bucket.
    """
    with torch.no_grad():
        for mine, theirs in zip(own, lent, strict=True):
            torch._foreach_add_(_tensors(theirs), _tensors(mine))
    return list(lent)


def alone(own: Sequence[Bucket], buckets: Buckets, factor: float) -> list[Bucket]:
    """Scale the gradients of the very first half-batch of a run, in new memory.

    Arguments:
        own: gradients by bucket; unchanged.
        buckets: the stage's buckets, for new memory.
    """
    found = []
    with torch.no_grad():
        for mine in own:
            bucket = buckets.take(mine.number)
            if mine.flats:
                bucket.gradients = [
                    None if g is None else view for g, view in zip(mine.gradients, bucket.views, strict=True)
                ]
            else:
                bucket.gradients = [None if g is None else torch.empty_like(g) for g in mine.gradients]
            for made, given in zip(_tensors(bucket), _tensors(mine), strict=True):
                torch.mul(given, factor, out=made)
            found.append(bucket)
    return found


def _tensors(bucket: Bucket) -> list[Tensor]:
    return list(bucket.flats) or [g for g in bucket.gradients if g is not None]


def meet(one: Tensor, other: Tensor) -> None:
    """Set two floating-point tensors to their mean.

    Other tensors, such as step counters, are equal already and are not changed.
    """
    if one.is_floating_point():
        one.add_(other).div_(2)
        other.copy_(one)
