"""Time windows: split a group's times among jobs with different demands.

A group's times on its options, fastest first, form its line of rates, with one unit of length per job
(demand_groups.py). The job with the largest demand takes the window (stretch of length 1) with a mean rate equal to
its demand, or the last window if that is faster. The rest of the line still meets the demands of the other jobs. Jobs
without a demand share the final rest equally. Times beside another group are matched along both lines. Times of a
group beside itself are matched with the group's other half; this fails if one job has more than half of them.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.solver.lp.ungroup import Entries
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.space_sharing.residuals import with_crumbs

_NONE = 1e-12
_FEW = 8  # a group up to this size is split into single jobs, as most would be split off anyway


def spread(lines: GroupLines, times: np.ndarray, demand: np.ndarray) -> tuple[Entries, list[int]]:
    """Split the times of groups among their jobs.

    Arguments:
        lines: options of each group: a variable of the linear program, and the steps per second of a job of the group.
        times: value of each variable: time that the jobs of its group spend there, in units of one job's time.
        demand: required steps per second of each job. A job with a demand that is too large gets the fastest options
            that the other jobs leave.

    Returns:
        Entries of the allocation (first job, second job, column, fraction of time); and the jobs that must become
        groups of their own. If there are such jobs, the entries are not valid: solve again with these groups.
    """
    shares = lines.shares
    order = np.argsort(shares.group, kind="stable")
    bounds = np.searchsorted(shares.group[order], np.arange(shares.groups + 1))
    own, part = _by_itself(lines, times)
    jobs, options, parts = [order[bounds[lines.group[own]]]], [own], [part]
    for g in np.flatnonzero(shares.count > 1).tolist():
        own = np.arange(lines.begins[g], lines.begins[g + 1])
        own = own[times[lines.variable[own]] > _NONE]
        own = own[np.argsort(-lines.steps[own], kind="stable")]
        there = order[bounds[g] : bounds[g + 1]]
        who, where, long = _windows(lines.steps[own], times[lines.variable[own]], demand[there])
        jobs.append(there[who])
        options.append(own[where])
        parts.append(np.array(long))
    entries, torn = _entries(lines, np.concatenate(jobs), np.concatenate(options), np.concatenate(parts))
    return (entries if torn else with_crumbs(lines, demand, entries, shares.snapshot)), torn


def _by_itself(lines: GroupLines, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Option indices and times of groups with one job; at most 1 in total per job."""
    single = lines.shares.count == 1
    option = np.flatnonzero(single[lines.group] & (times[lines.variable] > _NONE))
    part = times[lines.variable[option]]
    total = np.bincount(lines.group[option], part, lines.shares.groups)
    return option, part / np.maximum(total, 1.0)[lines.group[option]]


def _windows(steps: np.ndarray, times: np.ndarray, demand: np.ndarray) -> tuple[list[int], list[int], list[float]]:
    """Split the times of one group among its jobs, without idle time.

    Arguments:
        steps, times: rate and time of each option, fastest first.
        demand: steps per second, by job.

    Returns:
        Job, option and time of each entry; three lists.
    """
    n, idle = len(demand), len(steps)
    jobs: list[int] = []
    options: list[int] = []
    parts: list[float] = []
    asking = np.argsort(-demand, kind="stable").tolist() if demand.max() > demand.min() else []
    rates, left = [*steps.tolist(), 0.0], [*times.tolist(), max(n - float(times.sum()), 0.0)]
    wanted = demand.tolist()
    quiet = n
    for j in asking:
        if wanted[j] <= 0:
            break
        quiet -= 1
        for option, part in _window(rates, left, wanted[j]):
            left[option] = max(left[option] - part, 0.0)
            if option != idle and part > _NONE:
                jobs.append(j)
                options.append(option)
                parts.append(part)
    if quiet:
        rest = range(n) if quiet == n else np.flatnonzero(demand <= 0).tolist()
        for option in range(idle):
            if left[option] > _NONE:
                jobs.extend(rest)
                options.extend([option] * quiet)
                parts.extend([left[option] / quiet] * quiet)
    return jobs, options, parts


