"""Commands that measure."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.hardware.cluster import Cluster
from hocket.profiling.measure.stopwatch import SPENT
from hocket.profiling.profile import ModelProfile


@pytest.mark.parametrize(("neighbours", "note"), [(0, None), (1, "measured with 1 busy neighbour")])
@pytest.mark.thinned(most=1)
def test_profile_among_neighbours(run: Callable[..., Any], folder: Path, neighbours: int, note: str | None) -> None:
    """A profile can be measured beside other processes that train.

    Their number is as requested, and the profile has a note.
    """
    words = ("profile", "job.py", "-o", "own.json", "-b", 1, "--budget-s", 0.05, "--busy-workers", neighbours, "--json")
    found = run(*words)
    assert found.code == 0, found.err
    profile = ModelProfile.read("own.json")
    said = [text for text in json.loads(found.out)["notes"] if "neighbour" in text]
    spent = [text for text in said if text.startswith(SPENT)]
    assert [text for text in said if text not in spent] == ([note] if note else [])
    assert ["start of busy neighbours" in text for text in spent] == [True] * bool(neighbours)
    assert len(profile.load_s) == 1


def test_fewer_neighbours_than_none(run: Callable[..., Any], folder: Path) -> None:
    """A negative number of busy workers is refused."""
    assert run("profile", "job.py", "--busy-workers", -1).code == 2


@pytest.mark.parametrize(
    ("sizes", "found", "expected"),
    [((0,), "0", ">= 1"), ((2, -3), "-3", ">= 1"), ((5,), "5", "1 to 4"), ((1, 10**30), str(10**30), "1 to 4")],
)
def test_sizes_that_cannot_be_measured(
    run: Callable[..., Any], folder: Path, sizes: tuple[int, ...], found: str, expected: str
) -> None:
    """A microbatch size that cannot be measured is refused.

    This also holds if other sizes are valid. The error names option and number, and nothing is written.
    """
    result = run("profile", "job.py", "-o", "own.json", *(word for size in sizes for word in ("-b", size)))
    assert result.code == 2
    assert result.err.startswith(f"error: --microbatch: found {found}; expected {expected}")
    assert not Path("own.json").exists()


def test_a_profile_for_a_device_that_is_not_here(run: Callable[..., Any], folder: Path) -> None:
    """A profile for an absent device type is estimated, and says so.

    It can be planned, simulated and checked like a measured profile.
    """
    result = run("profile", "job.py", "-o", "own.json", "-b", 1, "-b", 2, "--device-type", "a100-80gb")
    assert result.code == 0, result.err
    assert "not measured" in result.out
    found = ModelProfile.read("own.json")
    assert (found.device_type, found.microbatch_sizes) == ("a100-80gb", (1, 2))
    Path("cluster.yaml").write_text(
        "name: two\ndevice_type: a100-80gb\nlevels:\n- {name: server, width: 2, bandwidth_bytes_per_s: 3.0e+11}\n"
    )
    assert run("plan", "own.json", "cluster.yaml", "--batch", 4, "-o", "plan.yaml").code == 0
    assert run("check", "plan.yaml").code == 0
    assert run("simulate", "plan.yaml").code == 0
    assert run("profile", "job.py", "-o", "same.json", "-b", 1, "-b", 2, "--device-type", "cluster.yaml").code == 0
    assert Path("same.json").read_text() == Path("own.json").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--device-type", "a100"), "device type: found 'a100'"),
        (("--device-type", "a100-80gb", "-b", 5), "microbatch: found 5; expected 1 to 4"),
        (("--device-type", "a100-80gb", "--busy-workers", 1), "--busy-workers: found 1"),
        (
            ("--device-type", "a100-80gb", "--device", "cpu"),
            "--device: found cpu; expected no --device together with --device-type",
        ),
    ],
)
def test_profiles_that_cannot_be_worked_out(
    run: Callable[..., Any], folder: Path, words: tuple[Any, ...], told: str
) -> None:
    """An impossible estimate is refused and nothing is written.

    Cases: an unknown device type, a size above the batch, and busy workers although nothing runs.
    """
    result = run("profile", "job.py", "-o", "own.json", *words)
    assert (result.code, result.err.startswith(f"error: {told}")) == (2, True), result.err
    assert not Path("own.json").exists()


def test_calibrating(run: Callable[..., Any], folder: Path) -> None:
    """Calibration uses one measured profile.

    Estimated profiles that use it say so. Measured profiles refuse a calibration.
    """
    assert run("profile", "job.py", "-o", "m.json", "-b", 1, "-b", 2, "--budget-s", 0.05, "--busy-workers", 0).code == 0
    result = run("calibrate", "job.py", "m.json", "-o", "c.yaml")
    assert result.code == 0, result.err
    assert "measured time divided by estimated time" in result.out
    words = ("profile", "job.py", "-o", "w.json", "-b", 1, "-b", 2, "--calibration", "c.yaml")
    assert run(*words, "--device-type", "cpu-core").code == 0
    measured, found = ModelProfile.read("m.json"), ModelProfile.read("w.json")
    assert any("calibrated by" in note for note in found.notes)
    each = [sum(sum(layer.forward_s) for layer in profile.layers) for profile in (measured, found)]
    assert each[0] == pytest.approx(each[1])
    assert run(*words).err.startswith("error: --calibration: found c.yaml")
    assert run(*words, "--device-type", "k80").err.startswith("error: calibration: found factors of cpu-core")
    assert run("calibrate", "job.py", "w.json", "-o", "d.yaml", "--device-type", "k80").code == 2
    found = run("calibrate", "job.py", "w.json", "-o", "d.yaml")
    assert (found.code, found.err.startswith("error: w.json: found estimated seconds")) == (2, True)
    assert not Path("d.yaml").exists()


def test_nothing_of_the_users_is_replaced(run: Callable[..., Any], folder: Path) -> None:
    """A measurement replaces no file of the user.

    Cases: a cluster written by hand and the source of a job.
    """
    before = {name: Path(name).read_bytes() for name in ("cluster.yaml", "job.py")}
    for words in (
        ("links", "-n", 2),
        ("links", "-n", 2, "-o", "job.py"),
        ("profile", "job.py", "-o", "job.py"),
        ("profile", "job.py", "-o", "cluster.yaml", "--device-type", "a100-80gb"),
        ("calibrate", "job.py", "profile.json", "-o", "job.py"),
    ):
        found = run(*words)
        assert found.code == 2
        assert "Nothing was changed" in found.err
    assert before == {name: Path(name).read_bytes() for name in before}


def test_links_are_measured_again(run: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measured cluster is replaced until somebody edits it."""
    cluster = Cluster.read("cluster.yaml")
    monkeypatch.setattr(
        "hocket.training.calibrate.local_links.measure_local", lambda workers: replace(cluster, name=f"local {workers}")
    )
    for workers in (2, 3):
        assert run("links", "-n", workers, "-o", "new.yaml").code == 0
        assert Cluster.read("new.yaml").name == f"local {workers}"
    Path("new.yaml").write_text(Path("new.yaml").read_text().replace("local 3", "mine"))
    found = run("links", "-n", 2, "-o", "new.yaml")
    assert (found.code, Cluster.read("new.yaml").name) == (2, "mine")
    assert "was edited" in found.err


