"""Bytes of living storages, counted exactly."""

import torch

from hocket.profiling.capture.storage_tracker import StorageTracker, unique_bytes


def test_forward_and_backward():
    """A product, its saved result and gradients count while they exist.

    Views and old tensors do not count.
    """
    w = torch.randn(100, 50, requires_grad=True)
    x = torch.randn(10, 100)
    with StorageTracker() as tracker:
        y = (x @ w).relu()
        assert tracker.live_bytes == 10 * 50 * 4
        view = y.view(50, 10).t()
        assert tracker.live_bytes == 10 * 50 * 4
        loss = view.sum()
        del y, view
        assert tracker.live_bytes == 10 * 50 * 4 + 4
        loss.backward()
        assert tracker.live_bytes == 100 * 50 * 4 + 4
        assert tracker.peak_bytes > tracker.live_bytes
        w.grad = None
        del loss
        assert tracker.live_bytes == 0
        tracker.reset_peak()
        assert tracker.peak_bytes == 0


def test_registered_tensors_count_until_they_die():
    """Older storages count after they are registered, each once."""
    a = torch.zeros(8)
    with StorageTracker() as tracker:
        tracker.register([a, a.view(2, 4)])
        assert tracker.live_bytes == 32
        a.add_(1)
        assert tracker.live_bytes == 32
        del a
        assert tracker.live_bytes == 0


def test_unique_bytes():
    """Views of one storage are counted once, by the whole storage."""
    a = torch.zeros(8)
    assert unique_bytes([a, a[:2], torch.zeros(1)]) == 36


def test_storages_that_become_larger_or_smaller_count_anew():
    """Resized storages count again when registered; freed ones do not count."""
    a = torch.zeros(8)
    with StorageTracker() as tracker:
        tracker.register([a])
        a.untyped_storage().resize_(0)
        tracker.register([a])
        assert tracker.live_bytes == 0
        a.untyped_storage().resize_(32)
        tracker.register([a[:2]])
        assert (tracker.live_bytes, tracker.peak_bytes) == (32, 32)
        del a
        assert tracker.live_bytes == 0
