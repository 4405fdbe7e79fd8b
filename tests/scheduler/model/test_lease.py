"""Leases: increasing numbers, and renewal without change."""

import pytest

from hocket.scheduler.core.events import Preempt, Renew, Start
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.lease import Lease
from tests.scheduler.helpers.drive import driver, even


def test_a_lease_does_not_change() -> None:
    """Leases are immutable and compare by value."""
    lease = Lease(3, ("a", "b"), 0, (4, 5), 60.0)
    assert lease == Lease(3, ("a", "b"), 0, (4, 5), 60.0)
    with pytest.raises(AttributeError):
        lease.workers = (6, 7)  # type: ignore[misc]


def test_a_later_lease_has_a_larger_number_and_a_number_is_given_once() -> None:
    """Lease numbers increase and are unique, in a crowded cluster over 100 rounds.

    An outdated worker can therefore be told from the current one.
    """
    drive = driver((3, 2), even)
    for k in range(8):
        drive.arrive([(Job(str(k), "any", 1e9, 1 + k % 2), (1.0, 0.5))])
    drive.rounds(100)
    numbers = [command.lease.number for _, command in drive.said if isinstance(command, Start)]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 50
    for name in map(str, range(8)):
        own = [c.lease.number for _, c in drive.said if isinstance(c, Start) and name in c.lease.jobs]
        assert own == sorted(own)


def test_a_lease_is_renewed_until_it_ends_and_never_after() -> None:
    """A lease is started once, renewed any number of times, and preempted once."""
    drive = driver((3, 2), even)
    for k in range(8):
        drive.arrive([(Job(str(k), "any", 1e9), (1.0, 0.5))])
    drive.rounds(100)
    open_: set[int] = set()
    ended: set[int] = set()
    for _, command in drive.said:
        match command:
            case Start(lease):
                assert lease.number not in open_ | ended
                open_.add(lease.number)
            case Renew(leases):
                assert {lease.number for lease in leases} <= open_
            case Preempt(lease):
                open_.remove(lease.number)
                ended.add(lease.number)
    assert ended
    assert open_ == set(drive.held)
