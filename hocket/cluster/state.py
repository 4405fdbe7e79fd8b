"""State: all that decides what a core will do, as plain data: to compare two cores, and to show one."""

from typing import Any

from hocket.cluster.core import Core

__all__ = ["state_of"]


def state_of(core: Core) -> dict[str, Any]:
    """The state of a core; equal for two that will answer alike whatever comes."""
    asking = core.asking
    return {
        "now_s": core.now_s,
        "round": {
            "number": core.rounds,
            "began_s": core.began_s,
            "asked": core.asked,
            "search": [core.choice.search_at, core.choice.search_every],
        },
        "allocation": {
            "made_s": asking.made_s,
            "holds_s": asking.holds_s,
            "fills": asking.fills,
            "stale": asking.stale,
            "must": asking.must,
            "spent_usd": asking.spent_usd,
            "changed": core.changed,
        },
        "jobs": _jobs(core),
        "entries": _entries(core),
        "leases": _leases(core),
        "workers": [list(up) for up in core.floor.up],
        "prices_usd_per_hour": [kind.price_usd_per_hour for kind in core.floor.types],
        "kept": None if asking.kept is None else asking.kept.tolist(),
        "refused": dict(core.refused),
    }


def _jobs(core: Core) -> dict[str, dict[str, Any]]:
    roster = core.roster
    return {
        name: {
            "slot": slot,
            "remaining_steps": float(roster.remaining_steps[slot]),
            "isolated_s": float(roster.isolated_s[slot]),
            "throughputs": roster.throughputs[slot].tolist(),
            "sharing": int(roster.sharing[slot]),
            "owed_s": roster.owed_s[slot].tolist(),
            "attempts": roster.attempts.get(name, 0),
            "ran": name in core.floor.ran,
        }
        for name, slot in roster.slot.items()
    }


def _entries(core: Core) -> list[list[Any]]:
    book = core.book
    of = book.entries
    columns = (of.first, of.second, of.column, of.fraction, book.received_s, book.owed_s)
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _leases(core: Core) -> list[dict[str, Any]]:
    floor = core.floor
    claims = zip(*(column.tolist() for column in floor.claims()), strict=True)
    return [
        {
            "number": lease.number,
            "jobs": list(lease.jobs),
            "still": sorted(set(lease.jobs) - floor.ended),
            "column": lease.column,
            "workers": list(lease.workers),
            "began_s": lease.began_s,
            "since_s": floor.since_s,
            "entry": entry,
            "claimed": claimed,
        }
        for lease, (entry, claimed) in zip(floor.running.values(), claims, strict=True)
    ]
