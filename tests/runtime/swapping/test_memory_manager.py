"""Memory manager: states, budgets, buffers and shared storages.

The tests use small graphs of autograd.
"""

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import InputError, InternalError, MemoryExceeded
from hocket.program.instruction import Value, ValueKind
from hocket.runtime.stage.stash import Stash
from hocket.runtime.swapping.host_buffers import HostBuffers
from hocket.runtime.swapping.memory_manager import MemoryManager
from hocket.runtime.swapping.states import ValueState

KIB = 1024
ACT, OTHER, STASH = (
    Value(ValueKind.ACTIVATION, 0, 0, 1),
    Value(ValueKind.ACTIVATION, 0, 1, 1),
    Value(ValueKind.STASH, 0, 0),
)


def out(memory: MemoryManager, value: Value) -> Value:
    """Swap a value out as the next copy; returns its name."""
    copy = value._replace(copy=value.copy + 1)
    memory.swap_out(value, copy, (value,))
    return copy


def back(memory: MemoryManager, copy: Value) -> Value:
    """Swap a copy in as the next one, and let the host's go; returns its name."""
    value = copy._replace(copy=copy.copy + 1)
    memory.swap_in(copy, value, (copy,))
    return value


def border(size: int = 256) -> tuple[Tensor, ...]:
    """A border of one tensor, of 4 bytes a number."""
    return (torch.randn(size),)


def test_a_value_goes_out_and_comes_back_in_the_same_storage():
    """A value is swapped out and back into the same storage.

    It is bit-identical, NaNs included. Its memory is free meanwhile, and aliases have the values again.
    """
    memory, thing = MemoryManager(0, "cpu"), border()
    thing[0][3] = float("nan")
    alias, expected = thing[0].view(16, 16).t(), thing[0].clone()
    memory.wrote(ACT, thing)
    assert memory.state(ACT) is ValueState.DEVICE
    copy = out(memory, ACT)
    assert memory.state(ACT) is ValueState.HOST
    assert (memory.storages.there_bytes, memory.host.used_bytes) == (0, KIB)
    assert thing[0].untyped_storage().nbytes() == 0
    value = back(memory, copy)
    assert memory.state(ACT) is ValueState.DEVICE
    assert (memory.storages.there_bytes, memory.host.used_bytes) == (KIB, 0)
    assert torch.equal(alias.t().reshape(-1).view(torch.int32), expected.view(torch.int32))
    memory.freed(value)
    assert memory.state(ACT) is ValueState.DROPPED
    assert memory.out_bytes == memory.in_bytes == {ValueKind.ACTIVATION: KIB}


def test_a_clean_value_is_dropped_and_comes_back_from_the_same_copy():
    """The copy on the host stays: one write, two reads."""
    memory, thing = MemoryManager(0, "cpu"), border()
    expected = thing[0].clone()
    memory.wrote(ACT, thing)
    copy = out(memory, ACT)
    for number in (2, 4):
        value = ACT._replace(copy=number)
        memory.swap_in(copy, value)
        assert memory.state(ACT) is ValueState.BOTH
        assert torch.equal(thing[0], expected)
        memory.freed(value)
        assert memory.state(ACT) is ValueState.HOST
    assert (memory.out_bytes[ValueKind.ACTIVATION], memory.in_bytes[ValueKind.ACTIVATION]) == (KIB, 2 * KIB)


