"""Lower bound for interleaved 1F1B: the longest path, with unequal chunks.

Rules of this file:
- All devices are computed side by side, in steps called waves. Wave t has forward t - r of device r, and before it
  backward t - (v + 1) p + 1 + r. Each wave depends on the wave before it alone.
- The pattern repeats after a round of v p waves.
- Links carry all messages at once. No simulation is faster than that.
Source: Narayanan's dissertation, section 4.2.2, figure 4.4 (bottom); strategies/schedules/interleaved.py.
"""

import numpy as np

_ROUNDS = 6  # rounds that are computed; each later round takes at least as long as the last of these


def interleaved_s(
    forward_s: np.ndarray, backward_s: np.ndarray, message_s: np.ndarray, microbatches: int
) -> np.ndarray:
    """Lower bound on the seconds until each chunk's last backward on the first device.

    Time begins with the first forward of a batch on the first device.

    Arguments:
        forward_s, backward_s: seconds of each chunk on each device, shape (v, p).
        message_s: seconds of a message from each stage to the next, which are also those of a message back; shape
            (v p - 1,).
        microbatches: microbatches of a data-parallel rank, a multiple of p.

    Returns:
        Seconds, shape (v,).
    """
    v, p = forward_s.shape
    period, rounds = v * p, microbatches // p
    followed = min(rounds, _ROUNDS)
    virtual = followed * period
    waves, rank = np.arange(virtual + (v + 1) * p - 1)[:, None], np.arange(p)
    forwards, backwards = waves - rank, waves - (v + 1) * p + 1 + rank
    tables = list[np.ndarray]()
    for numbers, chunk, seconds, arrives_s in (
        (backwards, v - 1 - backwards % period // p, backward_s, np.concatenate((message_s, [-np.inf]))),
        (forwards, forwards % period // p, forward_s, np.concatenate(([-np.inf], message_s))),
    ):
        there = (numbers >= 0) & (numbers < virtual)
        waits_s = np.where(there, arrives_s.reshape(v, p)[chunk, rank], -np.inf)
        tables += [waits_s, np.where(there, seconds[chunk, rank], 0.0)]
    behind, before = np.roll(rank, -1), np.roll(rank, 1)
    forth_s, back_s = np.zeros(p), np.zeros(p)  # ends of each device's last forward and backward; the forward is later
    marks, ends = list[np.ndarray](), list[float]()
    for t, (waits_back_s, takes_back_s, waits_s, takes_s) in enumerate(zip(*tables, strict=True)):
        if t % period == 0:
            marks.append(np.concatenate((forth_s, back_s)))
        back_s = np.maximum(forth_s, back_s[behind] + waits_back_s) + takes_back_s
        forth_s = np.maximum(back_s, forth_s[before] + waits_s) + takes_s
        ends.append(float(back_s[0]))
    # The least delay of any device over one round is also the least delay of each further round.
    later_s = float((marks[followed] - marks[followed - 1]).min())
    return np.array(ends)[:-virtual:-1][:period:p] + (rounds - followed) * later_s
