"""Instance logs of a client that keeps requesting one instance of each kind.

    [2020-03-15T10:07:33.000Z] Created instance i-0ad1 with 1 GPU(s) of type v100 in zone us-east-1b
    [2020-03-15T10:21:22.000Z] Instance i-0ad1 running in zone us-east-1b
    [2020-03-15T15:11:45.000Z] Instance i-0ad1 not running in zone us-east-1b
    [2020-03-15T15:11:46.000Z] Successfully deleted instance i-0ad1
    [2020-03-15T15:12:20.000Z] Instance with 8 GPU(s) of type k80 creation failed          (AWS)
    [2020-03-15T15:12:20.000Z] Instance instance3 creation failed                          (Google: one name per kind)

The end of an instance is the first time that it is found not running, which is up to one polling interval (ten
minutes here) after the preemption. A failure on AWS names no zone; it counts for all missing instances of its kind. A
kind that was never granted on Google is not described; its accelerator stays empty.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hocket.errors import InputError
from hocket.scheduler.prices.availability import Availability, InstanceLifetime
from hocket.scheduler.prices.market import PriceKey
from hocket.scheduler.prices.readers._fields import MAX_TEXT_BYTES, accelerator, count, moment, region_of
from hocket.scheduler.prices.readers.aws import instance_of
from hocket.util.files import read_text

_STAMP = re.compile(r"\[([^\]]{1,40})\] (.+)")
_FORMS = {
    "created": re.compile(r"Created instance (?P<id>\S+) with (?P<n>\S+) GPU\(s\) of type (?P<type>\S+) in zone (?P<zone>\S+)"),
    "running": re.compile(r"Instance (?P<id>\S+) running in zone (?P<zone>\S+)"),
    "gone": re.compile(r"Instance (?P<id>\S+) not running in zone (?P<zone>\S+)"),
    "deleted": re.compile(r"Successfully deleted instance (?P<id>\S+)"),
    "refused kind": re.compile(r"Instance with (?P<n>\S+) GPU\(s\) of type (?P<type>\S+) creation failed"),
    "refused": re.compile(r"Instance (?P<id>\S+) creation failed"),
}  # fmt: skip


class _Line(NamedTuple):
    place: str
    when: float
    what: str
    id: str
    zone: str
    kind: tuple[str, float]  # accelerator and number; ("", 0) if the line has none


@dataclass
class _Slot:
    """Instances of one kind (accelerator and number) in one zone, while reading."""

    zone: str
    kind: tuple[str, float]
    since_s: float | None = None
    held: list[InstanceLifetime] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def end(self, when: float, preempted: bool) -> None:
        if self.since_s is not None:
            self.held.append(InstanceLifetime(self.since_s, when, preempted))
            self.since_s = None


def read(path: str | Path, cloud: str) -> tuple[Availability, ...]:
    """Availability of each instance kind in each zone, sorted by key.

    Arguments:
        cloud: aws or gcp.

    Raises:
        InputError: an empty file, an unknown line, decreasing times, or an instance without a creation; the message
            names the line.
    """
    lines = list(_lines(path, cloud))
    if not lines:
        raise InputError(str(path), "an empty file", "a log of instances")
    slots = _slots(lines)
    for line in lines:
        _take(line, slots)
    end_s = lines[-1].when
    found = []
    for slot in dict.fromkeys(map(id, slots.values())):
        one = next(s for s in slots.values() if id(s) == slot)
        one.end(end_s, preempted=False)
        key = PriceKey(cloud, region_of(one.zone, cloud, str(path)), one.zone, instance_of(cloud, *one.kind))
        refused = tuple(one.refused_s)
        found.append(Availability(key, *one.kind, tuple(one.held), refused, lines[0].when, end_s))
    return tuple(sorted(found, key=lambda a: a.key))


def _lines(path: str | Path, cloud: str) -> Iterator[_Line]:
    before = float("-inf")
    for number, text in enumerate(read_text(path, MAX_TEXT_BYTES).splitlines(), 1):
        place = f"{path}, line {number}"
        stamp = _STAMP.fullmatch(text)
        found = ((what, m) for what, form in _FORMS.items() if stamp and (m := form.fullmatch(stamp[2])))
        what, match = next(found, ("", None))
        if stamp is None or match is None:
            raise InputError(place, repr(text[:60]), "[moment] Created instance ..., Instance ... running in zone ...")
        when = moment(stamp[1], f"{place}: moment")
        if when < before:
            raise InputError(f"{place}: moment", stamp[1], "a time not before the previous line")
        before, told = when, match.groupdict()
        zone = told.get("zone", "")
        if zone:
            region_of(zone, cloud, f"{place}: zone")
        kind = ("", 0.0)
        if "type" in told:
            kind = (accelerator(told["type"], f"{place}: type"), count(told["n"], f"{place}: GPU(s)"))
        yield _Line(place, when, what, told.get("id", ""), zone, kind)


def _slots(lines: list[_Line]) -> dict[str, _Slot]:
    """Slot of each instance id.

    AWS gives each instance a new id, and instances of one zone and kind share a slot. Google reuses ids.
    """
    by_kind: dict[tuple[str, tuple[str, float]], _Slot] = {}
    slots: dict[str, _Slot] = {}
    for line in lines:
        if line.what == "created":
            slot = by_kind.setdefault((line.zone, line.kind), _Slot(line.zone, line.kind))
            if slots.setdefault(line.id, slot) is not slot:
                known = slots[line.id]
                found = f"{line.kind[1]:g} {line.kind[0]} in {line.zone}"
                raise InputError(line.place, found, f"{known.kind[1]:g} {known.kind[0]} in {known.zone}, as before")
    for line in lines:
        if line.what == "gone" and line.id not in slots:  # requested repeatedly, never granted
            slots[line.id] = _Slot(line.zone, ("", 1.0))
    return slots


def _take(line: _Line, slots: dict[str, _Slot]) -> None:
    if line.what == "refused kind":
        for slot in {id(s): s for s in slots.values() if s.kind == line.kind and s.since_s is None}.values():
            slot.refused_s.append(line.when)
        return
    if line.id not in slots:
        raise InputError(
            f"{line.place}: instance", repr(line.id[:40]), "an instance that was created earlier in the log"
        )
    slot = slots[line.id]
    if line.what == "created":
        slot.end(line.when, preempted=True)
        slot.since_s = line.when
    elif line.what == "gone":
        slot.end(line.when, preempted=True)
    elif line.what == "refused":
        slot.refused_s.append(line.when)
    elif line.what == "running" and slot.since_s is None:
        raise InputError(f"{line.place}: instance", f"{line.id} running", "an instance that was granted and not lost")
