"""Choice of a batch size up to a largest safe one (planning/search/batch_size.py)."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hocket.cli.app import app
from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.parts import whole
from hocket.planning.goals.goal import Goal
from hocket.planning.goals.subclusters import Planned
from hocket.planning.search.batch_size import batches, best_batch

CLUSTER = Cluster("two", (Level("local", 2, 1e9),), "cpu-core")
A100 = Path(__file__).parents[3] / "examples" / "clusters" / "a100-servers.yaml"


@dataclass
class Best:
    """A plan with a given iteration time."""

    iteration_s: float
    label: str = "a plan"


@dataclass
class Found:
    """A search with this plan, or without any."""

    seconds: float | None
    asked: list[int] = field(default_factory=list)

    @property
    def best(self) -> Best:
        """See `hocket.planning.goals.subclusters.PartResult`."""
        if self.seconds is None:
            raise RefusedError("plan", "nothing that fits", "a plan that fits")
        return Best(self.seconds)

    @property
    def written(self) -> Best:
        """Same as `best`."""
        return self.best


def planned(seconds: dict[int, float | None], batch: int) -> Planned[Found]:
    """A batch that is planned for time."""
    return Planned(Goal(), batch, Found(seconds[batch]), whole(CLUSTER))


def test_doublings_and_the_largest() -> None:
    """Planned sizes are doublings and the largest.

    A largest below the smallest is refused.
    """
    assert batches(32, 32) == (32,)
    assert batches(32, 128) == (32, 64, 128)
    assert batches(32, 100) == (32, 64, 100)
    with pytest.raises(InputError, match="--max-batch: found 31; expected at least the batch size, 32"):
        batches(32, 31)


def test_a_larger_batch_must_do_more_than_a_tie() -> None:
    """Twice the batch wins in 1.5 times the seconds, not in 1.99 times."""
    seconds: dict[int, float | None] = {8: 1.0, 16: 1.99, 32: 2.985, 64: 6.0}
    chosen = best_batch(8, 64, lambda batch: planned(seconds, batch))
    assert chosen.best.batch_size == 32
    assert chosen.worth == pytest.approx({8: 8.0, 16: 8.0402, 32: 10.7203, 64: 10.6667}, rel=1e-4)
    assert chosen.line == "batch: 32; others: 8 -25.4%, 16 -25.0%, 64 -0.5%"
    assert best_batch(8, 16, lambda batch: planned(seconds, batch)).best.batch_size == 8


def test_what_does_not_fit_is_passed_over() -> None:
    """Batches that do not fit are named; if none fits, the smallest's search is kept."""
    chosen = best_batch(8, 16, lambda batch: planned({8: 1.0, 16: None}, batch))
    assert (chosen.best.batch_size, chosen.line) == (8, "batch: 8; others: 16 does not fit")
    neither = best_batch(8, 16, lambda batch: planned({8: None, 16: None}, batch))
    assert (neither.best.batch_size, neither.line) == (8, "batch: 8; others: 16 does not fit")
    with pytest.raises(RefusedError, match="nothing that fits"):
        _ = neither.best.worth


def test_sizes_that_miss_the_goal_are_passed_over() -> None:
    """A goal that some batch sizes miss is served by another; if all miss it, the smallest's error is given."""

    def least(batch: int) -> Planned[Found]:
        if batch < smallest:
            raise RefusedError("plan", f"{batch} days", "completion in time")
        return Planned(Goal("devices", 1e6, 1e9), batch, Found(1.0), whole(CLUSTER))

    smallest = 16
    chosen = best_batch(8, 32, least)
    assert (chosen.best.batch_size, chosen.line) == (16, "batch: 16; others: 8 misses the goal, 32 +0.0%")
    smallest = 64
    with pytest.raises(RefusedError, match="found 8 days"):
        best_batch(8, 32, least)


@pytest.mark.slow
def test_the_plan_that_is_written_is_of_the_chosen_batch(tmp_path: Path) -> None:
    """The written plan has the chosen batch.

    GPT-2 XL on 128 devices with a batch of 128 leaves one sample to each device; 512 has far more throughput.
    """
    done = CliRunner().invoke(
        app,
        [
            "plan", "gpt2-xl", str(A100), "-B", "128", "--max-batch", "512", "--no-explain", "-o", str(tmp_path / "p.yaml"),
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "batch: 512; others: 128 -" in done.output
    assert "batch_size: 512" in (tmp_path / "p.yaml").read_text()


@pytest.mark.parametrize("number", ["0", "-4"])
def test_a_largest_batch_of_nothing(number: str) -> None:
    """A largest batch of 0 is refused, not ignored."""
    done = CliRunner().invoke(app, ["plan", "gpt2-xl", str(A100), "-B", "128", "--max-batch", number])
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == f"--max-batch: found {number}; expected >= 1"


@pytest.mark.parametrize("options", [["-s", "fully_sharded"], ["--shard", "full"]])
def test_words_that_input_and_output_share_are_why_units_are_refused(options: list[str]) -> None:
    """The error for FSDP units names GPT-2's tied weights, not the batch size."""
    done = CliRunner().invoke(app, ["plan", "gpt2-xl", str(A100), "-B", "1536", *options])
    assert isinstance(done.exception, RefusedError)
    assert "gpt2-xl, whose output shares the embedding's weights: shard: full with weights tied" in str(done.exception)
