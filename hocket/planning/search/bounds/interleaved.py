"""The bound of interleaved 1F1B: the longest way through its forwards and backwards, where chunks need not be alike.

Rules of this file: devices are looked at side by side, wave by wave: wave t has the forward t - r of device r, and before it the
backward t - (v + 1) p + 1 + r; so each depends on the wave before alone, and waves repeat themselves after a round of v p. Links carry
everything at once, which no simulation is quicker than.
Source: dissertation section 4.2.2, figure 4.4 (bottom); strategies/schedules/interleaved.py.
"""

import numpy as np

_ROUNDS = 6  # that are followed; those behind them take no less than the last of these


def interleaved_s(
    forward_s: np.ndarray, backward_s: np.ndarray, message_s: np.ndarray, microbatches: int
) -> np.ndarray:
    """Least seconds from the first forward of a batch on the first device to the last backward of each chunk there.

    Arguments:
        forward_s, backward_s: of each chunk on each device, shape (v, p). message_s: from each stage to the next one, and as long
            back, shape (v p - 1,). microbatches: of a column, whole rounds of p.

    Returns:
        shape (v,).
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
    forth_s, back_s = np.zeros(p), np.zeros(p)  # when the last ones end; a device is free when its forward ends
    marks, ends = list[np.ndarray](), list[float]()
    for t, (waits_back_s, takes_back_s, waits_s, takes_s) in enumerate(zip(*tables, strict=True)):
        if t % period == 0:
            marks.append(np.concatenate((forth_s, back_s)))
        back_s = np.maximum(forth_s, back_s[behind] + waits_back_s) + takes_back_s
        forth_s = np.maximum(back_s, forth_s[before] + waits_s) + takes_s
        ends.append(float(back_s[0]))
    # By as much as all devices are later after a round, they are later at least after each further one.
    later_s = float((marks[followed] - marks[followed - 1]).min())
    return np.array(ends)[:-virtual:-1][:period:p] + (rounds - followed) * later_s
