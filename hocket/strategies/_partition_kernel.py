"""The inner loops of the partitioner, compiled: is there a pipeline with no term above T, and the smallest such T.

A state is (cut, x, u, p): the layers outside the cut's downset stand on devices counted from the pipeline's end,
x positions are passed, u devices are used (only counted under a memory limit), and p is the innermost level that
contains both position x and the start of the stage placed last. Of all ways to reach a state the one with the least
load on the links of the components that contain x is kept: with two levels that is one number, so nothing is lost.
From a state one stage more is placed on the run [x, x + r), or devices are left idle: up to the start of the next
component, or, where the outer level has more than half the inner one's bandwidth or devices differ, any number.

For a given T each pair of cuts needs a least number of replicas, which makes a sweep cheap; the smallest T is
found by bisection, each time stepping down to the bottleneck of the pipeline that was found, and is confirmed by a
sweep just below it that finds none.
"""

import numba
import numpy as np

SLACK = 1e-12  # relative: a term equal to T passes whatever its last bit
GAP = 1e-9  # relative: how far below the answer nothing better exists


@numba.njit(cache=True)
def predecessors(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover - compiled
    """Cuts inside each cut, nearest first, as (start, list); `words` are the downsets' bits, cuts in a linear order."""
    count, width = words.shape
    start = np.zeros(count + 1, dtype=np.int64)
    listed = np.empty(count * (count - 1) // 2 + 1, dtype=np.int32)
    at = 0
    for j in range(count):
        start[j] = at
        for i in range(j - 1, -1, -1):
            inside = True
            for k in range(width):
                if words[i, k] & ~words[j, k]:
                    inside = False
                    break
            if inside:
                listed[at] = i
                at += 1
    start[count] = at
    return start, listed[:at]


@numba.njit(cache=True)
def sweep(  # type: ignore[no-untyped-def]  # pragma: no cover - compiled; types are numba's
    limit_s, graph, topology, memory, max_replicas, every_count, all_devices, layers_of_stages, record
):
    """One pass: (stages, bottleneck_s, final state, trail) of the best pipeline with no term above limit_s.

    stages is 0 when there is none. With layers_of_stages > 0 the states are separated by the number of stages, at
    most that many, and the fewest are returned. trail[state] = (state before, replicas; 0 for an idle device).
    """
    seconds, weights, crossing, start, listed, tied, tied_inside = graph
    devices, period, spans, unit, sync, together, border, shared, every_place = topology
    use_memory, counted, stash, fixed, activation, capacity, max_versions, recompute = memory
    cuts, levels, ties = len(seconds), len(spans), len(tied)
    places, used_count = devices + 1, (devices + 1 if counted else 1)
    depth = layers_of_stages + 1 if layers_of_stages > 0 else 1
    size = cuts * places * used_count * levels
    links = max(levels - 1, 1)
    load = np.zeros((depth * size, links))
    cost = np.zeros(depth * size)
    stages = np.full(depth * size, -1, dtype=np.int32)
    trail = np.zeros((depth * size if record else 1, 2), dtype=np.int32)
    carried = np.zeros(links)
    roomiest = capacity.max()
    limit = limit_s * (1 + SLACK)
    row = places * used_count * levels
    stages[(cuts - 1) * row] = 0
    prune = not every_place and not all_devices
    ahead = np.zeros(levels, dtype=np.int64)  # by p: the state before in this component, that with the least load
    for s in range(depth):
        for j in range(cuts - 1, 0, -1):
            base = s * size + j * row
            ahead[:] = -1
            component = -1
            for cell in range(row):
                here = base + cell
                if stages[here] < 0:
                    continue
                p = cell % levels
                u = cell // levels % used_count
                x = cell // (levels * used_count)
                if x >= devices:
                    continue
                xm, room = x % period, devices - x
                if prune:
                    if levels > 1 and unit[1, x] != component:
                        component = unit[1, x]
                        ahead[:] = -1
                    if _dominated(ahead, p, u, load, here, base, levels, used_count):
                        continue
                    ahead[p] = here
                if levels > 1 and not all_devices:  # leave devices idle: one, or all up to the next component
                    step = 1 if every_place else min(spans[1] - x % spans[1], room)
                    p_next = max(p, together[xm, step + 1])
                    there = base + ((x + step) * used_count + u) * levels + p_next
                    for k in range(1, levels):
                        carried[k - 1] = load[here, k - 1] if unit[k, x + step] == unit[k, x] else 0.0
                    if _better(carried, stages[here], cost[here], load[there], stages[there], cost[there]):
                        load[there] = carried
                        stages[there] = stages[here]
                        cost[there] = cost[here]
                        if record:
                            trail[there, 0] = here
                            trail[there, 1] = 0
                if s + 1 >= depth and depth > 1:
                    continue
                for at in range(start[j], start[j + 1]):
                    i = listed[at]
                    time = seconds[j] - seconds[i]
                    most = min(room, max_replicas)
                    if time > limit * most:
                        break  # cuts further away hold at least as much
                    fewest = 1 if time <= limit else int(np.ceil(time / limit))
                    if seconds[i] > limit * room:
                        continue
                    if seconds[i] > 0:
                        most = min(most, room - int(np.ceil(seconds[i] / limit * (1 - SLACK))))
                    size_w = weights[j] - weights[i]
                    for t in range(ties):
                        if (tied_inside[t, j] & ~tied_inside[t, i]) == 3:
                            size_w -= tied[t]
                    own = size_w, fixed[j] - fixed[i], stash[j] - stash[i], activation[i], max_versions, recompute
                    placed = u if counted else x
                    if use_memory and fewest <= most:
                        # More replicas have fewer inputs in flight each: the least number that fits, by bisection.
                        if _need(own, (placed + 2 * most - 1) // most) > roomiest:
                            continue
                        above = most
                        while fewest < above:
                            middle = (fewest + above) // 2
                            if _need(own, (placed + 2 * middle - 1) // middle) > roomiest:
                                fewest = middle + 1
                            else:
                                above = middle
                    for r in range(fewest, most + 1):
                        worst = max(cost[here], time / r)
                        if j < cuts - 1:
                            over = crossing[j] * border[max(p, together[xm, r])]
                            if over > limit:
                                break  # a longer run spans no less
                            worst = max(worst, over)
                        if r > 1 or sync[levels - 1, xm, r] > 0:
                            term = sync[0, xm, r] * size_w
                            fits = term <= limit
                            worst = max(worst, term)
                            for k in range(1, levels):
                                term = sync[k, xm, r] * size_w
                                first = unit[k, x]
                                busy = term
                                if shared[k]:
                                    busy += load[here, k - 1]
                                if busy > limit:
                                    fits = False
                                if term > 0:
                                    worst = max(worst, busy)
                                end, nxt = unit[k, x + r - 1], unit[k, x + r]
                                if nxt != end or not shared[k]:
                                    carried[k - 1] = 0.0
                                else:
                                    carried[k - 1] = busy if first == end else term
                            if not fits:
                                continue
                        else:
                            for k in range(1, levels):
                                carried[k - 1] = load[here, k - 1] if unit[k, x + r] == unit[k, x] else 0.0
                        if use_memory:
                            need = _need(own, (placed + 2 * r - 1) // r)
                            fits = True
                            for d in range(x, x + r):
                                if need > capacity[d]:
                                    fits = False
                            if not fits:
                                continue
                        if i == 0 and all_devices and x + r != devices:
                            continue
                        p_next = min(together[xm, r + 1], levels - 1)
                        u_next = u + r if counted else 0
                        s_next = s + 1 if depth > 1 else 0
                        there = s_next * size + i * row + ((x + r) * used_count + u_next) * levels + p_next
                        if _better(carried, stages[here] + 1, worst, load[there], stages[there], cost[there]):
                            load[there] = carried
                            stages[there] = stages[here] + 1
                            cost[there] = worst
                            if record:
                                trail[there, 0] = here
                                trail[there, 1] = r
                        if not every_count:
                            break  # more replicas only move on, and idling does that too
        if depth > 1 or s == depth - 1:
            found, where = _finished(stages, cost, (s + 1 if depth > 1 else 0) * size, row, not record)
            if found > 0:
                return found, cost[where], where, trail
    return 0, np.inf, 0, trail


@numba.njit(cache=True)
def _need(own, flight):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Bytes on one device of a stage with `flight` inputs in flight, as `_partition_memory.stage_bytes` has it."""
    weights, fixed, stash, received, max_versions, recompute = own
    kept = stash if recompute else stash * flight
    return weights * min(flight, max_versions) + fixed + kept + received * flight


@numba.njit(cache=True)
def _dominated(ahead, p, u, load, here, base, levels, used_count):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Whether a state earlier in the same component needs no more of anything: it can do all that this one can."""
    for q in range(p + 1):
        other = ahead[q]
        if other >= 0 and (other - base) // levels % used_count <= u:
            lighter = True
            for k in range(load.shape[1]):
                if load[other, k] > load[here, k]:
                    lighter = False
            if lighter:
                return True
    return False


@numba.njit(cache=True)
def _better(load, stages, cost, old_load, old_stages, old_cost):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Whether a way to a state beats the one kept: less load (outermost link first), less cost, fewer stages."""
    if old_stages < 0:
        return True
    for k in range(len(load) - 1, -1, -1):
        if load[k] != old_load[k]:
            return load[k] < old_load[k]
    if cost != old_cost:
        return cost < old_cost
    return stages < old_stages


@numba.njit(cache=True)
def _finished(stages, cost, base, row, cheapest):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """The best state of the empty cut: least cost, or fewest stages and then fewest devices."""
    best, where = 0, 0
    for here in range(base, min(base + row, len(stages))):
        if stages[here] > 0 and (best == 0 or (cost[here] < cost[where] if cheapest else stages[here] < best)):
            best, where = stages[here], here
    return best, where


@numba.njit(cache=True)
def search(low_s, high_s, graph, topology, memory, max_replicas, every_count, all_devices, max_stages, record):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The smallest bottleneck of any pipeline, at least low_s, or infinity when there is none at or below high_s.

    record is False: as an argument it has the same type as in a sweep on its own, which is then compiled once.
    """
    found, cost, _, _ = sweep(
        high_s, graph, topology, memory, max_replicas, every_count, all_devices, max_stages, record
    )
    if found == 0:
        return np.inf
    high, low, probe = min(cost, high_s), low_s, False
    while True:
        below = high * (1 - GAP)
        if below <= low:
            return high
        # Once close, every second sweep asks whether the answer stands already.
        probe = not probe and high - low < 0.02 * high
        limit = below if probe else 0.5 * (low + below)
        found, cost, _, _ = sweep(
            limit, graph, topology, memory, max_replicas, every_count, all_devices, max_stages, record
        )
        if found > 0:
            high = min(cost, limit)
        else:
            low = limit
