"""The simulator's event queue and loop, which plays a lowered program (lower.py).

These functions use only indexing and arithmetic on flat arrays, so that they run with and without numba and give the
same bits. Events at the same time are taken in the order in which they were scheduled, so that equal input gives equal
output.

The queue is a binary heap of slots. There is one slot for each lane, with at most one event. An event can be moved to
another time while it waits. Arguments of the queue are:

- heap: slots in the order of the binary heap.
- where: by slot, its position in the heap; -1 if it has no event.
- time, rank: by slot, seconds of its event, and number that orders events at the same time.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from hocket.simulation.engine.meetings import last_arrival, later, looked_up

Ints = Any
Floats = Any

OTHERS, BEGINS, COMPUTES, FINISHES, SENDS, AT_ONCE = range(6)
"""Role of a node: when its changes of device memory take effect.

- OTHERS: when the node ends.
- BEGINS, COMPUTES, FINISHES: first part, whole, and last part of a compute instruction. Its own changes take effect
  when the node ends. Postponed changes of sends on the device take effect when the compute instruction begins and when
  it ends.
- SENDS: postponed to the next begin or end of a compute instruction on the device.
- AT_ONCE: when the send starts, if it waited last for a compute instruction of the device; otherwise as for SENDS.
"""


def before(time: Floats, rank: Ints, a: int, b: int) -> bool:
    """True if the event of slot a comes before the event of slot b."""
    return bool(time[a] < time[b] or (time[a] == time[b] and rank[a] < rank[b]))


def rise(heap: Ints, where: Ints, time: Floats, rank: Ints, position: int) -> int:
    """Move the slot at a position of the heap up to its place; return this place."""
    slot = heap[position]
    while position > 0:
        parent = (position - 1) // 2
        if not before(time, rank, slot, heap[parent]):
            break
        heap[position] = heap[parent]
        where[heap[position]] = position
        position = parent
    heap[position] = slot
    where[slot] = position
    return position


def sink(heap: Ints, where: Ints, time: Floats, rank: Ints, size: int, position: int) -> None:
    """Move the slot at a position of the heap down to its place."""
    slot = heap[position]
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and before(time, rank, heap[child + 1], heap[child]):
            child += 1
        if not before(time, rank, heap[child], slot):
            break
        heap[position] = heap[child]
        where[heap[position]] = position
        position = child
    heap[position] = slot
    where[slot] = position


def schedule(heap: Ints, where: Ints, time: Floats, rank: Ints, size: int, slot: int, at_s: float, order: int) -> int:
    """Set the event of a slot, or move it to another time; return the heap's size.

    Arguments:
        at_s: time of the event, in seconds.
        order: number that orders events at the same time.
    """
    time[slot] = at_s
    rank[slot] = order
    if where[slot] < 0:
        heap[size] = slot
        where[slot] = size
        size += 1
    sink(heap, where, time, rank, size, rise(heap, where, time, rank, where[slot]))
    return size


def take(heap: Ints, where: Ints, time: Floats, rank: Ints, size: int) -> int:
    """Remove the first event, which is in slot heap[0]; return the heap's size."""
    where[heap[0]] = -1
    size -= 1
    if size > 0:
        heap[0] = heap[size]
        sink(heap, where, time, rank, size, 0)
    return size


def rate_of(s: int, use_ptr: Ints, use_resource: Ints, use_sharing: Ints, capacity: Floats, load: Floats) -> float:
    """Rate of a running node, relative to its rate alone.

    It is the smallest capacity / load over the node's resources with sharing 1, times the smallest capacity / load
    over those with sharing 2 (`Sharing` in cost/contention.py). Both factors are at most 1.

    Arguments:
        s: signature of the node.
        use_ptr, use_resource, use_sharing, capacity: tables of `tables.use_tables`.
        load: present load of each resource.
    """
    rate, speed = 1.0, 1.0
    for u in range(use_ptr[s], use_ptr[s + 1]):
        resource = use_resource[u]
        if use_sharing[u] == 1 and load[resource] > capacity[resource]:
            rate = min(rate, capacity[resource] / load[resource])
        elif use_sharing[u] == 2 and load[resource] > capacity[resource]:
            speed = min(speed, capacity[resource] / load[resource])
    return rate * speed


