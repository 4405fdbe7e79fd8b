"""Algorithm 1 of DeepPool to the letter: a shortest-path table whose test of the amplification limit is greedy.

Rules of this file: one line of the algorithm is one line here; what it misses is not mended. Three things follow from the text.
A state is tested only when it is left, by the time of the one way to it that was kept; the last layer never is. The first
predecessor that is looked at passes whatever its amplification, because bestAmp begins at infinity. A faster way to a state that is
above the limit hides a slower one below it.
"""

from collections.abc import Iterable, Sequence

import numpy as np


def search_linear(
    steps: Iterable[np.ndarray], alone_s: Sequence[float], counts: np.ndarray, limit: float
) -> tuple[float, tuple[int, ...]]:
    """Seconds and, for every layer, an index into the counts.

    Arguments:
        steps: for every layer, comm from the layer before (rows: its devices) plus comp and sync (columns: its own devices).
        alone_s: comp(i, 1).
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
