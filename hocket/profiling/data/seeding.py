"""Seeding: the random numbers of each sample follow from the job's seed and the sample's place in the stream.

Rules of this file: stages of a pipeline read the same sample in processes of their own, one for its inputs and one for its
targets, so both must make the same draws. The generators are the process's: whoever seeds one of them holds GENERATORS
until the draws are made, because compute lanes of one device run in threads.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np

GENERATORS = RLock()
"""Held from the seeding of a global generator to the last number that is drawn from it."""
_MASK = 2**64 - 1


def mixed(number: int) -> int:
    """64 well mixed bits (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    z = (number + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def sample_seed(seed: int, position: int) -> int:
    """The 63-bit seed of the random numbers of one sample.

    Arguments:
        seed: the job's. position: samples before this one in the stream, counted over all epochs.
    """
    return mixed(mixed(seed ^ 0x5EED) ^ position) >> 1


@contextmanager
def own_draws() -> Iterator[None]:
    """Keep the global generators of torch (CPU), numpy.random and random, and put them back afterwards.

    Costs about 80 microseconds, nearly all of them for numpy's state.
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
    """Seed the global generators of torch (CPU), numpy.random and random; about 7 microseconds.

    `torch.manual_seed` would take 120 microseconds, for it looks for generators of all other devices.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # a longer seed, which is an array to numpy, takes six times as long
    random.seed(seed)
