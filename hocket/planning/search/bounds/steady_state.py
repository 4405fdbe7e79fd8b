"""The bound of pipelines without a flush: what no steady state is below, in closed form.

Rules of this file: batches follow each other, so that nothing is filled or drained, and a device that is never late is never idle.
Source: dissertation sections 3.2.1 (2BW) and 3.3.3 (closed forms); Little's law.
"""

import numpy as np


def steady_s(
    batch_s: np.ndarray,
    least_s: np.ndarray,
    message_s: np.ndarray,
    turns: np.ndarray,
    ahead: np.ndarray,
) -> float:
    """Seconds of a batch at least.

    Arguments:
        batch_s: that each device computes for a batch, its step among them. least_s: forward and backward of a microbatch on the
            quickest replica of each stage. message_s: from each stage to the next one and back, shape (p - 1,). turns: microbatches
            of each device; ahead: of these, how many it has forward at once at most.
    """
    # From a microbatch's forward on a device to the end of its backward there it goes to the last stage and back.
    ways_s = np.cumsum((least_s + np.concatenate((message_s, [0.0])))[::-1])[::-1]
    return float(max(batch_s.max(), (turns / ahead * ways_s).max()))