FIGURES = "forward_compute_time={}, backward_compute_time=1, activation_size={}, parameter_size=0"


@pytest.mark.parametrize(("layers", "shown"), [(40, 40), (100, 20)])
def test_many_layers_are_printed_in_short(run: Callable[..., Any], folder: Path, layers: int, shown: int) -> None:
    """A long profile is printed in short, and a short profile whole.

    The short form has the first and the slowest layers, with the number of all layers.
    """
    rows = [
        f"node{k} -- Linear(in_features=8, out_features=8) -- {FIGURES.format(k, 4 * 8 * 64)}" for k in range(layers)
    ]
    Path("graph.txt").write_text("\n".join(rows))
    result = run("import", "pipedream", "graph.txt", "-o", "own.json")
    assert result.code == 0, result.err
    names = [line.split()[0] for line in result.out.splitlines() if line.strip().startswith("node")]
    expected = [*range(8), *range(layers - 12, layers)] if shown < layers else range(layers)
    assert names == [f"node{k}" for k in expected]
    assert (f"shown: {shown} of {layers} layers, the first 8 and the 12 slowest" in result.out) == (shown < layers)
    assert len(json.loads(run("import", "pipedream", "graph.txt", "-o", "own.json", "--json").out)["layers"]) == layers


def test_samples_of_an_imported_profile(run: Callable[..., Any], folder: Path) -> None:
    """An imported profile is converted from minibatches to samples.

    The command says which minibatch size it found or was given. Plans and their memory refer to samples.
    """
    rows = [
        f"node1 -- Conv2d(3, 8) -- {FIGURES.format(64, 64 * 1e6)}",
        f"node2 -- Linear(in_features=8, out_features=10) -- {FIGURES.format(64, 64 * 4 * 10)}",
    ]
    Path("graph.txt").write_text("\n".join([*rows, "\tnode1 -- node2"]))
    found = run("import", "pipedream", "graph.txt", "-o", "own.json")
    assert "a minibatch of 64 samples, by the sizes" in " ".join(found.out.split())
    Path("cluster.yaml").write_text(
        "name: one\ndevice_type: v100-16gb\nlevels:\n- {name: server, width: 1, bandwidth_bytes_per_s: 1.0e+10}\n"
    )
    plan = run("plan", "own.json", "cluster.yaml", "--batch", 128, "-s", "data_parallel", "--no-explain", "--json")
    best = json.loads(plan.out)["candidates"][0]
    assert best["iteration_s"] == pytest.approx(2 * 0.13, rel=0.01)  # two minibatches of 64 + 64 + 2 milliseconds
    assert best["samples_per_s"] == pytest.approx(128 / 0.26, rel=0.01)
    told = run("import", "pipedream", "graph.txt", "-o", "own.json", "--samples", 32)
    assert "a minibatch of 32 samples, as told" in " ".join(told.out.split())
    assert ModelProfile.read("own.json").microbatch_sizes == (32,)
    for words, message in (
        (("pipedream", "graph.txt", "--samples", 0), "error: --samples: found 0"),
        (("deeppool", "graph.txt", "--samples", 3), "error: --samples: found 3, with deeppool"),
    ):
        refused = run("import", *words, "-o", "own.json")
        assert (refused.code, refused.err.startswith(message)) == (2, True)
