"""The inner loops of the partitioner, compiled: is there a pipeline with no term above T?

A state is (cut, x, u, p): the layers outside the cut's downset stand on devices counted from the pipeline's end,
x positions are passed, u devices are used (only counted under a memory limit), and p is the innermost level that
contains both position x and the start of the stage placed last. Of all ways to reach a state the one with the least
load on the links of the components that contain x is kept: with two levels that is one number, so nothing is lost.
From a state one stage more is placed on the run [x, x + r), or devices are left idle: up to the start of the next
component, or, where the outer level has more than half the inner one's bandwidth or devices differ, any number.

For a given T each pair of cuts needs a least number of replicas, which makes a sweep cheap.
"""

import numba
import numpy as np

SLACK = 1e-12  # relative: a term equal to T passes whatever its last bit


def states(cuts: int, positions: int, counted: bool, levels: int) -> int:
    """How many states there are: in the order of cuts, then positions, then devices used, then levels."""
    return cuts * (positions + 1) * (positions + 1 if counted else 1) * levels


def empty_table(states: int, levels: int) -> tuple[np.ndarray, ...]:
    """What a sweep knows of each state that it has reached, of so many at most: load by level, bottleneck, stages, trail."""
    load, trail = np.empty((states, max(levels - 1, 1))), np.empty((states, 3), dtype=np.int64)
    return load, np.empty(states), np.empty(states, dtype=np.int32), trail


@numba.njit(cache=True)
def sweep(  # type: ignore[no-untyped-def]  # pragma: no cover - compiled; types are numba's
    limit_s, graph, topology, memory, max_replicas, every_count, all_devices, layers_of_stages, cheapest, rows, table
):
    """One pass: (stages, bottleneck_s, end, trail) of a pipeline with no term above limit_s; stages is 0 without one.

    Of those that it has, it returns the one of least bottleneck, or else the one of fewest stages and then fewest
    devices. With layers_of_stages > 0 the states are separated by the number of stages, at most that many, and the
    fewest are returned. trail holds (state, row before, replicas; 0 for idle devices), and its row `end` is the last.

    Few states are ever reached. Each has a row in `table`, in the order in which they are; `rows` says which, and is -1
    elsewhere: before the sweep, and after it, everywhere. When the table may be too short, stages is -1.
    """
    seconds, weights, crossing, start, listed, tied, tied_inside = graph
    devices, period, spans, unit, sync, together, border, shared, every_place = topology
    use_memory, counted, stash, fixed, activation, capacity, max_versions, recompute = memory
    cuts, levels, ties = len(seconds), len(spans), len(tied)
    places, used_count = devices + 1, (devices + 1 if counted else 1)
    depth = layers_of_stages + 1 if layers_of_stages > 0 else 1
    size = cuts * places * used_count * levels
    links = max(levels - 1, 1)
    load, cost, stages, trail = table
    count, end = 1, -1
    carried = np.zeros(links)
    roomiest, tightest = capacity.max(), capacity.min()
    limit = limit_s * (1 + SLACK)
    row = places * used_count * levels
    first = np.full(depth * cuts, row, dtype=np.int32)  # of each cut's states, the first and the last reached
    last = np.full(depth * cuts, -1, dtype=np.int32)
    first[cuts - 1] = last[cuts - 1] = 0
    rows[(cuts - 1) * row], stages[0], cost[0], load[0] = 0, 0, 0.0, 0.0
    trail[0, 0], trail[0, 1], trail[0, 2] = (cuts - 1) * row, -1, 0
    prune = not every_place and not all_devices
    behind = np.ceil(seconds / limit * (1 - SLACK)).astype(np.int64)  # positions that what a cut holds needs at least
    flight = _flights(devices if use_memory else 0)
    ahead = np.zeros(levels, dtype=np.int64)  # by p: the state before in this component, that with the least load
    ahead_used = np.zeros(levels, dtype=np.int64)
    for s in range(depth):
        for j in range(cuts - 1, 0, -1):
            base = s * size + j * row
            ahead[:] = -1
            component = -1
            reached = s * cuts + j
            cell = first[reached] - 1
            while cell < last[reached]:
                cell += 1
                here = rows[base + cell]
                if here < 0:
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
                    if _dominated(ahead, ahead_used, p, u, load, here):
                        continue
                    ahead[p], ahead_used[p] = here, u
                if count + 1 + (start[j + 1] - start[j]) * max_replicas > len(cost):
                    _forget(rows, trail, count)
                    return -1, np.inf, count, trail
                if levels > 1 and not all_devices:  # leave devices idle: one, or all up to the next component
                    step = 1 if every_place else min(spans[1] - x % spans[1], room)
                    p_next = max(p, together[xm, step + 1])
                    cell_next = ((x + step) * used_count + u) * levels + p_next
                    for k in range(1, levels):
                        carried[k - 1] = load[here, k - 1] if unit[k, x + step] == unit[k, x] else 0.0
                    there = rows[base + cell_next]
                    if there < 0 or _better(carried, stages[here], cost[here], there, load, stages, cost):
                        if there < 0:
                            there, count = count, count + 1
                            rows[base + cell_next] = there
                            last[reached] = max(last[reached], cell_next)
                        for k in range(links):
                            load[there, k] = carried[k]
                        cost[there], stages[there] = cost[here], stages[here]
                        trail[there, 0], trail[there, 1], trail[there, 2] = base + cell_next, here, 0
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
                    most = min(most, room - behind[i])
                    size_w = weights[j] - weights[i]
                    for t in range(ties):
                        if (tied_inside[t, j] & ~tied_inside[t, i]) == 3:
                            size_w -= tied[t]
                    own = size_w, fixed[j] - fixed[i], stash[j] - stash[i], activation[i], max_versions, recompute
                    placed = u if counted else x
                    if use_memory and fewest <= most:
                        # More replicas have fewer inputs in flight each: the least number that fits, by bisection.
                        if _need(own, flight[placed, most]) > roomiest:
                            continue
                        above = most if _need(own, flight[placed, fewest]) > roomiest else fewest
                        while fewest < above:
                            middle = (fewest + above) // 2
                            if _need(own, flight[placed, middle]) > roomiest:
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
                                begin = unit[k, x]
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
                                    carried[k - 1] = busy if begin == end else term
                            if not fits:
                                continue
                        else:
                            for k in range(1, levels):
                                carried[k - 1] = load[here, k - 1] if unit[k, x + r] == unit[k, x] else 0.0
                        if use_memory and tightest < roomiest:
                            need = _need(own, flight[placed, r])
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
                        cell_next = ((x + r) * used_count + u_next) * levels + p_next
                        state = s_next * size + i * row + cell_next
                        there = rows[state]
                        if there < 0 or _better(carried, stages[here] + 1, worst, there, load, stages, cost):
                            if there < 0:
                                there, count = count, count + 1
                                rows[state] = there
                                first[s_next * cuts + i] = min(first[s_next * cuts + i], cell_next)
                                last[s_next * cuts + i] = max(last[s_next * cuts + i], cell_next)
                            for k in range(links):
                                load[there, k] = carried[k]
                            cost[there], stages[there] = worst, stages[here] + 1
                            trail[there, 0], trail[there, 1], trail[there, 2] = state, here, r
                        if not every_count:
                            break  # more replicas only move on, and idling does that too
        if depth > 1 or s == depth - 1:
            end = _finished(rows[(s + 1 if depth > 1 else 0) * size :][:row], stages, cost, cheapest)
            if end >= 0:
                break
    _forget(rows, trail, count)
    if end < 0:
        return 0, np.inf, end, trail
    return stages[end], cost[end], end, trail


