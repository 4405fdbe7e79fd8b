"""Turns: who runs where, if one after the other in a line has the fastest workers that are left."""

from collections.abc import Sequence

import numpy as np

from hocket.cluster.snapshot import Snapshot

_LEAST = np.nextafter(0.0, 1.0)  # no throughput is less, but 0


def one_by_one(
    snapshot: Snapshot, steps: np.ndarray, scale: Sequence[int], free: list[int], overtake: bool
) -> tuple[list[int], list[int], float]:
    """Columns of those who run, places of those whom nothing fitted, and what the former are worth.

    Arguments:
        steps: throughputs of those in line, a row each. free: workers of each type; those that are taken are taken off.
    """
    kind = [own.type for own in snapshot.columns]
    speeds = steps.T.tolist()  # a list for each column
    ways = list(enumerate(kind))
    chosen = steps.argmax(1).tolist() if len(steps) else []
    passed: list[int] = []
    lost, line, place = 0.0, len(scale), -1  # lost: of what all would be worth on their fastest
    for place, c in enumerate(chosen):
        needs = scale[place]
        own = kind[c]
        left = free[own] - needs
        if left < 0:
            # As `_next`, without a call: this is where most of the time of a short line goes.
            best, most = speeds[c][place], 0.0
            for other, its in ways:
                if free[its] >= needs and speeds[other][place] > most:
                    c, most = other, speeds[other][place]
            if not most:
                passed.append(place)
                lost += line - place
                if overtake:
                    continue
                break
            if most < best:
                lost += (line - place) * (1.0 - most / best)
            chosen[place] = c
            own = kind[c]
            left = free[own] - needs
        free[own] = left
        if not left:
            if not any(free):
                break
            if overtake:  # everybody whom nothing fits looks at all that are left
                ways = [(other, its) for other, its in ways if free[its]]
    end = place + 1
    if overtake and passed:
        out = set(passed)
        found = [c for place, c in enumerate(chosen[:end]) if place not in out]
    else:
        found = chosen[: end - len(passed)]
    return found, passed, end * (2 * line - end + 1) / 2 - lost


def in_stretches(
    snapshot: Snapshot, steps: np.ndarray, scale: Sequence[int], free: list[int]
) -> tuple[list[int], list[int]]:
    """As `one_by_one`, of a long line where nobody overtakes.

    Fastest columns are looked up for all who are left whenever a type is full; one by one only for those who do not fit there.
    """
    free = [*free, 0]
    kind = [*[own.type for own in snapshot.columns], len(free) - 1]
    most = len(steps)
    able = np.empty((most, len(kind)))
    able[:, :-1] = steps
    able[:, -1] = _LEAST  # the last column is for those who run nowhere: it has no worker
    found: list[int] = []
    while len(found) < most:
        begin, full = len(found), -1
        for c, needs in zip(able[begin:].argmax(axis=1).tolist(), scale[begin:most], strict=True):
            own = kind[c]
            left = free[own] - needs
            if left < 0:
                place = len(found)
                c = _next(able[place].tolist(), free, kind, needs)
                if c < 0:
                    return found, [place]
                own = kind[c]
                left = free[own] - needs
            found.append(c)
            free[own] = left
            if not left:
                full = own
                break
        if full < 0 or not any(free):
            break
        for c, own in enumerate(kind):
            if own == full:
                able[len(found) :, c] = 0.0
    return found, []


def worth_of(steps: np.ndarray, columns: np.ndarray, line: int) -> float:
    """What the first ones in a line of so many are worth on these columns."""
    size = len(columns)
    served, every = steps[:size], np.arange(size)
    does = served[every, columns] / served.max(axis=1)
    return float(does @ np.arange(line, line - size, -1.0))


def _next(steps: list[float], free: list[int], kind: list[int], needs: int) -> int:
    """The fastest column with enough workers, -1 for none."""
    best, most = -1, 0.0
    for c, speed in enumerate(steps):
        if speed > most and free[kind[c]] >= needs:
            best, most = c, speed
    return best
