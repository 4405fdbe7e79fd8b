"""DeepPool's Algorithm 1 to the letter, with its greedy test of the limit.

A line of the algorithm is a line here. Three gaps of the algorithm are therefore here as well. A state is a layer with
a number of devices:

- A state is tested only when a path leaves it, with the time of the one path that was kept. The last layer is never
  tested.
- The first predecessor passes with any amplification, because bestAmp begins at infinity.
- A faster path to a state above the limit hides a slower path below the limit.
"""

from collections.abc import Iterable, Sequence

import numpy as np


def search_linear(
    steps: Iterable[np.ndarray], alone_s: Sequence[float], counts: np.ndarray, limit: float
) -> tuple[float, tuple[int, ...]]:
    """Run Algorithm 1 of DeepPool on a chain of layers.

    Arguments:
        steps: for every layer, seconds of comm + comp + sync (transfer, compute, all-reduce). Rows are by number of
            devices of the layer before, columns by number of devices of the layer itself.
        alone_s: comp(i, 1), the seconds of every layer on one device.
        counts: possible numbers of devices.
        limit: maximum amplification of a layer: its device-seconds over its seconds on one device.

    Returns:
        Seconds of the iteration; and for every layer its number of devices, as an index into `counts`.
    """
    n = len(counts)
    shortest, amplification = [0.0] * n, [0.0] * n
    came: list[list[int]] = []
    for step, one_s in zip(steps, alone_s, strict=True):
        now, spent, back = [0.0] * n, [0.0] * n, [0] * n
        for g in range(n):
            best_amplification = best_s = np.inf
            for h in range(n):
                if amplification[h] <= max(best_amplification, limit) and shortest[h] + step[h, g] <= best_s:
                    best_s = shortest[h] + step[h, g]
                    back[g], spent[g] = h, step[h, g]
                    best_amplification = min(best_amplification, amplification[h])
            now[g] = best_s
        amplification = [spent[g] * counts[g] / one_s if one_s > 0 else 1.0 for g in range(n)]
        shortest = now
        came.append(back)
    end = int(np.argmin(shortest))
    found = [end]
    for back in reversed(came[1:]):
        found.append(back[found[-1]])
    return float(shortest[end]), tuple(reversed(found))
