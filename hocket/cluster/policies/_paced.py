"""Paced: the allocation at which the slowest job, by a measure of pace, is as fast as can be, and nothing is left idle.

Jobs that run alike are one group, whatever they ask for (_lines.py); the least pace comes first (_pace.py), then the times that
keep it and do most besides, then every job's part (_windows.py). A job that its group cannot serve becomes a group of its own,
and all is done again.
"""

from dataclasses import dataclass

import numpy as np

from hocket.cluster.policies._lines import Lines
from hocket.cluster.policies._pace import Found, Kept, Pace, at_pace, least
from hocket.cluster.policies._shares import Shares
from hocket.cluster.policies._spread import Entries
from hocket.cluster.policies._windows import spread
from hocket.cluster.session import Session
from hocket.cluster.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Paced:
    """Who is in which group, the least pace, the times that keep it, and entries of an allocation."""

    lines: Lines
    found: Found
    kept: Kept
    entries: Entries


def paced(snapshot: Snapshot, pace: Pace, place: str, session: Session | None = None) -> Paced | Shares:
    """The answer; only the shares, with who is refused, if no job can run.

    Arguments:
        place: for messages. session: where to begin, if it is known there.
    """
    apart, above = np.zeros(len(snapshot.jobs)), 0.0
    while True:
        shares = Shares(snapshot, (apart,))
        if not shares.groups:
            return shares
        lines = Lines(shares)
        found = least(lines, pace, place, above, session)
        above = found.pace
        kept = at_pace(found.cuts, pace, found.pace, _least_idle(lines), place, found.basis)
        entries, torn = spread(lines, kept.solution.x, kept.demand)
        if not torn:
            return Paced(lines, found, kept, entries)
        apart[torn] = np.array(torn) + 1.0


def _least_idle(lines: Lines) -> np.ndarray:
    """The cost of variables: throughputs count in parts of each group's fastest."""
    shares = lines.shares
    cost = -shares.steps_first / lines.fastest[shares.first]
    both = shares.second >= 0
    cost[both] -= shares.steps_second[both] / lines.fastest[shares.second[both]]
    return cost