def test_every_byte_waits_for_the_link():
    """Every swapped byte waits for the link, in both directions.

    Values are moved in parts of at most 1 MiB, so others that share the link do not wait for all of a large value.
    """
    parts: dict[str, list[int]] = {"out": [], "in": []}
    memory = MemoryManager(0, "cpu", pace_out=parts["out"].append, pace_in=parts["in"].append)
    memory.wrote(ACT, border(KIB * KIB // 2 + 1))
    back(memory, out(memory, ACT))
    assert parts["out"] == parts["in"] == [KIB * KIB, KIB * KIB, 4]


def test_illegal_changes_name_the_value_and_where_it_is():
    """Illegal changes of state name the value and its place.

    Cases: swapping in twice, swapping out a value on the host, using a freed value, and using a value with an heir in
    its memory.
    """
    memory, thing = MemoryManager(0, "cpu"), border()
    memory.wrote(ACT, thing)
    with pytest.raises(InternalError, match=r"act\.0>1#0 is written, and act\.0>1#0 is on the device"):
        memory.wrote(ACT, thing)
    copy = out(memory, ACT)
    with pytest.raises(InternalError, match=r"act\.0>1#0 is on the host: it cannot be on its way out"):
        memory.swap_out(ACT, ACT._replace(copy=3))
    with pytest.raises(InternalError, match=r"act\.0>1#0 is freed, and act\.0>1#0 is on the host"):
        memory.freed(ACT)
    value = ACT._replace(copy=2)
    memory.swap_in(copy, value)
    with pytest.raises(InternalError, match=r"on the device and the host: it cannot be on its way in"):
        memory.swap_in(copy, ACT._replace(copy=4))
    memory.freed(value, inherited=True)
    with pytest.raises(InternalError, match=r"a later value uses its memory: it cannot be on its way in"):
        memory.swap_in(copy, ACT._replace(copy=4))
    memory.freed(copy)
    with pytest.raises(InternalError, match=r"device 0: act\.0>1#0~1 is dropped, or was never made"):
        memory.swap_in(copy, ACT._replace(copy=4))


def test_a_storage_stays_until_the_last_value_in_it_is_out():
    """A storage stays until its last value is out.

    The stage's output is also kept by autograd. If only one of them is out, nothing is freed.
    """
    memory, stash = MemoryManager(0, "cpu"), Stash()
    x = torch.randn(64, requires_grad=True)
    with stash.watching((x,)):
        y = x.exp()
    memory.wrote(STASH, stash)
    memory.wrote(ACT, (y.detach(),))
    assert memory.storages.there_bytes == y.nbytes
    one = out(memory, ACT)
    assert memory.storages.there_bytes == y.nbytes
    two = out(memory, STASH)
    assert memory.storages.there_bytes == 0
    back(memory, two)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach().exp())
    back(memory, one)


def test_a_storage_to_which_a_value_comes_back_is_emptied_when_the_last_one_is_dropped():
    """A storage is freed with its last value, although another value returns.

    One gradient is used for both branches of a sum. One of its values is out, and the other was used. A value only on
    the host has no device memory.
    """
    memory, thing = MemoryManager(0, "cpu", KIB), border()
    expected = thing[0].clone()
    memory.wrote(ACT, thing)
    memory.wrote(OTHER, thing)
    copy = out(memory, ACT)
    assert memory.storages.there_bytes == KIB
    memory.freed(OTHER)
    assert memory.storages.there_bytes == 0
    back(memory, copy)
    assert torch.equal(thing[0], expected)


def test_what_goes_from_host_to_host_takes_no_device_memory_until_it_comes_in():
    """A value sent from host to host has no device memory until it comes in.

    This holds for any strides and types. The sender's buffer exists until it is sent, and the reader's buffer from
    then on. Both count in their budgets.
    """
    maker, reader = MemoryManager(0, "cpu"), MemoryManager(1, "cpu", 2 * KIB)
    thing = (torch.randn(16, 8).t(), torch.ones(3, dtype=torch.uint8), torch.arange(5), torch.zeros(0))
    expected = [tensor.clone() for tensor in thing]
    maker.wrote(ACT, thing)
    sent = ACT._replace(copy=1)
    message = maker.carried(maker.swap_out(ACT, sent, (ACT,)))
    assert thing[0].untyped_storage().nbytes() == 0
    assert all(map(torch.equal, message, expected))
    reader.received(sent, message)
    maker.freed(sent)
    assert (maker.host.used_bytes, maker.storages.there_bytes, reader.storages.there_bytes) == (0, 0, 0)
    assert reader.host.used_bytes == 512 + 3 + 40, "no byte more than they have"
    found = reader.swap_in(sent, ACT._replace(copy=2), (sent,))
    assert all(map(torch.equal, found, expected))
    assert found[0].stride() == thing[0].stride()
    assert (reader.storages.there_bytes, reader.host.used_bytes) == (555, 0)
    large = OTHER._replace(copy=1)
    reader.received(large, border(512))
    with pytest.raises(MemoryExceeded, match=r"device 1: act\.0>1#1: found 2\.00 KiB"):
        reader.swap_in(large, OTHER._replace(copy=2))


@pytest.mark.parametrize("first", [True, False])
def test_a_graph_that_was_out_gives_the_same_gradients(first):
    """A graph that was swapped out gives the same gradients.

    This holds for all tensors that autograd keeps of a small block, dropout masks and indices included, in any order
    of return.
    """
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Embedding(10, 8), nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(8), nn.Softmax(-1)
    )
    block.append(nn.Linear(8, 8))
    block[-1].weight = block[1].weight  # tied
    words = torch.randint(10, (4, 3))

    def run(swapped: bool) -> dict[str, Tensor]:
        torch.manual_seed(1)
        memory, stash = MemoryManager(0, "cpu"), Stash()
        block.zero_grad()
        with stash.watching((words, *block.parameters())):
            loss = (block(words) ** 2).sum()
        if swapped:
            memory.wrote(STASH, stash)
            memory.wrote(ACT, (loss.detach(),))
            copies = [out(memory, STASH), out(memory, ACT)]
            assert memory.storages.there_bytes == 0
            assert memory.out_bytes[ValueKind.STASH] > 500
            for copy in copies if first else reversed(copies):
                back(memory, copy)
        loss.backward()
        return {name: p.grad.clone() for name, p in block.named_parameters() if p.grad is not None}

    plain, found = run(False), run(True)
    assert set(plain) == set(found)
    assert all(torch.equal(found[name], gradient) for name, gradient in plain.items())


