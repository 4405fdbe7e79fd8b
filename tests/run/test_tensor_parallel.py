"""Tensor parallelism on real processes: the same loss and gradients, and no more communication than the paper's."""

from pathlib import Path

import pytest

from tests.run.tensor_workers import RUNS, run


@pytest.mark.parametrize("width", [2, 4])
def test_equal_to_one_process(width: int, tmp_path: Path) -> None:
    """Unedited models over gloo: parity in float64, two all-reduces per block forward and two backward, and no other
    collective; with the same dropout masks; names and whole weights are those of the undivided model."""
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    found = run(tmp_path, width)
    assert len(found) == width
    for results in found:
        for name, result in results.pop("stages").items():
            assert result["layers_equal"], name
            assert max(result["loss"], result["gradients"]) <= 1e-9, name
        assert len(results) == len(RUNS[width])
        for name, result in results.items():
            assert result["loss"] <= 1e-9, name
            assert result["gradients"] <= 1e-9, name
            assert result["gradients_missing"] == [], name
            assert result["same"] == found[0][name]["same"], name  # or whole weights would drift apart
            assert result["names_equal"], name
            assert result["versions_equal"], (
                name
            )  # a dictionary of weights, DTensors or local, as well as the model's own
            assert result["weights_equal"], name
            assert result["dtensors"] == (0 if "True" in name else result["divided"]), name
            assert result["expected"] == [4, 4], name
            assert result["forward"] == ["allreduce_.default"] * 4, name
            assert result["backward"] == ["allreduce_.default"] * 4, name
