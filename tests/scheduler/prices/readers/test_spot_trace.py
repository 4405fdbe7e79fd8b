"""Traces of the number of available instances."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.availability import InstanceLifetime
from hocket.scheduler.prices.readers import spot_trace

BEGIN_S = datetime(2022, 10, 26, tzinfo=UTC).timestamp()


def write(folder: Path, data: Any, name: str = "aws-10-26-2022/us-west-2a_v100_8.json", gap_s: Any = 600) -> Path:
    """A trace in the published format."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap_s}, "data": data}))
    return path


def test_ticks_are_instances_that_were_held(tmp_path: Path) -> None:
    """Time steps become instance lifetimes.

    A lifetime begins at the first step with an instance and ends at the next step without. An instance that is
    there at the end is not preempted.
    """
    found = spot_trace.read(write(tmp_path, [1, 1, 0, 0, 1, 0, 1]))
    assert str(found.key) == "aws/us-west-2a/p3.16xlarge"
    assert (found.key.region, found.accelerator, found.accelerators) == ("us-west-2", "v100", 8.0)
    assert [(h.begin_s - BEGIN_S, h.end_s - BEGIN_S, h.preempted) for h in found.held] == [
        (0.0, 1200.0, True),
        (2400.0, 3000.0, True),
        (3600.0, 4200.0, False),
    ]
    assert found.fraction == pytest.approx(4 / 7)
    assert found.refused_s == (BEGIN_S + 1200.0, BEGIN_S + 1800.0, BEGIN_S + 3000.0)


def test_several_instances_are_wanted_at_once(tmp_path: Path) -> None:
    """Fewer instances than requested count as none.

    A cloud without names for such instances gets one.
    """
    path = write(tmp_path, [16, 9, 3, 16], "gcp-04-30-2023/us-east1-b_a100_1.json", 300)
    found = spot_trace.read(path, 10)
    assert str(found.key) == "gcp/us-east1-b/1xa100"
    assert [h.end_s - h.begin_s for h in found.held] == [300.0, 300.0]
    assert all(isinstance(h, InstanceLifetime) for h in found.held)


@pytest.mark.parametrize(
    ("data", "name", "gap_s", "place"),
    [
        ([], "aws-10-26-2022/us-west-2a_v100_1.json", 600, "data"),
        ([1, -1], "aws-10-26-2022/us-west-2a_v100_1.json", 600, "data"),
        ([1, "x"], "aws-10-26-2022/us-west-2a_v100_1.json", 600, "data.1"),
        ([1], "aws-10-26-2022/us-west-2a_v100_1.json", 0, "gap_seconds"),
        ([1], "aws-10-26-2022/trace.json", 600, "us-west-2a_v100_1.json"),
        ([1], "somewhere/us-west-2a_v100_1.json", 600, "aws-10-26-2022"),
        ([1], "aws-13-26-2022/us-west-2a_v100_1.json", 600, "a day"),
        ([1], "aws-10-26-2022/uswest_v100_1.json", 600, "zone of aws"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, data: Any, name: str, gap_s: Any, place: str) -> None:
    """Each mistake gives one clear error."""
    with pytest.raises(InputError) as caught:
        spot_trace.read(write(tmp_path, data, name, gap_s))
    assert place in str(caught.value)
