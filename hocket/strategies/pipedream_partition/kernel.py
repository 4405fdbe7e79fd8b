"""Inner loops of the partitioner: find a pipeline with no term above a limit T.

Terms are the seconds that each stage's compute, all-reduce and boundary take for an input (cost.py). The bottleneck is
the largest term. Stages are placed from the pipeline's end to its start. A position is a device, or a group of devices
in large clusters (topology.py). Positions are counted from the pipeline's end.

A state is (cut, x, u, p):

- cut: the layers outside its downset (cuts.py) are placed already.
- x: number of positions that the search has passed.
- u: number of these positions that are in use; counted only under a memory limit.
- p: innermost level that contains both position x and the start of the stage that was placed last.

Of all paths to a state, the loops keep the path with the least load on the links of the components that contain x.
With two levels the load is one number, so this is exact. From a state, the next stage is placed on r replicas, the
positions [x, x + r), or devices are left idle. Idle devices reach to the start of the next component. If an outer
level has more than half the bandwidth of an inner level, or devices differ, any number may be idle.

For a given T each pair of cuts needs a minimum number of replicas, which makes a sweep cheap. A sweep also skips cuts
with a boundary that takes longer than T on every level, and stages that no device can hold.

These functions run as plain Python on lists, and compiled by numba on arrays (kernel_numba.py), with the same answer
to the last bit. They therefore use flat sequences, and only calls that both know.
"""

from math import ceil, inf
from typing import Any

SLACK = 1e-12  # relative tolerance: a term may exceed T by as much as rounding errors


def sweep(limit_s: float, graph: Any, topology: Any, memory: Any, wishes: Any, table: Any) -> tuple[int, float, int]:
    """Search once for a pipeline with no term above `limit_s`.

    Of the pipelines that the sweep reaches, it returns the one with the smallest bottleneck (`cheapest`), or the one
    with the fewest stages and then the fewest devices. With layers_of_stages > 0, states are separated by the number
    of stages, up to this number, and a pipeline with the fewest stages is returned.

    A sweep reaches few states. Each reached state has a row in two buffers, in the order in which states are reached:

    - `found`: bottleneck, number of stages, load by level.
    - `trail`: state, row of the state before, replicas of the stage between the two (0 for idle devices).

    `rows` has the start of each state's row. `first` and `last` have the range of reached states at each cut and
    position. `rows` and `last` are 0 where no state is reached, and everywhere before and after a sweep.

    Arguments:
        limit_s: maximum of every term, in seconds.
        graph: sums over each cut, the cuts inside each cut, and tied weights (`level.LevelTask._figures`).
        topology: number of positions, and costs of runs of positions (`topology.Topology.flat`).
        memory: memory of positions, and bytes of each cut (`memory.kernel_memory`).
        wishes: maximum number of replicas, True to try every number of replicas, True to use all devices,
            `layers_of_stages`, and `cheapest`.
        table: the buffers (buffers.py).

    Returns:
        Number of stages, bottleneck in seconds, and row of the pipeline's last state. The number of stages is 0 if no
        pipeline is found, and -1 if the buffers may be too short.
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
    own, width = used_count * levels, levels + 2  # states at one cut and position; length of a row
    layered = layers_of_stages > 0
    prune = not every_place and not all_devices
    for i in range(cuts):  # minimum number of positions for the layers inside a cut
        above = seconds[i] > limit * devices
        behind[i] = devices + 1 if above else ceil(seconds[i] / limit * (1 - SLACK))
    at = (cuts - 1) * places
    free, end = 2 * width, 0  # start of the next row; no row starts at 0
    rows[at * own], first[at], last[at] = width, at * own, at * own
    for k in range(width):
        found[width + k] = 0.0
    trail[width], trail[width + 1], trail[width + 2] = at * own, 0, 0
    for s in range(max(layers_of_stages, 1)):
        # Maximum number of positions for the stages that are placed after the next one.
        later = max_replicas * (layers_of_stages - s - 1) if layered else devices
        s_next = s + 1 if layered else 0
        for j in range(cuts - 1, 0, -1):
            pairs, component = -1, -1
            for k in range(levels):  # for each p, the row of an earlier state in this component
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
                    if levels > 1 and not all_devices:  # leave idle one position, or all up to the next component
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
                            # With more replicas, each has fewer inputs in flight. Bisect for the least number that
                            # fits.
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
                                    break  # a longer run crosses at least the same level
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
                                break  # no stage can follow this run or a longer one
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
                                break  # more replicas only pass more positions, as idle devices do
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
    """Enumerate the possible stages that end at cut j; return their number.

    Buffers of `table` receive the cut at which each stage begins (nearest first), its minimum number of replicas, and
    its time and bytes.

    Arguments:
        limit: maximum of every term, in seconds.
        later: maximum number of positions for the layers before the stage.
        graph, topology, memory, table: as in `sweep`.
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
                continue  # does not fit even with the fewest inputs in flight
        inner[pairs], fewest_of[pairs] = i, 1 if time <= limit else ceil(time / limit)
        pairs += 1
    return pairs


