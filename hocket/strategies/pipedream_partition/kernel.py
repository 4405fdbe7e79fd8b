"""The inner loops of the partitioner: is there a pipeline with no term above T?

A state is (cut, x, u, p): the layers outside the cut's downset stand on devices counted from the pipeline's end,
x positions are passed, u devices are used (only counted under a memory limit), and p is the innermost level that
contains both position x and the start of the stage placed last. Of all ways to reach a state the one with the least
load on the links of the components that contain x is kept: with two levels that is one number, so nothing is lost.
From a state one stage more is placed on the run [x, x + r), or devices are left idle: up to the start of the next
component, or, where the outer level has more than half the inner one's bandwidth or devices differ, any number.

For a given T each pair of cuts needs a least number of replicas, which makes a sweep cheap. So does leaving out what
no pipeline below T contains: a cut whose border takes longer on every level, a stage that no device can hold.

These functions run as they stand, on lists, and compiled, on arrays (`_partition_compiled`): the answer is the same
to the last bit. Hence flat sequences, and no call that only one of the two knows.
"""

from math import ceil, inf
from typing import Any

SLACK = 1e-12  # relative: a term equal to T passes whatever its last bit


def sweep(limit_s: float, graph: Any, topology: Any, memory: Any, wishes: Any, table: Any) -> tuple[int, float, int]:
    """One sweep: (stages, bottleneck_s, end) of a pipeline with no term above limit_s; stages is 0 without one.

    Of those that it has, it returns the one of least bottleneck, or else the one of fewest stages and then fewest
    devices. With layers_of_stages > 0 the states are separated by the number of stages, at most that many, and the
    fewest are returned.

    Few states are ever reached. Each has a row in `found` (bottleneck, stages, load by level) and in `trail` (state, row
    before, replicas; 0 for idle devices), in the order in which they are; the pipeline's last is the row `end`. `rows`
    says where the row of a state begins; `first` and `last` say of which states at one cut and position that is asked at
    all. Where there are none, rows and last are 0: before the sweep, and after it, everywhere. When the table may be too
    short, stages is -1.
    """
    seconds, _, crossing, _, _, _, _ = graph
    devices, period, spans, unit, sync, together, border, lowest, shared, every_place = topology
    use_memory, counted, activation, _, _, capacity, roomiest, tightest, flight, max_versions, recompute = memory
    max_replicas, every_count, all_devices, layers_of_stages, cheapest = wishes
    rows, first, last, found, trail, behind, inner, fewest_of, own_of, carried, ahead, ahead_used = table
    limit = limit_s * (1 + SLACK)
    if limit <= 0:
        return 0, inf, 0
    cuts, levels, places = len(seconds), len(spans), devices + 1
    used_count = places if counted else 1
    own, width = used_count * levels, levels + 2  # states at one cut and position; what is found of each
    layered = layers_of_stages > 0
    prune = not every_place and not all_devices
    for i in range(cuts):  # positions that what a cut holds needs at least
        above = seconds[i] > limit * devices
        behind[i] = devices + 1 if above else ceil(seconds[i] / limit * (1 - SLACK))
    at = (cuts - 1) * places
    free, end = 2 * width, 0  # where the next row begins; none begins at 0
    rows[at * own], first[at], last[at] = width, at * own, at * own
    for k in range(width):
        found[width + k] = 0.0
    trail[width], trail[width + 1], trail[width + 2] = at * own, 0, 0
    for s in range(max(layers_of_stages, 1)):
        later = max_replicas * (layers_of_stages - s - 1) if layered else devices  # positions for the stages after it
        s_next = s + 1 if layered else 0
        for j in range(cuts - 1, 0, -1):
            pairs, component = -1, -1
            for k in range(levels):  # by p: the state before in this component, that with the least load
                ahead[k] = 0
            for x in range(devices):
                at = (s * cuts + j) * places + x
                if last[at] == 0:
                    continue
                xm, room = x % period, devices - x
                if prune and levels > 1 and unit[places + x] != component:
                    component = unit[places + x]
                    for k in range(levels):
                        ahead[k] = 0
                if pairs < 0:
                    pairs = _stages(j, limit, later, graph, topology, memory, max_replicas, table)
                for here_state in range(first[at], last[at] + 1):
                    here = rows[here_state]
                    if here == 0:
                        continue
                    p, u = here_state % levels, here_state // levels % used_count
                    if prune:
                        if _dominated(ahead, ahead_used, p, u, found, here, levels):
                            continue
                        ahead[p], ahead_used[p] = here, u
                    if free + (pairs * max_replicas + 1) * width > len(found):
                        _forget(rows, last, trail, free, own, width)
                        return -1, inf, 0
                    if levels > 1 and not all_devices:  # leave devices idle: one, or all up to the next component
                        step = 1 if every_place else min(spans[1] - x % spans[1], room)
                        for k in range(1, levels):
                            same = unit[k * places + x + step] == unit[k * places + x]
                            carried[k] = found[here + 2 + k] if same else 0.0
                        state = (at + step) * own + u * levels + max(p, together[xm * (places + 1) + step + 1])
                        there = rows[state]
                        if there == 0 or _better(carried, found[here + 1], found[here], there, found, levels):
                            if there == 0:
                                there, free = free, free + width
                                _enter(state, there, at + step, rows, first, last)
                            _keep(carried, found[here + 1], found[here], there, found, levels)
                            trail[there], trail[there + 1], trail[there + 2] = state, here, 0
                    placed = (u if counted else x) * places
                    for pair in range(pairs):
                        i, fewest, time, size_w = inner[pair], fewest_of[pair], own_of[4 * pair], own_of[4 * pair + 1]
                        most = min(room, max_replicas)
                        if time > limit * most:
                            break  # cuts further away hold at least as much
                        if seconds[i] > limit * room:
                            continue
                        most = min(most, room - behind[i])
                        own_bytes = size_w, own_of[4 * pair + 2], own_of[4 * pair + 3], activation[i]
                        if use_memory and fewest <= most:
                            # More replicas have fewer inputs in flight each: the least number that fits, by bisection.
                            if _need(own_bytes, flight[placed + most], max_versions, recompute) > roomiest:
                                continue
                            need = _need(own_bytes, flight[placed + fewest], max_versions, recompute)
                            enough = most if need > roomiest else fewest
                            while fewest < enough:
                                middle = (fewest + enough) // 2
                                if _need(own_bytes, flight[placed + middle], max_versions, recompute) > roomiest:
                                    fewest = middle + 1
                                else:
                                    enough = middle
                        for r in range(fewest, most + 1):
                            worst = max(found[here], time / r)
                            if j < cuts - 1:
                                over = crossing[j] * border[max(p, together[xm * (places + 1) + r])]
                                if over > limit:
                                    break  # a longer run spans no less
                                worst = max(worst, over)
                            if r > 1 or sync[((levels - 1) * period + xm) * places + r] > 0:
                                term = sync[xm * places + r] * size_w
                                fits = term <= limit
                                worst = max(worst, term)
                                for k in range(1, levels):
                                    term = sync[(k * period + xm) * places + r] * size_w
                                    busy = term
                                    if shared[k]:
                                        busy += found[here + 2 + k]
                                    if busy > limit:
                                        fits = False
                                    if term > 0:
                                        worst = max(worst, busy)
                                    stop = unit[k * places + x + r - 1]
                                    if unit[k * places + x + r] != stop or not shared[k]:
                                        carried[k] = 0.0
                                    else:
                                        carried[k] = busy if unit[k * places + x] == stop else term
                                if not fits:
                                    continue
                            else:
                                for k in range(1, levels):
                                    same = unit[k * places + x + r] == unit[k * places + x]
                                    carried[k] = found[here + 2 + k] if same else 0.0
                            if use_memory and tightest < roomiest:
                                need = _need(own_bytes, flight[placed + r], max_versions, recompute)
                                fits = True
                                for d in range(x, x + r):
                                    if need > capacity[d]:
                                        fits = False
                                        break
                                if not fits:
                                    continue
                            if i == 0 and all_devices and x + r != devices:
                                continue
                            p_next = min(together[xm * (places + 1) + r + 1], levels - 1)
                            if i > 0 and crossing[i] * lowest[p_next] > limit:
                                break  # nothing can follow, nor after a longer run
                            at_next = (s_next * cuts + i) * places + x + r
                            state = at_next * own + (u + r if counted else 0) * levels + p_next
                            there = rows[state]
                            if there == 0 or _better(carried, found[here + 1] + 1, worst, there, found, levels):
                                if there == 0:
                                    there, free = free, free + width
                                    _enter(state, there, at_next, rows, first, last)
                                _keep(carried, found[here + 1] + 1, worst, there, found, levels)
                                trail[there], trail[there + 1], trail[there + 2] = state, here, r
                            if not every_count:
                                break  # more replicas only move on, and idling does that too
        end = _finished(s_next * cuts * places, places, rows, first, last, found, cheapest)
        if end > 0:
            break
    _forget(rows, last, trail, free, own, width)
    if end == 0:
        return 0, inf, 0
    return int(found[end + 1]), found[end], end