def _window(rates: list[float], left: list[float], asked: float) -> list[tuple[int, float]]:
    """Last window of length 1 in a line of rates with a mean rate >= the demand.

    If even the first window is slower, the result is the first window.

    Arguments:
        rates: rate of each option, fastest first; idling is the last option.
        left: remaining time of each option.
        asked: demand, in steps per second.

    Returns:
        Options in the window, and the time on each.
    """
    there = [(rate, time, k) for k, (rate, time) in enumerate(zip(rates, left, strict=True)) if time > 0]
    total = sum(time for _, time, _ in there)
    length = min(1.0, total)
    if not there or length == total:
        return [(k, time) for _, time, k in there]
    i, j, last = 0, 0, len(there) - 1
    room_i, does, room_j = there[0][1], 0.0, length
    while j < last and there[j][1] < room_j:  # the first stretch
        does += there[j][0] * there[j][1]
        room_j -= there[j][1]
        j += 1
    does += there[j][0] * room_j
    room_j = there[j][1] - room_j
    asked *= length
    while does > asked:  # shift it from one breakpoint to the next
        step = min(room_i, room_j)
        fall = there[i][0] - there[j][0]
        enough = fall * step > does - asked
        if enough:
            step = (does - asked) / fall
        does -= fall * step
        room_i, room_j = room_i - step, room_j - step
        if enough or (room_j <= 0 and j == last):
            break
        if room_i <= 0:
            i += 1
            room_i = there[i][1]
        if room_j <= 0:
            j += 1
            room_j = there[j][1]
    if i == j:
        return [(there[i][2], length)]
    inner = [(k, time) for _, time, k in there[i + 1 : j]]
    return [(there[i][2], room_i), *inner, (there[j][2], there[j][1] - room_j)]


def _entries(lines: GroupLines, job: np.ndarray, option: np.ndarray, part: np.ndarray) -> tuple[Entries, list[int]]:
    shares = lines.shares
    variable = lines.variable[option]
    alone = shares.second[variable] == ALONE
    column = shares.column[variable]
    parts = [(job[alone], np.full(alone.sum(), ALONE), column[alone], part[alone])]
    beside = np.flatnonzero(~alone)
    torn: list[int] = []
    order = beside[np.argsort(variable[beside], kind="stable")]
    cuts = np.flatnonzero(np.diff(variable[order])) + 1
    for own in np.split(order, cuts) if len(order) else ():
        v = variable[own[0]]
        jobs, time = job[own], part[own]
        if shares.first[v] == shares.second[v]:
            jobs, time = _merged(jobs, time)
            if time.max() > time.sum() / 2 * (1 + 1e-9) + 1e-9:
                few = shares.count[shares.first[v]] <= _FEW
                torn.extend(
                    np.flatnonzero(shares.group == shares.first[v]).tolist() if few else [int(jobs[time.argmax()])]
                )
                continue
            split = time.sum() / 2
            i, j, both = matched(*halves(jobs, time, split))
            unlike = i != j  # a job with slightly more than half would be paired with itself
            i, j, both = i[unlike], j[unlike], both[unlike]
        else:
            there = shares.group[jobs] == shares.first[v]
            if there.all() or not there.any():  # the other group's part was zero
                parts.append((jobs, np.full(len(jobs), ALONE), np.full(len(jobs), shares.column[v]), time))
                continue
            i, j, both = matched(jobs[there], time[there], jobs[~there], time[~there])
        parts.append((np.minimum(i, j), np.maximum(i, j), np.full(len(i), shares.column[v]), both))
    return tuple(np.concatenate([p[k] for p in parts]) for k in range(4)), torn  # type: ignore[return-value]


def _merged(jobs: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum the times of duplicate jobs: a pair within a group is two of its options."""
    known, at = np.unique(jobs, return_inverse=True)
    return known, np.bincount(at, time)


def halves(jobs: np.ndarray, time: np.ndarray, at: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cut the jobs' times, laid end to end, at the position `at`.

    Returns:
        Jobs and times before the cut; jobs and times after it. The job at the cut may be in both.
    """
    ends = np.cumsum(time)
    first = np.clip(at - (ends - time), 0.0, time)
    a, b = first > _NONE, time - first > _NONE
    return jobs[a], first[a], jobs[b], (time - first)[b]


def matched(
    a: np.ndarray, time_a: np.ndarray, b: np.ndarray, time_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of jobs, and the time of each pair: two lines of times laid side by side."""
    ends_a, ends_b = np.cumsum(time_a), np.cumsum(time_b)
    total = min(ends_a[-1], ends_b[-1])
    cuts = np.unique(np.minimum(np.concatenate([ends_a, ends_b]), total))
    begins = np.append(0.0, cuts[:-1])
    keep = cuts - begins > _NONE
    middle = (cuts + begins)[keep] / 2
    i = np.minimum(np.searchsorted(ends_a, middle, side="right"), len(a) - 1)
    j = np.minimum(np.searchsorted(ends_b, middle, side="right"), len(b) - 1)
    return a[i], b[j], (cuts - begins)[keep]