def _need(own_bytes: Any, flight: int, max_versions: int, recompute: bool) -> float:
    """Bytes on one device of a stage with `flight` inputs in flight.

    The result is that of `memory.pipeline_bytes`.

    Arguments:
        own_bytes: weights, fixed bytes, saved activations and received activations of the stage.
        max_versions: maximum number of weight versions.
        recompute: True if the stage recomputes saved activations.
    """
    weights, fixed, stash, received = own_bytes
    kept = stash if recompute else stash * flight
    needed: float = weights * min(flight, max_versions) + fixed + kept + received * flight
    return needed


def _enter(state: int, row: int, at: int, rows: Any, first: Any, last: Any) -> None:
    """Register the row of a newly reached state.

    Arguments:
        at: index of the state's cut and position.
    """
    rows[state] = row
    first[at] = state if last[at] == 0 else min(first[at], state)
    last[at] = max(last[at], state)


def _keep(carried: Any, stages: float, cost: float, there: int, found: Any, levels: int) -> None:
    """Store the best path to a state in the state's row.

    Arguments:
        carried: load of the path by level.
        stages: number of stages.
        cost: bottleneck, in seconds.
        there: the row.
    """
    found[there], found[there + 1] = cost, stages
    for k in range(1, levels):
        found[there + 2 + k] = carried[k]


def _forget(rows: Any, last: Any, trail: Any, free: int, own: int, width: int) -> None:
    """Set the buffers `rows` and `last` to 0 for all reached states.

    Arguments:
        free: end of the rows in use.
        own: number of states at one cut and position.
        width: length of a row.
    """
    for row in range(width, free, width):
        rows[trail[row]] = 0
        last[trail[row] // own] = 0


def _dominated(ahead: Any, ahead_used: Any, p: int, u: int, found: Any, here: int, levels: int) -> bool:
    """True if an earlier state of the same cut and component is at least as good.

    Such a state has no larger level p, no more positions in use and no more load on any level.

    Arguments:
        ahead: for each p, the row of an earlier state; 0 for none.
        ahead_used: number of positions in use of these states.
        p, u, here: level, positions in use, and row of the state.
    """
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
    """True if a path to a state is better than the path that is stored in row `there`.

    Paths are compared by load (outermost level first), then by bottleneck, then by number of stages.

    Arguments:
        carried: load of the path by level.
        cost: bottleneck of the path, in seconds.
    """
    for k in range(levels - 1, 0, -1):
        if carried[k] != found[there + 2 + k]:
            return bool(carried[k] < found[there + 2 + k])
    if cost != found[there]:
        return bool(cost < found[there])
    return bool(stages < found[there + 1])


def _finished(start: int, places: int, rows: Any, first: Any, last: Any, found: Any, cheapest: bool) -> int:
    """Row of the best state at the empty cut, where all layers are placed; 0 for none.

    The best state has the smallest bottleneck (`cheapest`), or the fewest stages and then the fewest positions.

    Arguments:
        start: index of the empty cut with x = 0.
        places: number of possible x.
    """
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
