"""Sample-efficiency curves: their files, and values between measured points."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.planning.goals.sample_efficiency import Point, SampleCurve

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "curves").glob("*.yaml"))
MEASURED = SampleCurve("measured", (Point(64, 1e6), Point(256, 1e6), Point(4096, 4e6)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples(path: Path) -> None:
    """Each example file is valid and names its source."""
    curve = SampleCurve.read(path)
    assert curve.source
    assert curve.samples(512) > 0
    assert len(EXAMPLES) > 0


def test_between_measured_points() -> None:
    """Logarithms are interpolated linearly; measured points are exact.

    Batch sizes beyond the measured range are refused.
    """
    assert MEASURED.samples(64) == MEASURED.samples(100) == 1e6
    assert MEASURED.samples(4096) == 4e6
    assert MEASURED.samples(1024) == pytest.approx(2e6)  # the middle of 256 and 4,096
    for batch_size in (63, 4097):
        with pytest.raises(InputError, match="expected 64 to 4096, where measured was measured"):
            MEASURED.samples(batch_size)


@given(noise=st.floats(1, 1e6), batch=st.integers(1, 10**6))
def test_the_closed_form(noise: float, batch: int) -> None:
    """At the noise scale, twice the least samples are needed.

    With a larger batch, iterations fall and samples rise.
    """
    curve = SampleCurve("form", noise_scale=noise, least_samples=1e6)
    assert curve.samples(batch) == pytest.approx(1e6 * (1 + batch / noise))
    assert curve.samples(batch + 1) > curve.samples(batch)
    assert curve.samples(batch + 1) / (batch + 1) < curve.samples(batch) / batch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "points: found neither points nor a noise scale"),
        ("name: x\npoints: [{batch_size: 8, samples: 1}]\nnoise_scale: 3", "found points, and a noise scale too"),
        ("name: x\nnoise_scale: 3", "least_samples 0.0; expected both > 0"),
        ("name: x\npoints: [{batch_size: 8, samples: 1}, {batch_size: 4, samples: 1}]", "found batch sizes 8, 4"),
        ("name: x\npoints: [{batch_size: 0, samples: 1}]", "batch_size: found 0"),
        ("name: x\npoints: [{batch_size: 1, samples: -1}]", "samples: found -1"),
        ("name: x\npoints: [{batch: 1, samples: 1}]", "unknown key 'batch'"),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    """Errors name the key."""
    with pytest.raises(InputError, match=message):
        SampleCurve.from_yaml(text)
