"""Accepted and refused connections between workers of one machine."""

import socket

import pytest

from hocket.runtime.engine.transport import connect
from hocket.runtime.engine.transport.connect import _HELLO, _accepted, _connected, _hello, _listener

DRAWN = b"0123456789abcdef"


@pytest.fixture
def listener():
    """A socket that somebody listens at."""
    found = _listener(4)
    if found is None:
        pytest.skip("this system has no sockets of this kind")
    yield found
    found.close()


def test_nobody_is_waited_for(listener):
    """Only who has connected is there."""
    assert list(_accepted(listener)) == []


def test_a_worker_says_whom_it_wants(listener):
    """A connecting worker names the worker that it wants, and itself.

    A name alone may belong to another worker in another network namespace.
    """
    near = _connected(listener.getsockname(), _HELLO.pack(DRAWN, 7))
    (far,) = _accepted(listener)
    assert _hello(far) == (DRAWN, 7)
    near.close()
    far.close()


@pytest.mark.parametrize("said", [b"", b"hello", _HELLO.pack(DRAWN, 7)[:-1]])
def test_who_says_something_else_is_nobody(listener, said):
    """Silence, another protocol and half a greeting end in nothing, without waiting."""
    near = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.connect(listener.getsockname())
    if said:
        near.send(said)
    (far,) = _accepted(listener)
    assert _hello(far) == (b"", -1)
    near.close()
    far.close()


def test_other_users_are_turned_away(listener, monkeypatch):
    """On both sides."""
    near = _connected(listener.getsockname(), _HELLO.pack(DRAWN, 7))
    monkeypatch.setattr(connect, "_is_ours", lambda connection: False)
    assert list(_accepted(listener)) == []
    assert _connected(listener.getsockname(), _HELLO.pack(DRAWN, 7)) is None
    near.close()


def test_a_name_that_nobody_has_is_no_connection():
    """An unknown name gives no connection, as on another machine."""
    assert _connected(b"\0nobody-has-this-name", b"hello") is None