def retime(
    s: int,
    now: float,
    order: int,
    size: int,
    queue: Any,
    uses: Any,
    load: Floats,
    moving: Ints,
    plays: Ints,
    rate: Floats,
    left: Floats,
    since: Floats,
) -> tuple[int, int]:
    """Update the rates of running nodes that share a resource with a node.

    The node has just been added to the loads, or removed from them. Events of the running nodes are moved to their new
    ends.

    Arguments:
        s: signature of the added or removed node.
        order: number of events scheduled so far.
        size: size of the heap.
        queue: heap, where, time, rank.
        uses: tables of `tables.use_tables`.
        load: present load of each resource.
        moving: by lane, True if its node uses resources at present.
        plays: by lane, signature of its node.
        rate, left, since: by lane, rate of its node, and seconds of work that were left at the time `since`.

    Returns:
        New `order` and `size`.
    """
    heap, where, time, rank = queue
    use_ptr, use_resource, _, use_sharing, share_ptr, share_lane, capacity = uses
    for u in range(use_ptr[s], use_ptr[s + 1]):
        resource = use_resource[u]
        for k in range(share_ptr[resource], share_ptr[resource + 1]):
            other = share_lane[k]
            if moving[other]:
                new = rate_of(plays[other], use_ptr, use_resource, use_sharing, capacity, load)
                if new != rate[other]:
                    left[other] = max(0.0, left[other] - (now - since[other]) * rate[other])
                    since[other] = now
                    rate[other] = new
                    order += 1
                    size = schedule(heap, where, time, rank, size, other, now + left[other] / new, order)
    return order, size


def locate(n: int, n_prologue: int, n_period: int, base: int, repeats: int) -> tuple[int, int]:
    """Number of a node's template, and the repetition of the period that the node is in.

    A template stands for the same node in all repetitions. Nodes are numbered in the order prologue, repetitions of the
    period, epilogue. Templates are numbered in the order prologue, one period, epilogue. The repetition is 0 for nodes
    of the prologue and `repeats` for nodes of the epilogue.

    Arguments:
        n: number of the node.
        n_prologue, n_period: number of nodes in the prologue and in one period.
        base: number of the first node of the epilogue.
        repeats: number of repetitions of the period.
    """
    if n < n_prologue:
        return n, 0
    if n < base:
        round_ = (n - n_prologue) // n_period
        return n - round_ * n_period, round_
    return n - base + n_prologue + n_period, repeats


def charge(device: int, amount: float, now: float, records: int, memory: Any) -> int:
    """Add bytes to a device's memory; return the number of records.

    The function also updates the device's peak. If the buffers for records are not empty, it records the new bytes.

    Arguments:
        amount: bytes; negative if memory is freed.
        records: number of records so far.
        memory: bytes and peak bytes of each device; and time, device and bytes of the records.
    """
    level, peak, record_s, record_device, record_bytes = memory
    if amount == 0.0:
        return records
    level[device] += amount
    peak[device] = max(peak[device], level[device])
    if len(record_s) > 0:
        record_s[records], record_device[records], record_bytes[records] = now, device, level[device]
        records += 1
    return records


def follows(n: int, device: int, cause: Ints, shape: Any, node: Any, cost: Any) -> bool:
    """True if a node waited last for a compute instruction on a device.

    Arguments:
        cause: for each node, the node that ended last of all that it waited for; -1 for none.
    """
    n_prologue, n_period, repeats = shape[:3]
    if cause[n] < 0:
        return False
    local, _ = locate(cause[n], n_prologue, n_period, n_prologue + n_period * repeats, repeats)
    s = node[1][local]
    role, hold_device = cost[9], cost[3]
    return bool((role[s] == COMPUTES or role[s] == FINISHES) and hold_device[s] == device)


