"""Tensor parallelism on real processes.

Loss and gradients equal one process, with no more communication than in the paper.
"""

from ast import literal_eval
from pathlib import Path

import pytest

from tests.profiling.helpers.transformers_of import SAMPLES, SEQ, VOCAB
from tests.runtime.helpers.tensor_workers import RUNS, run

pytestmark = pytest.mark.workers

# Of two blocks: for each two of either forward; in the backward as many, and two of what columns read; and the norms. And of the
# vocabulary: what was looked up, what the cross-entropy needs, what the output layer read.
SLICED = {
    "forward": {"scatters": 4, "gathers": 4 + 1 + 1, "all_reduces": 1},
    "backward": {"scatters": 4, "gathers": 4 + 4 + 1, "all_reduces": 4 + 1},
}
PLAIN = {"forward": {"all_reduces": 4 + 1, "gathers": 1}, "backward": {"all_reduces": 4 + 1}}


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 4])
def test_equal_to_one_process(width: int, tmp_path: Path) -> None:
    """Unedited models over gloo equal one process in float64.

    Each block has two all-reduces in the forward and two in the backward. The vocabulary has its own, and there is no
    other collective. Dropout masks are equal. Names and whole weights are those of the undivided model.

    On slices of the sequence as many reduce-scatters and gathers instead: in the backward what columns read is gathered
    again, and each norm's gradients are summed; the model gathers once more either way, at the ends of its blocks.
    """
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    found = run(tmp_path, width)
    assert len(found) == width
    for results in found:
        for name, result in results.pop("stages").items():
            assert result["layers_equal"], name
            # Those of Hugging Face make their losses in float32.
            assert max(result["loss"], result["gradients"]) <= (1e-9 if "gpt'" in name else 1e-6), name
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
            _, local, _, sliced = literal_eval(name)
            assert result["vocabulary"] == [{}, [SAMPLES, SEQ, VOCAB]], name  # by hand the whole is gathered
            assert result["dtensors"] == (0 if local else result["divided"]), name
            for way in ("forward", "backward"):
                counts = (SLICED if sliced else PLAIN)[way]
                assert result[way] == counts, name
                assert {kind: ways[way] for kind, ways in result["expected"].items() if ways[way]} == counts, name