@numba.njit(cache=True)
def _forget(rows, trail, count):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """No state has a row any more."""
    for k in range(count):
        rows[trail[k, 0]] = -1


@numba.njit(cache=True)
def _flights(devices):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Inputs in flight on each of r replicas, before which stand devices on which `placed` are used; [placed, r]."""
    flight = np.ones((devices + 1, devices + 1), dtype=np.int64)
    for placed in range(devices + 1):
        for r in range(1, devices + 1):
            flight[placed, r] = (placed + 2 * r - 1) // r
    return flight


@numba.njit(cache=True)
def _need(own, flight):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Bytes on one device of a stage with `flight` inputs in flight, as `_partition_memory.pipeline_bytes` has it."""
    weights, fixed, stash, received, max_versions, recompute = own
    kept = stash if recompute else stash * flight
    return weights * min(flight, max_versions) + fixed + kept + received * flight


@numba.njit(cache=True)
def _dominated(ahead, ahead_used, p, u, load, here):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Whether a state earlier in the same component needs no more of anything: it can do all that this one can."""
    for q in range(p + 1):
        other = ahead[q]
        if other >= 0 and ahead_used[q] <= u:
            lighter = True
            for k in range(load.shape[1]):
                if load[other, k] > load[here, k]:
                    lighter = False
            if lighter:
                return True
    return False


@numba.njit(cache=True)
def _better(carried, stages, cost, there, old_load, old_stages, old_cost):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Whether a way to a state beats the one kept: less load (outermost link first), less cost, fewer stages."""
    for k in range(len(carried) - 1, -1, -1):
        if carried[k] != old_load[there, k]:
            return carried[k] < old_load[there, k]
    if cost != old_cost[there]:
        return cost < old_cost[there]
    return stages < old_stages[there]


@numba.njit(cache=True)
def _finished(rows, stages, cost, cheapest):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """The best of the empty cut's states: least cost, or fewest stages and then fewest devices; -1 without any."""
    best = -1
    for row in rows:
        if row < 0 or stages[row] == 0:
            continue
        if best < 0 or (cost[row] < cost[best] if cheapest else stages[row] < stages[best]):
            best = row
    return best
