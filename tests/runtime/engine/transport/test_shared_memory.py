"""Messages through shared memory.

Messages arrive in order, buffers wait for their last tensor, and closed connections are noticed.
"""

import socket
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hocket.runtime.engine.transport.shared_memory import Inbox, Outbox
from tests.tiers import examples


@pytest.fixture
def mail() -> tuple[Outbox, Inbox]:
    """Both ends of a connection."""
    return connected()


def connected() -> tuple[Outbox, Inbox]:
    """Both ends of a connection, in one process."""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Outbox(a), Inbox(b)


def limit(end: Outbox | Inbox) -> None:
    """Wait for a millisecond and no longer."""
    end._connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVTIMEO, (0).to_bytes(8, "little") + (1000).to_bytes(8, "little")
    )


def message(number: int, size_bytes: int) -> Tensor:
    """Bytes that no other message has."""
    return torch.from_numpy(np.random.default_rng(number).integers(0, 256, size_bytes, dtype=np.uint8))


def test_a_send_is_over_at_once_where_the_receive_is_posted(mail):
    """A send is complete at once if its receive is posted.

    No side waits, and no byte is copied twice.
    """
    outbox, inbox = mail
    buffer, work = inbox.post(40)
    assert outbox.send(torch.arange(10, dtype=torch.float32)) is None
    work.wait()
    assert buffer.view(torch.float32).tolist() == list(range(10))


def test_a_send_waits_for_its_receive(mail):
    """A send waits for its receive.

    This also holds if another thread waits. The message may be shorter than the buffer.
    """
    outbox, inbox = mail
    work = outbox.send(message(1, 100))
    assert work is not None
    waiting = threading.Thread(target=work.wait, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    buffer, arrived = inbox.post(128)
    arrived.wait()
    waiting.join(5)
    assert not waiting.is_alive()
    assert buffer[:100].equal(message(1, 100))


def test_a_later_send_does_not_overtake_one_that_waits(mail):
    """A later send does not overtake a waiting send.

    This holds even if its receive is posted: the first post belongs to the first send.
    """
    outbox, inbox = mail
    first = outbox.send(message(1, 16))
    posts = [inbox.post(16)[0] for _ in range(2)]
    second = outbox.send(message(2, 16))
    assert first is not None
    assert second is not None
    first.wait()
    second.wait()
    assert [post.tolist() for post in posts] == [message(number, 16).tolist() for number in (1, 2)]


def test_whoever_waits_for_a_later_message_waits_for_that_one(mail):
    """A wait for a later message waits for that message.

    Compute takes some messages before others that were posted earlier. The arrival of an earlier message does not end
    the wait.
    """
    outbox, inbox = mail
    limit(inbox)
    (_, first), (buffer, second) = inbox.post(16), inbox.post(16)
    outbox.send(message(1, 16))
    with pytest.raises(RuntimeError, match="in time"):
        second.wait()
    outbox.send(message(2, 16))
    second.wait()
    assert buffer.equal(message(2, 16))
    first.wait()  # it came long ago


def test_a_buffer_is_posted_again_when_its_last_tensor_is_gone(mail):
    """A buffer is posted again after its last tensor is gone.

    Views of any type keep it. Afterwards the next message of the same size needs no new memory.
    """
    outbox, inbox = mail
    buffer, _ = inbox.post(64)
    outbox.send(message(1, 64))
    kept = buffer.view(torch.float32)[4:].detach()
    del buffer
    other, _ = inbox.post(64)
    outbox.send(message(2, 64))
    assert kept.view(torch.uint8).equal(message(1, 64)[16:])
    assert other.equal(message(2, 64))
    where = kept.data_ptr() - 16
    del kept
    assert inbox.post(64)[0].data_ptr() == where


@examples(60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 8, 64, 4096, 70_000]), min_size=1, max_size=12),
    orders=st.lists(st.booleans(), min_size=40, max_size=40),
    kept=st.integers(0, 3),
)
def test_whatever_the_order_every_message_arrives(sizes, orders, kept):
    """Every message arrives, for any order of sends and receives.

    A received message stays unchanged while it is held.
    """
    outbox, inbox = connected()
    held: list[tuple[int, Tensor]] = []
    works, posts, sent, posted = [], [], 0, 0
    for receives in (*orders, *[True] * len(sizes), *[False] * len(sizes)):
        if receives and posted < len(sizes):
            posts.append((posted, inbox.post(sizes[posted])))
            posted += 1
        elif not receives and sent < len(sizes):
            work = outbox.send(message(sent, sizes[sent]))
            sent += 1
            if work is not None:
                works.append((sent, work))
        while works and works[0][0] <= posted:
            works.pop(0)[1].wait()
        while posts and posts[0][0] < sent - len(works):
            number, (buffer, arrived) = posts.pop(0)
            arrived.wait()
            held.append((number, buffer))
            del buffer
        for number, buffer in held:
            assert buffer.equal(message(number, sizes[number]))
        del held[: max(0, len(held) - kept)]
    assert sent == posted == len(sizes)
    assert not posts
    assert not works


@pytest.mark.parametrize("end", ["post", "wait", "send", "finish"])
def test_the_end_of_the_peer_is_noticed(mail, end):
    """The end of the peer is noticed at once, not after a time limit.

    This holds for every operation of this side.
    """
    outbox, inbox = mail
    if end in ("post", "wait"):
        _, work = inbox.post(8)
        outbox._connection.close()
        with pytest.raises(RuntimeError, match="connection"):
            work.wait() if end == "wait" else inbox.post(8)
    else:
        work = outbox.send(message(1, 8))
        inbox._connection.close()
        with pytest.raises(RuntimeError, match="connection"):
            work.wait() if end == "finish" else Outbox(outbox._connection).send(message(1, 8))


def test_a_peer_that_says_nothing_is_given_up(mail):
    """After the time limit of the socket."""
    outbox, inbox = mail
    limit(outbox)
    limit(inbox)
    _, arriving = inbox.post(8)
    with pytest.raises(RuntimeError, match="in time"):
        arriving.wait()
    outbox.send(message(1, 8))
    work = outbox.send(message(2, 8))
    with pytest.raises(RuntimeError, match="in time"):
        work.wait()
