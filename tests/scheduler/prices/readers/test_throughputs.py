"""Throughputs for prices per training step."""

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.readers import throughputs


def test_only_models_alone_are_read(tmp_path: Path) -> None:
    """Throughputs alone are read, by model and type.

    Types that cannot run a model are omitted.
    """
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps({"v100": {"a": {"null": 2, "b": [1, 1]}}, "k80": {"a": {"null": 0.5}, "b": {"null": 0}}})
    )
    assert throughputs.read(path) == {"a": {"v100": 2.0, "k80": 0.5}}


@pytest.mark.parametrize(
    "data", [[], {}, {"v100": {}}, {"v100": {"a": {}}}, {"v100": {"a": {"null": -1}}}, {"v100": {"a": {"null": True}}},
             {"v100": {"a": {"null": "1"}}}, {"v100": {"a": 3}}],
)  # fmt: skip
def test_what_is_no_such_table_is_refused(tmp_path: Path, data: Any) -> None:
    """Other documents are refused, with the path of the first invalid key."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"t\.json"):
        throughputs.read(path)
