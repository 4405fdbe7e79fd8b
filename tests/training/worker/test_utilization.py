"""Model FLOPs utilization: operations of a step, peak rates of devices, and what a run says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.device_type import DeviceType
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.stage.device_type import peak_flops_per_s, peak_step_s
from hocket.training.train import train
from hocket.training.worker.monitor.summary_table import summary_table
from tests.system.tiny import Recorder, plan, write_job

CPU = torch.device("cpu")
CORE = DeviceType("my-core", 1e9, {"float64": 4e6}, 1e9)
# Multiplications and additions of the three linear layers, for 8 samples; three times, for forward and backward.
FLOPS = 3 * 8 * 2 * (6 * 8 + 8 * 8 + 8 * 3)


def cluster(kind: str, *types: DeviceType) -> Cluster:
    """A cluster of two devices of a type."""
    return Cluster("two", (Level("local", 2, 1e9),), kind, types=types)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_operations_are_those_of_the_matrix_products(tmp_path: Path, size: int) -> None:
    """Whatever the size of a microbatch; the rest is a few operations for each element."""
    captured = capture(load_job(write_job(tmp_path)), size)
    assert FLOPS <= captured.step_flops(8) < 1.5 * FLOPS
    assert captured.step_flops(16) == 2 * captured.step_flops(8)


def test_peak_rates_of_a_processor_are_those_that_a_user_describes() -> None:
    """The catalogue's core is a stand-in; a type without a rate for the data type is unknown, too."""
    assert peak_flops_per_s(cluster("my-core", CORE), 0, CPU, "float64") == 4e6
    assert peak_flops_per_s(cluster("my-core", CORE), 0, CPU, "float32") is None
    assert peak_flops_per_s(cluster("cpu-core"), 0, CPU, "float32") is None
    assert peak_flops_per_s(cluster("a100-80gb"), 0, CPU, "float32") is None
    own = replace(CORE, name="cpu-core")
    assert peak_flops_per_s(cluster("cpu-core", own), 1, CPU, "float64") == 4e6


@pytest.mark.parametrize(
    ("card", "dtype", "precision", "rate"),
    [
        ("h100", "bfloat16", "highest", 989.5e12),
        ("h100", "float32", "highest", 67e12),
        ("h100", "float32", "high", 494.5e12),
        ("p100", "float32", "high", None),
        ("an unknown card", "float64", "highest", 4e6),
    ],
)
def test_peak_rates_of_cards(
    monkeypatch: pytest.MonkeyPatch, card: str, dtype: str, precision: str, rate: float | None
) -> None:
    """A card of the catalogue has its own rates, whatever the plan says; another one those of the cluster file."""
    monkeypatch.setattr("hocket.runtime.stage.device_type.known_type", lambda device: card)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert peak_flops_per_s(cluster("my-core", CORE), 0, torch.device("cuda"), dtype) == rate


def test_one_unknown_rate_leaves_all_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of all workers are added up; a model without operations has no utilization."""
    board = KVExchange(None, 0, 3)
    for shared, seconds in (([1e6, 2e6, 1e6], 2.0), ([1e6, None, 1e6], None)):
        monkeypatch.setattr(board, "share", lambda own, shared=shared: shared)
        assert peak_step_s(8e6, 1e6, board) == seconds
    monkeypatch.setattr(board, "share", lambda own: [1e6] * 3)
    assert peak_step_s(0.0, 1e6, board) is None


@pytest.mark.workers
def test_a_run_says_its_utilization(tmp_path: Path) -> None:
    """The summary's is that of the measured batch; a cluster without rates has none."""
    path, listener, known = write_job(tmp_path), Recorder(), plan("flush")
    flops = capture(load_job(path), 2).step_flops(8)
    summary = train(path, replace(known, cluster=cluster("my-core", CORE)), steps=8, listener=listener, device="cpu")
    assert summary.iteration_s is not None
    assert summary.mfu == pytest.approx(flops / 8e6 / summary.iteration_s)
    assert re.search(rf"MFU +{summary.mfu:.1%}$", summary_table(summary), re.MULTILINE)
    assert summary.line()["mfu"] == summary.mfu
    without = train(path, known, steps=8, listener=Recorder(), device="cpu")
    assert without.mfu is None
    assert "MFU" not in summary_table(without)
