"""Shared memory: messages between workers of the same machine.

The receiver owns the memory. With every receive that it posts, it names a buffer. The sender copies the message into
the buffer and notifies the receiver. So a message is copied once, by the sender's own thread if the receive is posted
already, and the sender knows when a send is complete. A received message stays in its buffer until the last tensor of
it is freed; then the buffer can be posted again.

Buffers are memory files without a name, known only to the two processes. So nothing is left behind, however a worker
ends. Its peer then reads the end of the connection.
"""

import mmap
import os
import socket
import struct
import weakref
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CREDIT = struct.Struct("=QQ")  # number of a buffer, its bytes
_FILE = struct.Struct("=i")
_HERE = b"\1"


class SharedTransfer(Protocol):
    """A transfer that has begun."""

    def wait(self) -> object:
        """Wait until the transfer is complete.

        Raises:
            RuntimeError: the peer was lost, or did not answer in time.
        """


class _End:
    """One end of a connection; it closes the connection when it is freed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __del__(self) -> None:
        self._connection.close()


class Inbox(_End):
    """Receiving end of one peer's messages; receives complete in the order of `post`."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._posted = self._arrived = 0
        self._free: dict[int, list[tuple[int, NDArray[np.uint8]]]] = {}
        self._watched: dict[int, weakref.ref[NDArray[np.uint8]]] = {}

    def post(self, size_bytes: int) -> tuple[Tensor, SharedTransfer]:
        """Begin to receive a message of `size_bytes` bytes.

        Returns:
            Buffer of the message, and the pending receive.

        Raises:
            RuntimeError: the peer was lost.
        """
        free = self._free.setdefault(size_bytes, [])
        made: int | None = None
        if free:
            number, base = free.pop()
        else:
            number = len(self._watched)
            made = os.memfd_create("hocket", os.MFD_CLOEXEC)
            os.ftruncate(made, max(1, size_bytes))
            base = np.frombuffer(mmap.mmap(made, max(1, size_bytes)), dtype=np.uint8)
        view = base[:size_bytes]
        # A tensor keeps a reference to the array that it was made from. When the array is freed, the message is unused.
        self._watched[number] = weakref.ref(view, lambda _: free.append((number, base)))
        try:
            credit = _CREDIT.pack(number, size_bytes)
            if made is None:
                self._connection.send(credit)
            else:
                socket.send_fds(self._connection, [credit], [made])
        except OSError as error:
            raise _lost(error) from error
        finally:
            if made is not None:
                os.close(made)
        self._posted += 1
        return torch.from_numpy(view), _Arriving(self, self._posted)

    def wait(self, count: int) -> None:
        """Wait until `count` messages have arrived since the connection began.

        Raises:
            RuntimeError: the peer was lost, or did not answer in time.
        """
        while self._arrived < count:
            try:
                said = self._connection.recv(len(_HERE))
            except OSError as error:
                raise _lost(error) from error
            if not said:
                raise RuntimeError(_CLOSED)
            self._arrived += 1


class _Arriving:
    """Pending receive.

    The compute thread may wait for it before it waits for a receive that was posted earlier.
    """

    def __init__(self, inbox: Inbox, number: int) -> None:
        self._inbox, self._number = inbox, number

    def wait(self) -> None:
        """Wait until the message has arrived."""
        self._inbox.wait(self._number)


class Outbox(_End):
    """Sending end of messages to one peer; they arrive in the order of `send`."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._buffers: dict[int, Tensor] = {}
        # One thread sends. Another thread waits for sends that could not complete at once. Each has its own count.
        self._left, self._waited = 0, 0

    def send(self, message: Tensor, at: int = 0) -> SharedTransfer | None:
        """Begin to send a contiguous tensor.

        Arguments:
            at: byte of the peer's buffer at which the message begins.

        Returns:
            The pending send; None if it is complete.

        Raises:
            RuntimeError: the peer was lost.
        """
        if self._left == self._waited:
            buffer = self._posted(socket.MSG_DONTWAIT)
            if buffer is not None:
                self._copy(message, buffer, at)
                return None
        self._left += 1
        return _Leaving(self, message, at)

    def finish(self, message: Tensor, at: int = 0) -> None:
        """Finish a send that had to wait for the peer's receive.

        Sends must be finished in the order of the `send` calls.

        Arguments:
            message: the tensor that was passed to `send`.
            at: byte of the peer's buffer at which the message begins.

        Raises:
            RuntimeError: the peer was lost, or did not answer in time.
        """
        buffer = self._posted(0)
        if buffer is None:
            raise RuntimeError("no answer in time")
        self._copy(message, buffer, at)
        self._waited += 1

    def _posted(self, flags: int) -> Tensor | None:
        """Return the buffer of the peer's next receive; None if no receive is posted."""
        try:
            # socket.recv_fds does not pass the flags on.
            credit, beside, _, _ = self._connection.recvmsg(_CREDIT.size, socket.CMSG_LEN(_FILE.size), flags)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _lost(error) from error
        if not credit:
            raise RuntimeError(_CLOSED)
        number, size_bytes = _CREDIT.unpack(credit)
        for _, _, made in beside:
            (file,) = _FILE.unpack(made)
            self._buffers[number] = torch.frombuffer(mmap.mmap(file, max(1, size_bytes)), dtype=torch.uint8)
            os.close(file)
        return self._buffers[number]

    def _copy(self, message: Tensor, buffer: Tensor, at: int) -> None:
        if message.nbytes:
            buffer[at : at + message.nbytes].copy_(message.detach().reshape(-1).view(torch.uint8))
        try:
            self._connection.send(_HERE)
        except OSError as error:
            raise _lost(error) from error


class _Leaving:
    """Pending send; its receive is not posted yet."""

    def __init__(self, outbox: Outbox, message: Tensor, at: int) -> None:
        self._outbox, self._message, self._at = outbox, message, at

    def wait(self) -> None:
        """Wait until the message has been handed over."""
        self._outbox.finish(self._message, self._at)


_CLOSED = "connection closed by peer"


def _lost(error: OSError) -> RuntimeError:
    if isinstance(error, BlockingIOError):  # the socket's timeout
        return RuntimeError("no answer in time")
    return RuntimeError(f"connection lost: {error}")