def _stages(
    j: int, limit: float, later: int, graph: Any, topology: Any, memory: Any, max_replicas: int, table: Any
) -> int:
    """Number of possible stages that end at cut j.

    The table gets the begin of each (nearest first), its least replicas and its figures.
    """
    seconds, weights, crossing, start, listed, tied, tied_inside = graph
    _, _, _, _, _, _, _, lowest, _, _ = topology
    use_memory, _, activation, stash, fixed, _, roomiest, _, _, max_versions, recompute = memory
    _, _, _, _, _, behind, inner, fewest_of, own_of, _, _, _ = table
    cuts, pairs = len(seconds), 0
    for at in range(start[j], start[j + 1]):
        i = listed[at]
        time = seconds[j] - seconds[i]
        if time > limit * max_replicas:
            break  # cuts further away hold at least as much
        if behind[i] > later or (i > 0 and crossing[i] * lowest[0] > limit):
            continue
        size_w = weights[j] - weights[i]
        for t in range(len(tied)):
            if (tied_inside[t * cuts + j] & ~tied_inside[t * cuts + i]) == 3:
                size_w -= tied[t]
        own_of[4 * pairs], own_of[4 * pairs + 1] = time, size_w
        if use_memory:
            own_of[4 * pairs + 2], own_of[4 * pairs + 3] = fixed[j] - fixed[i], stash[j] - stash[i]
            own_bytes = size_w, own_of[4 * pairs + 2], own_of[4 * pairs + 3], activation[i]
            if _need(own_bytes, 1 if j == cuts - 1 else 2, max_versions, recompute) > roomiest:
                continue  # not even with the fewest inputs in flight
        inner[pairs], fewest_of[pairs] = i, 1 if time <= limit else ceil(time / limit)
        pairs += 1
    return pairs