def play(
    shape: Any, node: Any, edges: Any, cost: Any, uses: Any, queue: Any, lanes: Any, memory: Any, out: Any, meets: Any
) -> int:
    """Play a program to its end, or until no node can start or end.

    The arguments are tuples of flat arrays. `out`, `memory` and the last two arrays of `meets` are written. The number
    of turns of the loop is bounded: each node starts once, and has at most two events, the end of its latency and its
    own end.

    Arguments:
        shape: nodes of prologue and period, repetitions, nodes of the epilogue, microbatches of a period, size
            classes.
        node: size class of each microbatch of a batch; and signature, lane, index and moves of each template.
        edges: edges between nodes (`NodeLayout.structure`).
        cost: seconds and bytes by signature (`tables.cost_tables`).
        uses: use of shared resources by signature (`tables.use_tables`).
        queue: the event queue: heap, where, time, rank.
        lanes: state of the node that runs in each lane, and load of each resource.
        memory: bytes, peak and records (`charge`), and postponed changes of each device.
        out: for each node the number of nodes it waits for, start, end and cause; a queue of ready nodes; and the
            number of records.
        meets: tables of collectives (`arrivals.meeting_tables`).

    Returns:
        Number of finished nodes; -1 if the bound of turns is exceeded.
    """
    n_prologue, n_period, repeats, n_epilogue, stride, classes = shape
    size_class, signature, lane_of, index_of, moves = node
    t_ptr, t_step, t_posts, x_head, x_next, x_to, x_posts, posts_first = edges
    work, latency, hold, hold_device, op_ptr, op_device, op_bytes, post_device, post_bytes, role = cost
    held, late = memory[:5], memory[5]
    use_ptr, use_resource, use_load, use_sharing, capacity = uses[0], uses[1], uses[2], uses[3], uses[6]
    heap, where, time, rank = queue
    active, plays, moving, waiting, rate, left, since, load = lanes
    waits, start, end, cause, ready, counts = out
    variance, copies, a_ptr, a_from, spread, late_s = meets[:4] + meets[8:]
    varies = len(variance) > 0
    base = n_prologue + n_period * repeats
    kinds = len(size_class)
    now, order, size, head, tail, finished, records = 0.0, 0, 0, 0, 0, 0, 0

    for p in range(len(posts_first)):
        local, round_ = locate(posts_first[p], n_prologue, n_period, base, repeats)
        s = signature[local]
        k = size_class[(index_of[local] + moves[local] * round_ * stride) % kinds]
        records = charge(post_device[s], post_bytes[s * classes + k], now, records, held)
    for n in range(base + n_epilogue):
        if waits[n] == 0:
            ready[tail] = n
            tail += 1

    for _ in range(3 * (base + n_epilogue) + 1):
        # Events of this time come before nodes that start at this time.
        if head < tail and not (size > 0 and time[heap[0]] <= now):
            n = ready[head]
            head += 1
            local, round_ = locate(n, n_prologue, n_period, base, repeats)
            s = signature[local]
            k = size_class[(index_of[local] + moves[local] * round_ * stride) % kinds]
            c = s * classes + k
            start[n] = now
            if (
                role[s] == COMPUTES or role[s] == BEGINS
            ):  # memory of earlier sends is freed before a compute instruction begins
                records = charge(hold_device[s], late[hold_device[s]], now, records, held)
                late[hold_device[s]] = 0.0
            records = charge(hold_device[s], hold[c], now, records, held)
            if role[s] == AT_ONCE and follows(n, hold_device[s], cause, shape, node, cost):
                for o in range(op_ptr[s], op_ptr[s + 1]):
                    records = charge(op_device[o], op_bytes[o * classes + k], now, records, held)
            lane = lane_of[local]
            shares = use_ptr[s + 1] > use_ptr[s] and work[c] > 0.0
            alone = latency[s] if shares else latency[s] + work[c]
            if varies and copies[s] > 0:  # a collective begins when its slowest rank is expected
                own = a_from[a_ptr[n] : a_ptr[n + 1]]
                late_s[n] = max(0.0, last_arrival(own, copies[s], end, spread, meets[4:8]) - now)
                alone += late_s[n]
            if shares or alone > 0.0:
                active[lane] = n
                plays[lane] = s
                waiting[lane] = shares
                left[lane] = work[c]
                order += 1
                size = schedule(heap, where, time, rank, size, lane, now + alone, order)
                continue
        elif size > 0:
            lane = heap[0]
            now = time[lane]
            size = take(heap, where, time, rank, size)
            n = active[lane]
            if waiting[lane] or moving[lane]:
                begins = waiting[lane]  # the latency is over, bytes begin to flow
                waiting[lane] = False
                moving[lane] = False
                s = plays[lane]
                for u in range(use_ptr[s], use_ptr[s + 1]):
                    load[use_resource[u]] += use_load[u] if begins else -use_load[u]
                order, size = retime(s, now, order, size, queue, uses, load, moving, plays, rate, left, since)
                if begins:
                    moving[lane] = True
                    since[lane] = now
                    rate[lane] = rate_of(s, use_ptr, use_resource, use_sharing, capacity, load)
                    order += 1
                    size = schedule(heap, where, time, rank, size, lane, now + left[lane] / rate[lane], order)
                    continue
        else:
            break

        finished += 1
        end[n] = now
        local, round_ = locate(n, n_prologue, n_period, base, repeats)
        s = signature[local]
        k = size_class[(index_of[local] + moves[local] * round_ * stride) % kinds]
        if varies and copies[s] == 0:  # after a collective, its ranks continue together with variance 0
            spread[n] = variance[s * classes + k] + (spread[cause[n]] if cause[n] >= 0 else 0.0)
        for o in range(op_ptr[s], op_ptr[s + 1]):
            if role[s] == AT_ONCE and follows(n, hold_device[s], cause, shape, node, cost):
                continue
            if role[s] >= SENDS:
                late[op_device[o]] += op_bytes[o * classes + k]
            else:
                records = charge(op_device[o], op_bytes[o * classes + k], now, records, held)
        if role[s] == COMPUTES or role[s] == FINISHES:  # memory of sends that ended meanwhile is freed now
            records = charge(hold_device[s], late[hold_device[s]], now, records, held)
            late[hold_device[s]] = 0.0
        # Edges inside the period have the distance to the successor's number. All other edges are in linked lists.
        e, stop = 0, 0
        if n_prologue <= local < n_prologue + n_period:
            e, stop = t_ptr[local - n_prologue], t_ptr[local - n_prologue + 1]
        x = x_head[n]
        while e < stop or x >= 0:
            if e < stop:
                to, posts = n + t_step[e], t_posts[e]
                e += 1
                if to < n_prologue or to >= base:
                    continue
            else:
                to, posts = x_to[x], x_posts[x]
                x = x_next[x]
            waits[to] -= 1
            if waits[to] == 0:
                cause[to] = n
                ready[tail] = to
                tail += 1
            if posts:  # the next receive of this lane is posted: its buffer exists from now on
                local, round_ = locate(to, n_prologue, n_period, base, repeats)
                s = signature[local]
                k = size_class[(index_of[local] + moves[local] * round_ * stride) % kinds]
                records = charge(post_device[s], post_bytes[s * classes + k], now, records, held)
    else:
        return -1
    for device in range(len(late)):
        records = charge(device, late[device], now, records, held)
    counts[0] = records
    return finished


@cache
def compiled() -> Callable[..., int] | None:
    """`play` compiled by numba; None if numba is not installed.

    The first call in a process is slow.
    """
    try:
        from numba import njit
        from numba.extending import register_jitable
    except ImportError:
        return None
    for helper in (
        before,
        rise,
        sink,
        schedule,
        take,
        rate_of,
        retime,
        locate,
        charge,
        follows,
        looked_up,
        later,
        last_arrival,
    ):
        register_jitable(helper)
    fast: Callable[..., int] = njit(cache=True)(play)
    return fast
