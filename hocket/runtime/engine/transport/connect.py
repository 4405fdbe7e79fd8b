"""Connections between workers of one machine, to share memory.

Linux chooses the names of the sockets. A name is valid in one network namespace, so workers in separate namespaces
communicate over their network. Only processes of the same user connect.
"""

import os
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from hocket.runtime.engine.transport.shared_memory import Inbox, Outbox

_DRAWN_BYTES = 16
_HELLO = struct.Struct(f"={_DRAWN_BYTES}sI")  # the listener's random token, the connecting rank
_PEER = struct.Struct("=iII")  # process, user, group
_NAME_BYTES = 108  # the kernel's limit


def connect(pairs: Sequence[tuple[int, int]]) -> tuple[dict[int, Outbox], dict[int, Inbox], frozenset[tuple[int, int]]]:
    """Connect the pairs of workers that can share memory.

    This is a collective call of the default group, with the same pairs on all ranks.

    Arguments:
        pairs: (sending rank, receiving rank), of the default group.

    Returns:
        This worker's outboxes by receiving rank, its inboxes by sending rank, and the connected pairs. The connected
        pairs are the same on every worker.
    """
    if not pairs:
        return {}, {}, frozenset()
    rank, outboxes, inboxes = dist.get_rank(), dict[int, Outbox](), dict[int, Inbox]()
    listener = _listener(len(pairs))
    # Names are unique only within a network namespace, so a random token identifies a worker.
    drawn = secrets.token_bytes(_DRAWN_BYTES)
    name = listener.getsockname() if listener is not None else b""
    own = torch.tensor([*drawn, len(name), *name.ljust(_NAME_BYTES)], dtype=torch.uint8)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    for source, target in pairs:
        if source == rank and listener is not None:
            theirs = bytes(gathered[target].tolist())
            there, length = theirs[:_DRAWN_BYTES], theirs[_DRAWN_BYTES]
            connection = _connected(theirs[_DRAWN_BYTES + 1 :][:length], _HELLO.pack(there, rank))
            if connection is not None:
                outboxes[target] = Outbox(connection)
    dist.barrier()  # all connections have been requested
    if listener is not None:
        for connection in _accepted(listener):
            there, source = _hello(connection)
            if there == drawn:
                _limit(connection)
                inboxes[source] = Inbox(connection)
            else:
                connection.close()
        listener.close()
    came = torch.tensor([target == rank and source in inboxes for source, target in pairs], dtype=torch.uint8)
    dist.all_reduce(came)
    joined = frozenset(pair for pair, there in zip(pairs, came.tolist(), strict=True) if there)
    return {target: box for target, box in outboxes.items() if (rank, target) in joined}, inboxes, joined


def can_share() -> bool:
    """True if workers of this machine can share memory."""
    return hasattr(os, "memfd_create") and hasattr(socket, "SO_PEERCRED")


def _listener(count: int) -> socket.socket | None:
    """Create a listening socket; None if the system does not support shared memory.

    Arguments:
        count: maximum number of pending connections.
    """
    if not can_share():
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.bind("")  # the kernel chooses a name
    found.listen(max(1, count))
    found.setblocking(False)
    return found


def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield pending connections of processes of this user."""
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        if _is_ours(connection):
            connection.setblocking(False)  # a connecting worker sends its greeting at once
            yield connection
        else:
            connection.close()


def _connected(name: bytes, hello: bytes) -> socket.socket | None:
    """Connect to a worker and send it a greeting.

    Arguments:
        name: name of the worker's socket.
        hello: the greeting, see `_HELLO`.

    Returns:
        The connection; None if the worker is not on this machine, or is a process of another user.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        found.connect(name)
        if _is_ours(found):
            _limit(found)
            found.send(hello)
            return found
    except OSError:
        pass
    found.close()
    return None


def _hello(connection: socket.socket) -> tuple[bytes, int]:
    """Read a greeting: the wanted worker's token and the sender's rank.

    Without a valid greeting the token is empty.
    """
    try:
        there, source = _HELLO.unpack(connection.recv(_HELLO.size))
        return there, source
    except (OSError, struct.error):
        return b"", -1


def _is_ours(connection: socket.socket) -> bool:
    """True if the other end is a process of the same user."""
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(user == os.getuid())


def _limit(connection: socket.socket) -> None:
    """Make a connection blocking, with torch's default timeout of process groups."""
    connection.setblocking(True)
    seconds = int(default_pg_timeout.total_seconds())
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
