"""Seconds of an iteration of Harmony, in data and in pipeline mode.

Source: Harmony (HotOS 2021), section 3 and figure 4.

A task runs the forward or backward of one pack of layers for all microbatches. A device has six lanes: swap in, swap
out, peer in, peer out, compute, and its process on the host. There is no prefetch. The weights of a task arrive after
its device has freed the memory of the task before. The input of a microbatch arrives after the microbatch before has
been computed (in data mode: after its output has left the device). A transfer between two devices needs both of their
lanes at the same time.

Every event waits only for events of earlier tasks or microbatches. One loop over tasks and microbatches therefore
reaches each event after all events that it waits for, and needs no queue.
`tests/strategies/helpers/harmony_events.py` is the definition, with queues.

These functions run as plain Python, and compiled by numba (numba_kernels.py). They therefore use flat arrays.
"""

from typing import Any

import numpy as np


def data_s(forward: Any, backward: Any, sizes: Any, counts: Any, costs: Any, rates: Any) -> float:
    """Seconds of an iteration in data mode: every device runs all tasks on its share.

    Arguments:
        forward: ends of the forward packs (last layer + 1), after a 0; [0] for no packs.
        backward: ends of the backward packs, after a 0.
        sizes: fields of `costs.Sized` at the forward's microbatch size (forward_s, border), and at the backward's
            (forward_s, backward_s, border).
        counts: number of forward and of backward microbatches of a device.
        costs: prefix sums over layers of weight bytes and of step seconds.
        rates: swap, peer and host bandwidth of one device in bytes a second, seconds of freeing, devices in use.
    """
    ahead_s, ahead_border, _, back_s, back_border = sizes
    weights, steps = costs
    swap, peer, _, freeing, devices = rates
    now, host = 0.0, 0.0
    packs = len(backward) - 1
    k = 0
    for f in range(len(forward) - 1):
        a, e = forward[f], forward[f + 1]
        kept = 0.0
        while k < packs - 1 and backward[k] < e:
            kept += ahead_border[backward[k]]
            k += 1
        moved = ahead_border[a] + kept + ahead_border[e]
        now += (weights[e] - weights[a]) / swap + counts[0] * (ahead_s[e] - ahead_s[a] + moved / swap) + freeing
    for b in range(packs - 1, -1, -1):
        a, e = backward[b], backward[b + 1]
        carried = (weights[e] - weights[a]) / swap
        moved = back_border[a] + (back_border[e] if b < packs - 1 else 0.0) + (back_border[a] if a > 0 else 0.0)
        now += carried + counts[1] * (back_s[e] - back_s[a] + moved / swap)
        if devices > 1:
            now += 2.0 * (devices - 1) / devices * (weights[e] - weights[a]) / peer
        now += carried
        host = max(host, now) + steps[e] - steps[a]
        now += freeing
    return max(now, host)


def pipeline_s(forward: Any, backward: Any, sizes: Any, counts: Any, costs: Any, rates: Any) -> float:
    """Seconds of an iteration in pipeline mode: task t runs on device t mod N.

    Each task runs all microbatches. The arguments are those of `data_s`.
    """
    ahead_s, ahead_border, again_s, back_s, back_border = sizes
    weights, steps = costs
    swap, peer, host_rate, freeing, devices = rates
    n_devices = int(devices)
    packs, tasks = len(backward) - 1, len(forward) - 1
    through_host = counts[0] != counts[1]  # different microbatch sizes are joined and cut on the host
    lanes = np.zeros((6, n_devices))
    done = np.empty(max(counts[0], counts[1]))  # compute ends of a task
    stash, last = np.empty((packs, counts[1])), np.empty(counts[1])  # ends of swaps of kept inputs, and of outputs
    k = 0
    for t in range(tasks):
        a, e, d = forward[t], forward[t + 1], t % n_devices
        before = (t - 1) % n_devices
        wave_end = max(lanes[0, d], lanes[4, d]) + (weights[e] - weights[a]) / swap
        lanes[0, d] = wave_end
        first_kept = k
        while k < packs - 1 and backward[k] < e:
            k += 1
        j = 0
        for i in range(counts[0]):
            ready = wave_end if i == 0 else lanes[4, d]
            if t == 0:
                here = max(lanes[0, d], ready) + ahead_border[a] / swap
                lanes[0, d] = here
            else:
                here = max(max(ready, lanes[2, d]), max(done[i], lanes[3, before])) + ahead_border[a] / peer
                lanes[2, d] = here
                lanes[3, before] = here
            # The backward microbatches that have their last sample in this forward microbatch are j to until.
            until = (i + 1) * counts[1] // counts[0]
            now, at = max(lanes[4, d], here), a
            for kept in range(first_kept, k):  # a kept input is swapped out before the layers after it run
                layer = backward[kept]
                now += ahead_s[layer] - ahead_s[at]
                at = layer
                left = max(lanes[1, d], now if layer > a else here) + ahead_border[layer] / swap
                lanes[1, d] = left
                now = max(now, left)
                whose = (tasks + packs - 1 - kept) % n_devices
                for back in range(j, until):
                    moved = 0.0 if whose == d else 2.0 * back_border[layer] / host_rate
                    lanes[5, d] = max(lanes[5, d], left) + moved
                    stash[kept, back] = lanes[5, d]
            now += ahead_s[e] - ahead_s[at]
            lanes[4, d] = now
            done[i] = now
            if t == tasks - 1 and through_host:
                left = max(lanes[1, d], now) + ahead_border[e] / swap
                lanes[1, d] = left
                for back in range(j, until):
                    lanes[5, d] = max(lanes[5, d], left) + 2.0 * back_border[e] / host_rate
                    last[back] = lanes[5, d]
            j = until
        lanes[4, d] += freeing
    for b in range(packs - 1, -1, -1):
        a, e, t = backward[b], backward[b + 1], tasks + packs - 1 - b
        d, before = t % n_devices, (t - 1) % n_devices
        carried = (weights[e] - weights[a]) / swap
        wave_end = max(lanes[0, d], lanes[4, d]) + carried
        lanes[0, d] = wave_end
        for i in range(counts[1]):
            ready = wave_end if i == 0 else lanes[4, d]
            if b < packs - 1:
                here = max(max(lanes[0, d], ready), stash[b, i]) + back_border[a] / swap
                lanes[0, d] = here
            elif tasks == 0 or through_host:
                here = max(max(lanes[0, d], ready), last[i] if tasks > 0 else 0.0) + back_border[a] / swap
                lanes[0, d] = here
            else:
                here = max(max(ready, lanes[2, d]), max(done[i], lanes[3, before])) + back_border[a] / peer
                lanes[2, d] = here
                lanes[3, before] = here
            again = again_s[e] - again_s[a]
            now = max(lanes[4, d], here) + again
            if b < packs - 1:
                here = max(max(now, lanes[2, d]), max(done[i], lanes[3, before])) + back_border[e] / peer
                lanes[2, d] = here
                lanes[3, before] = here
                now = max(now, here)
            now += back_s[e] - back_s[a] - again
            lanes[4, d] = now
            done[i] = now
        left = max(lanes[1, d], lanes[4, d]) + carried
        lanes[1, d] = left
        lanes[4, d] = max(lanes[4, d], left) + freeing
        lanes[5, d] = max(lanes[5, d], left) + steps[e] - steps[a]
    end = 0.0
    for lane in range(6):
        for d in range(n_devices):
            end = max(end, lanes[lane, d])
    return end
