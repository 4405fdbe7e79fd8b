"""Speed of compiled runs of layers, relative to eager layers."""

import pytest

from hocket.cli import main
from hocket.profiling.measure.compile_speedup import ends_of
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.util.compatibility import Feature, conflict
from tests.runtime.helpers.plans import captured


def test_runs_of_about_equal_cost() -> None:
    """At most four runs, of one layer at least, cover all layers."""
    assert ends_of([1.0] * 8) == (2, 4, 6, 8)
    assert ends_of([5.0, 1.0, 1.0, 1.0]) == (1, 2, 3, 4)
    assert ends_of([1.0, 1.0, 1.0, 9.0]) == (3, 4)
    assert ends_of([2.0]) == (1,)


@pytest.mark.slow
def test_a_profile_with_code() -> None:
    """A profile with compiled speeds has a factor for each run and microbatch size.

    The time to compile and the factors are shown in one line. The rest equals a profile without.
    """
    profile = measure(captured("gpt plain").job, (1, 2), MeasureRequest(budget_s=0.1, compile="aot_eager"))
    code = profile.compiled
    assert code is not None
    assert code.backend == "aot_eager"
    assert code.cold_s > 0
    assert code.ends[-1] == len(profile.layers)
    assert all(len(row) == 2 and min(row) > 0 for row in (*code.forward, *code.backward))
    line = code.line(1)
    assert line.startswith("compiled (aot_eager, ")
    assert line.count(" forward and ") == len(code.ends)


def test_members_of_groups_are_not_compiled(tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Tensor-parallel ranks are not compiled; the error comes before any measurement."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("job = None")
    assert main(["profile", "job.py", "--tensor", "2", "--compile"]) == 2
    reason = conflict((Feature.COMPILE, Feature.TENSOR))
    assert reason is not None
    assert reason in " ".join(capsys.readouterr().err.split())
    assert main(["profile", "job.py", "--device-type", "a100-80gb", "--compile"]) == 2
    assert "--compile" in capsys.readouterr().err
