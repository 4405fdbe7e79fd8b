"""JSON schemas of the file formats.

All files that Hocket reads or writes are valid. A misspelt key is not.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hocket.util.documents import parse_yaml
from tests.cli.conftest import Run
from tests.paths import ROOT

CLUSTERS = sorted((ROOT / "examples" / "clusters").glob("*.yaml"))
JOBS = ROOT / "examples" / "own-cluster" / "jobs.json"


def validator(run: Run, kind: str) -> Draft202012Validator:
    """Return the schema of `hocket schema` as a validator.

    The schema itself is checked first.
    """
    found = run("schema", kind)
    assert found.code == 0, found.err
    Draft202012Validator.check_schema(found.json)
    return Draft202012Validator(found.json)


def errors(check: Draft202012Validator, data: Any) -> list[str]:
    """Messages about data."""
    return [error.message for error in check.iter_errors(data)]


def test_example_clusters_are_valid(run: Run) -> None:
    """Every cluster file of the examples, with units as they are written."""
    check = validator(run, "cluster")
    assert len(CLUSTERS) > 5
    for path in CLUSTERS:
        assert errors(check, parse_yaml(path.read_bytes(), str(path))) == [], path


def test_plans_and_profiles_that_are_written_are_valid(run: Run, folder: Path) -> None:
    """A plan in YAML and a profile in JSON, as commands write them."""
    assert errors(validator(run, "plan"), parse_yaml(Path("plan.yaml").read_bytes(), "plan.yaml")) == []
    check, profile = validator(run, "profile"), json.loads(Path("profile.json").read_text())
    assert errors(check, profile) == []
    profile["layers"][0]["weights_bytes"] = "4 MB"  # people write plans and clusters, commands write profiles
    assert len(errors(check, profile)) == 1


def test_jobs_are_valid(run: Run) -> None:
    """The example's jobs; a list without its format is none."""
    check, data = validator(run, "jobs"), json.loads(JOBS.read_text())
    assert errors(check, data) == []
    del data["format"]
    assert errors(check, data) == ["'format' is a required property"]


def test_what_is_wrong_is_marked(run: Run, folder: Path) -> None:
    """A misspelt key, deep inside as well, and a value of another type."""
    check = validator(run, "plan")
    data = parse_yaml(Path("plan.yaml").read_bytes(), "plan.yaml")
    assert errors(check, {**data, "batchsize": 8}) == [
        "Additional properties are not allowed ('batchsize' was unexpected)"
    ]
    data["cluster"]["levels"][0]["widht"] = 2
    assert errors(check, data) == ["Additional properties are not allowed ('widht' was unexpected)"]
    del data["cluster"]["levels"][0]["widht"]
    assert errors(check, {**data, "batch_size": "eight"}) == ["'eight' is not of type 'integer'"]


@pytest.mark.parametrize("value", ["2GB", "11.5GiB", 2e9, 2])
def test_sizes_may_have_units(run: Run, folder: Path, value: Any) -> None:
    """In YAML, a size is a number or a text such as 2GB; a word is neither."""
    check = validator(run, "cluster")
    data = parse_yaml(Path("cluster.yaml").read_bytes(), "cluster.yaml")
    assert errors(check, {**data, "memory_bytes": value}) == []
    assert errors(check, {**data, "memory_bytes": "much"}) != []


@pytest.mark.parametrize("kind", ["plan", "cluster", "profile", "jobs"])
def test_every_key_says_what_it_is(run: Run, kind: str) -> None:
    """Every key has a meaning, for an editor to show. Values in it are written as in a file."""
    schema = validator(run, kind).schema
    assert isinstance(schema, dict)
    for part in (schema, *schema["$defs"].values()):
        assert part["description"]
        assert "Attributes" not in part["description"]
        for key, field in part["properties"].items():
            meaning = field.get("description") or field.get("const")
            assert meaning, f"{part['title']}: {key}"
            assert not re.search(r"\bNone\b|\bTrue\b|\bFalse\b|(?<!\w)\(\)", meaning), f"{part['title']}: {key}"


def test_an_unknown_format_is_refused(run: Run) -> None:
    """The message lists the formats."""
    found = run("schema", "plam")
    assert found.code != 0
    assert "plan" in found.err
