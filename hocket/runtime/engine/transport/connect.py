"""Find the workers that share a machine, and connect them.

They share memory over these connections.

Rules of this file: sockets have names that the kernel chooses, known in one network namespace: workers that shall talk over a
network of their own do. Only processes of one user connect.
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
_HELLO = struct.Struct(f"={_DRAWN_BYTES}sI")  # what the listener has drawn, the rank of who connects
_PEER = struct.Struct("=iII")  # process, user, group
_NAME_BYTES = 108  # the most that the kernel allows


def connect(pairs: Sequence[tuple[int, int]]) -> tuple[dict[int, Outbox], dict[int, Inbox], frozenset[tuple[int, int]]]:
    """Connect the pairs of workers that can share memory.

    A collective call of the default group, with the same pairs on all ranks.

    Arguments:
        pairs: (rank that sends, rank that receives).

    Returns:
        This worker's connections by the peer's rank, and the pairs that are connected, the same on every worker.
    """
    if not pairs:
        return {}, {}, frozenset()
    rank, outboxes, inboxes = dist.get_rank(), dict[int, Outbox](), dict[int, Inbox]()
    listener = _listener(len(pairs))
    # Names are unique in one network namespace only: a worker is known by what it has drawn.
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
    dist.barrier()  # whoever wants to connect has
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
    """A socket to connect to; None where the system has none of this kind."""
    if not can_share():
        return None
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.bind("")  # the kernel chooses a name
    found.listen(max(1, count))
    found.setblocking(False)
    return found


def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield connections of processes of this user that sent the greeting."""
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        if _is_ours(connection):
            connection.setblocking(False)  # who connects says hello at once
            yield connection
        else:
            connection.close()


def _connected(name: bytes, hello: bytes) -> socket.socket | None:
    """A connection to the worker of this name; None if it is not here."""
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
    """Whom somebody wants to reach, and its own rank; nobody where it has said nothing of the kind."""
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
    """Wait for a peer, but no longer than the process group does."""
    connection.setblocking(True)
    seconds = int(default_pg_timeout.total_seconds())
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
