"""Logs of granted and preempted instances."""

from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.availability import InstanceLifetime
from hocket.scheduler.prices.readers import log


def write(path: Path, *lines: tuple[int, str]) -> Path:
    """Lines at seconds of the first hour of 1970."""
    path.write_text("".join(f"[1970-01-01T00:{s // 60:02}:{s % 60:02}.000Z] {text}\n" for s, text in lines))
    return path


AWS = (
    (10, "Created instance i-1 with 1 GPU(s) of type v100 in zone us-east-1b"),
    (20, "Created instance i-2 with 1 GPU(s) of type v100 in zone us-east-1c"),
    (600, "Instance i-1 running in zone us-east-1b"),
    (610, "Instance i-2 not running in zone us-east-1c"),
    (611, "Successfully deleted instance i-2"),
    (620, "Instance with 1 GPU(s) of type v100 creation failed"),
    (1300, "Created instance i-3 with 1 GPU(s) of type v100 in zone us-east-1c"),
    (1400, "Instance i-1 running in zone us-east-1b"),
)


def test_instances_of_one_kind_follow_one_another(tmp_path: Path) -> None:
    """On AWS each instance has a new name; the second in a zone continues the first.

    An instance that still runs at the end is not preempted.
    """
    first, second = log.read(write(tmp_path / "a.out", *AWS), "aws")
    assert (first.key.zone, first.key.instance_type, first.key.region) == ("us-east-1b", "p3.2xlarge", "us-east-1")
    assert first.held == (InstanceLifetime(10.0, 1400.0, False),)
    assert second.held == (InstanceLifetime(20.0, 610.0, True), InstanceLifetime(1300.0, 1400.0, False))
    assert second.refused_s == (620.0,)  # it was the one that was missing
    assert first.refused_s == ()


def test_names_of_google_stand_for_kinds(tmp_path: Path) -> None:
    """On Google a name stands for an instance kind, which may come back.

    A kind that was never granted has no accelerator, only refusals.
    """
    path = write(
        tmp_path / "g.out",
        (0, "Instance instance1 creation failed"),
        (1, "Instance instance1 not running in zone us-east1-c"),
        (5, "Created instance instance0 with 8 GPU(s) of type nvidia-tesla-k80 in zone us-west1-b"),
        (9, "Instance instance0 not running in zone us-west1-b"),
        (12, "Instance instance0 creation failed"),
        (20, "Created instance instance0 with 8 GPU(s) of type nvidia-tesla-k80 in zone us-west1-b"),
        (30, "Instance instance0 running in zone us-west1-b"),
    )
    never, eight = log.read(path, "gcp")
    assert (never.accelerator, never.held, never.refused_s) == ("", (), (0.0,))
    assert (eight.key.instance_type, eight.accelerators) == ("8xk80", 8.0)
    assert eight.held == (InstanceLifetime(5.0, 9.0, True), InstanceLifetime(20.0, 30.0, False))
    assert eight.refused_s == (12.0,)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ((700, "Instance i-9 running in zone us-east-1b"), "instance: found 'i-9'"),
        ((700, "Instance i-2 running in zone us-east-1c"), "i-2 running"),
        ((500, "Successfully deleted instance i-1"), "a time not before the previous line"),
        ((700, "Instance i-1 exploded"), "found .*exploded"),
        ((700, "Created instance i-1 with 8 GPU(s) of type v100 in zone us-east-1b"), "8 v100 in us-east-1b"),
        ((700, "Created instance i-5 with 0 GPU(s) of type v100 in zone us-east-1b"), r"GPU\(s\)"),
        ((700, "Created instance i-5 with 1 GPU(s) of type v100 in zone mars"), "zone: found 'mars'"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, line: tuple[int, str], found: str) -> None:
    """Errors name the line."""
    with pytest.raises(InputError, match=rf"a\.out, line 7.*{found}"):
        log.read(write(tmp_path / "a.out", *AWS[:6], line), "aws")


def test_a_log_without_moments_or_lines_is_refused(tmp_path: Path) -> None:
    """Logs without times or lines, and logs of an unknown cloud, are refused."""
    path = tmp_path / "a.out"
    path.write_text("Created instance\n")
    with pytest.raises(InputError, match="line 1"):
        log.read(path, "aws")
    path.write_text("")
    with pytest.raises(InputError, match="an empty file"):
        log.read(path, "aws")
    with pytest.raises(InputError, match="cloud"):
        log.read(write(path, *AWS), "azure")
