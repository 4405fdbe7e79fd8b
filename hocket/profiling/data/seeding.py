"""Seeding of samples from the job's seed and the sample's position in the stream.

Rules of this file:
- Pipeline stages read a sample in separate processes, for its inputs and for its targets. Both must draw equal random
  numbers.
- The generators are global in a process, and compute lanes of one device run in threads. Code that seeds a generator
  therefore holds the lock GENERATORS until the draws are done.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np

GENERATORS = RLock()
"""Lock, held from seeding a global generator to the last number drawn from it."""
_MASK = 2**64 - 1


def mixed(number: int) -> int:
    """Mix an integer into 64 pseudorandom bits (SplitMix64).

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    z = (number + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def sample_seed(seed: int, position: int) -> int:
    """Compute the 63-bit seed of one sample.

    Arguments:
        seed: seed of the job.
        position: number of earlier samples in the stream, over all epochs.
    """
    return mixed(mixed(seed ^ 0x5EED) ^ position) >> 1


@contextmanager
def own_draws() -> Iterator[None]:
    """Save and restore the global generators of torch (CPU), numpy.random and random.

    The cost is about 80 microseconds, mostly for the state of numpy.
    """
    import torch

    with GENERATORS:
        generator, legacy, plain = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
        try:
            yield
        finally:
            torch.set_rng_state(generator)
            np.random.set_state(legacy)
            random.setstate(plain)


def seed_all(seed: int) -> None:
    """Seed the global generators of torch (CPU), numpy.random and random.

    The cost is about 7 microseconds. `torch.manual_seed` costs 120 microseconds, because it searches the generators of
    all other devices.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # numpy stores a longer seed as an array, which is six times slower
    random.seed(seed)