def _need(own_bytes: Any, flight: int, max_versions: int, recompute: bool) -> float:
    """Bytes on one device of a stage with `flight` inputs in flight, as `memory.pipeline_bytes`."""
    weights, fixed, stash, received = own_bytes
    kept = stash if recompute else stash * flight
    needed: float = weights * min(flight, max_versions) + fixed + kept + received * flight
    return needed


def _enter(state: int, row: int, at: int, rows: Any, first: Any, last: Any) -> None:
    """A state has a row from now on."""
    rows[state] = row
    first[at] = state if last[at] == 0 else min(first[at], state)
    last[at] = max(last[at], state)


def _keep(carried: Any, stages: float, cost: float, there: int, found: Any, levels: int) -> None:
    """The way to a state that is kept."""
    found[there], found[there + 1] = cost, stages
    for k in range(1, levels):
        found[there + 2 + k] = carried[k]


def _forget(rows: Any, last: Any, trail: Any, free: int, own: int, width: int) -> None:
    """No state has a row any more."""
    for row in range(width, free, width):
        rows[trail[row]] = 0
        last[trail[row] // own] = 0


def _dominated(ahead: Any, ahead_used: Any, p: int, u: int, found: Any, here: int, levels: int) -> bool:
    """True if an earlier state in the same component needs no more of any resource."""
    for q in range(p + 1):
        other = ahead[q]
        if other > 0 and ahead_used[q] <= u:
            lighter = True
            for k in range(1, levels):
                if found[other + 2 + k] > found[here + 2 + k]:
                    lighter = False
                    break
            if lighter:
                return True
    return False


def _better(carried: Any, stages: float, cost: float, there: int, found: Any, levels: int) -> bool:
    """True if a path to a state beats the kept one: less load (outermost link first), less cost, fewer stages."""
    for k in range(levels - 1, 0, -1):
        if carried[k] != found[there + 2 + k]:
            return bool(carried[k] < found[there + 2 + k])
    if cost != found[there]:
        return bool(cost < found[there])
    return bool(stages < found[there + 1])


def _finished(start: int, places: int, rows: Any, first: Any, last: Any, found: Any, cheapest: bool) -> int:
    """Best state of the empty cut: least cost, or fewest stages and then fewest devices; 0 without any."""
    best, key = 0, 0 if cheapest else 1
    for at in range(start, start + places):
        if last[at] == 0:
            continue
        for state in range(first[at], last[at] + 1):
            row = rows[state]
            if row == 0 or found[row + 1] == 0:
                continue
            if best == 0 or found[row + key] < found[best + key]:
                best = row
    return best


HELPERS = (_stages, _need, _enter, _keep, _forget, _dominated, _better, _finished)