def test_what_stays_is_never_emptied():
    """A constant that a stage hands on is a value and a buffer."""
    memory, constant = MemoryManager(0, "cpu"), torch.arange(8.0)
    memory.storages.keep([constant])
    memory.wrote(ACT, (constant[2:4],))
    out(memory, ACT)
    assert torch.equal(constant, torch.arange(8.0))
    assert memory.out_bytes[ValueKind.ACTIVATION] == 8


def test_parts_of_a_storage_are_what_is_moved():
    """Only the used parts of a storage are moved.

    Gaps between tensors are not written, and are zero after the return.
    """
    memory, flat = MemoryManager(0, "cpu"), torch.randn(100)
    expected = flat.clone()
    memory.wrote(ACT, (flat[:10], flat[20:50], flat[40:60].view(4, 5)))
    back(memory, out(memory, ACT))
    assert memory.in_bytes[ValueKind.ACTIVATION] == 4 * (10 + 40)
    assert torch.equal(flat[:10], expected[:10])
    assert torch.equal(flat[20:60], expected[20:60])
    assert not flat[10:20].any()
    assert not flat[60:].any()


def test_budgets_name_the_tensor_and_what_is_there():
    """On the device what is made and what comes back; on the host what goes out."""
    memory = MemoryManager(3, "cpu", 1.5 * KIB, KIB)
    first, second = border(), border()
    memory.wrote(ACT, first)
    with pytest.raises(
        MemoryExceeded,
        match=r"device 3: act\.0>1#1: found 1.00 KiB, in addition to 1.00 KiB .*act\.0>1#0 1.00 KiB.*1.50 KiB",
    ):
        memory.wrote(OTHER, second)
    memory = MemoryManager(3, "cpu", 1.5 * KIB, KIB)
    memory.wrote(ACT, first)
    copy = out(memory, ACT)
    memory.wrote(OTHER, second)
    with pytest.raises(
        MemoryExceeded, match=r"device 3: act\.0>1#0: .*in addition to 1.00 KiB already there \(act\.0>1#1"
    ):
        memory.swap_in(copy, ACT._replace(copy=2))
    memory, third = MemoryManager(3, "cpu", 2 * KIB, KIB), border()
    memory.wrote(ACT, third)
    memory.wrote(OTHER, second)
    out(memory, ACT)
    with pytest.raises(MemoryExceeded, match=r"host of device 3: act\.0>1#1: .*at most 1.00 KiB on the host") as found:
        out(memory, OTHER)
    assert found.value.size_bytes == KIB


