"""Sample order: the endless stream of samples that a job trains on.

Rules of this file: no torch; the seed and the number of samples alone determine the order.
"""

from functools import lru_cache

import numpy as np

from hocket.errors import InputError


@lru_cache(maxsize=4)
def _shuffled(epoch: int, samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(samples)


def indices_at(position: int, count: int, samples: int, seed: int) -> list[int]:
    """Return `count` consecutive sample indices of the sample stream.

    Every epoch has its own shuffled order. The stream continues across the end of an epoch.

    Arguments:
        position: number of earlier samples in the stream, over all epochs.
        samples: number of samples of the data.
    """
    out: list[int] = []
    while len(out) < count:
        epoch, start = divmod(position, samples)
        taken = _shuffled(epoch, samples, seed)[start : start + count - len(out)]
        out.extend(int(i) for i in taken)
        position += len(taken)
    return out


def order(step: int, batch_size: int, samples: int, seed: int) -> list[int]:
    """Return the sample indices of step `step` (from 0), `batch_size` of them.

    The position in the stream is step * batch_size. Every sample is used once per epoch.

    Raises:
        InputError: a number is out of range.
    """
    if step < 0 or batch_size < 1 or samples < 1:
        raise InputError("order", f"step {step}, batch {batch_size}, {samples} samples", "step >= 0, others >= 1")
    return indices_at(step * batch_size, batch_size, samples, seed)
