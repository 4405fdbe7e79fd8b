"""Lower bound for pipelines without a flush, in closed form.

Rules of this file: batches follow each other, so there is no warm-up or cool-down. A device that is never late is
never idle.
Source: Narayanan's dissertation, sections 3.2.1 (2BW) and 3.3.3 (closed forms); Little's law.
"""

import numpy as np


def steady_s(
    batch_s: np.ndarray,
    least_s: np.ndarray,
    message_s: np.ndarray,
    turns: np.ndarray,
    ahead: np.ndarray,
) -> float:
    """Lower bound on the seconds of a batch in the steady state.

    Arguments:
        batch_s: compute seconds of each device for a batch, including the optimizer step.
        least_s: seconds of a microbatch's forward and backward on the fastest replica of each stage.
        message_s: seconds of a message from each stage to the next and one back, together; shape (p - 1,).
        turns: number of microbatches that each device runs in a batch.
        ahead: largest number of microbatches in flight on each device.
    """
    # Between its forward and its backward on a device, a microbatch goes to the last stage and back.
    ways_s = np.cumsum((least_s + np.concatenate((message_s, [0.0])))[::-1])[::-1]
    return float(max(batch_s.max(), (turns / ahead * ways_s).max()))