def test_memory_counts_until_nobody_holds_it():
    """Memory counts until nothing holds it.

    A freed value that is still held is on the device and counts in the budget.
    """
    memory, thing = MemoryManager(0, "cpu"), border()
    memory.wrote(ACT, thing)
    memory.freed(ACT)
    assert (memory.state(ACT), memory.storages.there_bytes) == (ValueState.DROPPED, KIB)
    del thing
    assert memory.storages.there_bytes == 0
    assert memory.storages.peak_bytes == KIB


def test_memory_that_a_message_is_made_of_stays_until_it_is_sent():
    """Memory of a message stays until the message is sent.

    A stage's stash may share the memory of a border, as after a ReLU. Here the stash is swapped out during the
    transfer of the border.
    """
    for goes_first in (True, False):
        memory, border_sent = MemoryManager(0, "cpu"), border()
        expected = border_sent[0].clone()
        memory.wrote(ACT, border_sent)
        memory.wrote(OTHER, (border_sent[0].view(16, 16),))
        message = border_sent[0].view(torch.uint8)
        memory.left(ACT, sending=True)
        copy = out(memory, OTHER) if goes_first else OTHER
        assert memory.storages.there_bytes == KIB
        assert torch.equal(message.view(torch.float32), expected)
        memory.sent(ACT)
        copy = copy if goes_first else out(memory, OTHER)
        assert memory.storages.there_bytes == 0
        assert message.untyped_storage().nbytes() == 0
        back(memory, copy)
        assert torch.equal(border_sent[0], expected)


def test_what_has_come_back_stays_when_the_message_is_over():
    """The stash was out and is in again before its border was sent."""
    memory, both = MemoryManager(0, "cpu"), border()
    expected = both[0].clone()
    memory.wrote(ACT, both)
    memory.wrote(OTHER, both)
    memory.left(ACT, sending=True)
    back(memory, out(memory, OTHER))
    memory.sent(ACT)
    assert memory.storages.there_bytes == KIB
    assert torch.equal(both[0], expected)


def test_host_buffers_are_used_again_by_size_and_go_when_others_need_room():
    """Host buffers are used again by size, and freed for other sizes.

    In the steady state, nothing is allocated.
    """

    def refuse(size: int, there: int) -> Exception:
        return AssertionError(f"{size} beside {there}")

    buffers = HostBuffers(pinned=False, budget_bytes=100)
    first = buffers.take(60, refuse)
    place = first.data_ptr()
    buffers.give_back(first)
    del first
    assert buffers.take(60, refuse).data_ptr() == place
    small = buffers.take(40, refuse)
    buffers.give_back(small)
    assert (buffers.used_bytes, buffers.held_bytes, buffers.peak_bytes) == (60, 100, 100)
    buffers.take(30, refuse)
    assert (buffers.used_bytes, buffers.held_bytes) == (90, 90)


class Locks:
    """Record of CUDA's requests to pin and unpin memory."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.locked = code, dict[int, int]()

    def cudaHostRegister(self, address: int, size: int, _: int) -> int:
        """Lock."""
        self.locked[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        """Unlock."""
        del self.locked[address]
        return 0


def test_locked_buffers_take_what_they_hold_and_are_unlocked_when_they_go(monkeypatch):
    """Pinned buffers have their exact size and are unpinned when freed.

    torch's allocator of pinned memory would use and keep the next power of two. Pages are pinned as long as any view
    exists.
    """
    locks = Locks()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: locks)
    buffers = HostBuffers(pinned=True, budget_bytes=7000)
    first = buffers.take(5000, lambda *_: AssertionError())
    assert locks.locked == {first.data_ptr(): 5000}
    view = first[4000:].fill_(3)
    buffers.give_back(first)
    del first
    second = buffers.take(4000, lambda *_: AssertionError())
    assert sorted(locks.locked.values()) == [4000, 5000]
    assert int(view.sum()) == 3000
    del view
    assert locks.locked == {second.data_ptr(): 4000}


def test_memory_that_cannot_be_locked_is_an_error(monkeypatch):
    """With CUDA's reason."""
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Locks(2))
    with pytest.raises(InputError, match=r"CUDA's error 2 for 4\.88 KiB of the host; expected page-locked host memory"):
        HostBuffers(pinned=True).take(5000, lambda *_: AssertionError())
