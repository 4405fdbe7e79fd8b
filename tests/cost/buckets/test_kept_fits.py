"""Overlap models that are fitted to drawn measurements, with what they predict, equal to those in fits.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

from pathlib import Path
from random import Random

from hocket.cost.buckets.fit import Computed, Fitted, Moved, fit
from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel
from tests.drawn import overlap
from tests.kept import check

FITS = 40


def measurements(draw: Random, model: OverlapModel, threads: list[int]) -> tuple[list[Computed], list[Moved]]:
    """Few or many measurements with noise, of all-reduces that are mostly or hardly beside computation."""
    noise, count = draw.choice((0.0, 0.02, 0.3)), draw.choice((1, 2, 4, 12))
    threads += draw.choice(((2,), (1, 4), (1, 2, 8)))
    one_size = draw.random() < 0.1
    computed, moved = [], []

    def seen(seconds: float) -> float:
        return seconds * (1 + draw.uniform(-noise, noise))

    for _ in range(count):
        for r in threads:
            alone_s, size_bytes = draw.uniform(1e-3, 3e-2), 1e7 if one_size else 10 ** draw.uniform(6, 8.5)
            apart_s = draw.uniform(0.0, 0.5) * alone_s
            beside = {r: seen(model.computation_s(alone_s - apart_s, r))}
            computed.append(Computed(beside if draw.random() < 0.9 else {}, apart_s, alone_s))
            share = draw.choice((draw.uniform(0.02, 1.0), draw.uniform(0.4, 1.0)))
            whole_s = seen(model.beside_s(size_bytes, r))
            moved.append(Moved(r, size_bytes, share * whole_s, (1 - share) * model.alone_s(size_bytes, r)))
            moved.append(Moved(r, size_bytes, 0.0, seen(model.alone_s(size_bytes, r))))
    if draw.random() < 0.1:
        wrong = draw.choice((Moved(0, 1e6, 0.0, 1.0), Moved(1, 1e6, 0.0, 0.0), Moved(-1, 1e6, 1.0, 0.0)))
        moved.append(wrong)
    return computed, moved


def shown(found: Fitted, threads: list[int]) -> str:
    """Errors, and predictions for some bytes and the measured threads.

    Parameters themselves, and predictions for other threads, are those of a flat minimum: a processor of another type
    ends elsewhere in it.
    """
    model = found.model
    errors = " ".join(f"{error:.6g}" for error in found[1:])
    rows = [f"errors {errors}, {model.workers} workers, startup {model.latency_s:.6g} {model.beside_latency_s:.6g}"]
    for r in threads:
        seconds = [model.computation_s(1.0, r)]
        seconds += [of(size, r) for of in (model.alone_s, model.beside_s) for size in (1e5, 1e8)]
        rows.append(f"  {r}: {' '.join(f'{one:.7g}' for one in seconds)}")
    return "\n".join(rows)


def test_fits(update_golden: bool) -> None:
    """Fits and refusals of enough and of too few measurements, with noise and without."""
    lines = []
    for seed in range(FITS):
        draw = Random(f"fit {seed}")
        workers = draw.choice((1, 2, 3, 4, 4, 4, 8, 8))
        try:
            threads: list[int] = []
            found = shown(fit(*measurements(draw, overlap(draw, 4), threads), workers), threads)
        except InputError as error:
            found = f"{error}"
        lines.append(f"{seed}: {found}")
    check(Path(__file__).with_name("fits.txt"), "\n".join(lines) + "\n", update_golden)
