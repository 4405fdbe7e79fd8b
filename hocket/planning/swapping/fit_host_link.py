"""Fit the links between devices and hosts to a run that swapped.

Rules of this file: a swap takes a latency, and the time of its bytes at a bandwidth (`Link` in cluster.py). The
latency contains the engine's work for each swap, which is most of the time of a small job's swaps. Latency and
bandwidth are fitted to sums over all swaps, of the run and of its simulation. The total time of all swaps is matched
exactly; its division between latency and bandwidth is a least-squares fit.
"""

from collections.abc import Mapping
from dataclasses import replace

from hocket.hardware.change import host_link_name, with_host_links
from hocket.hardware.cluster import Cluster, Link
from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import played
from hocket.profiling.profile import ModelProfile
from hocket.simulation.swapping.traffic import swaps_of

_TRIES = 8
_CLOSE = 1e-3


def on_links(cluster: Cluster, links: Mapping[str, Link]) -> Cluster:
    """The cluster with some links to hosts replaced.

    Arguments:
        links: new links by name; all other links stay as they are.
    """
    return with_host_links(cluster, lambda name, now: links.get(name, now))


def host_links(plan: Plan, profile: ModelProfile, took: Mapping[int, LinkSums]) -> dict[str, Link]:
    """Host links with which simulated swaps take as long as measured swaps.

    Swaps that share a link wait for each other, in the run and in its simulation. So the links are changed, and the
    plan is simulated again, until run and simulation agree.

    Arguments:
        took: measured sums over swaps, by device of the plan.

    Returns:
        The links by name; {} without swaps.
    """
    measured = _by_link(plan.cluster, {d: sums for d, sums in took.items() if sums.seconds > 0 and sums.size_bytes > 0})
    if plan.swap is None or not measured:
        return {}
    of = {host_link_name(plan.cluster, device): plan.cluster.host_link_of(device)[0] for device in took}
    links = {name: of[name] for name in measured}
    wanted = {name: sums.latency_s(links[name]) for name, sums in measured.items()}
    for _ in range(_TRIES):
        now = replace(plan, cluster=on_links(plan.cluster, links), predicted=None)
        foreseen = dict[int, LinkSums]()
        for device, size_bytes, seconds in swaps_of(played(now, profile)):
            member = device * plan.tensor
            foreseen[member] = foreseen.get(member, LinkSums()) + LinkSums.of(size_bytes, seconds)
        seen, before = _by_link(plan.cluster, foreseen), links
        links = {name: _moved(link, measured[name], wanted[name], seen[name]) for name, link in links.items()}
        if all(_close(links[name], before[name]) for name in links):
            break
    return links


def _moved(link: Link, measured: LinkSums, latency_s: float, seen: LinkSums) -> Link:
    """One step of the fit: a link with simulated swaps nearer to the measured ones.

    Arguments:
        link: link of the last simulation.
        measured: measured sums over the link's swaps.
        latency_s: latency that fits the measured sums.
        seen: simulated sums over the link's swaps.
    """
    latency = min(max(0.0, link.latency_s + latency_s - seen.latency_s(link)), measured.mean_s)
    bytes_s, seen_s = measured.mean_s - latency, seen.mean_s - link.latency_s
    if not (bytes_s > 0 and seen_s > 0):
        return replace(link, latency_s=latency)
    return Link(link.bandwidth_bytes_per_s * seen_s / bytes_s, latency)


def _close(one: Link, other: Link) -> bool:
    rates = abs(one.bandwidth_bytes_per_s / other.bandwidth_bytes_per_s - 1)
    return rates < _CLOSE and abs(one.latency_s - other.latency_s) <= _CLOSE * other.latency_s


def _by_link(cluster: Cluster, sums: Mapping[int, LinkSums]) -> dict[str, LinkSums]:
    found = dict[str, LinkSums]()
    for device, own in sums.items():
        name = host_link_name(cluster, device)
        found[name] = found.get(name, LinkSums()) + own
    return found
