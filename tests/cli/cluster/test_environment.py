"""Simulation options for estimates, prices over time and spot workers."""

import json
from pathlib import Path

import pytest

from hocket.scheduler.prices.readers.public import EXAMPLES
from tests.cli.conftest import Run

WORKERS = """workers:
  - {name: spot, workers: 2, spot: true, accelerator: v100, offer: aws/us-east-1d/p3.2xlarge}
  - {name: kept, workers: 2, price_usd_per_hour: 3.06, accelerator: v100}
"""


@pytest.fixture
def jobs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Six jobs, and workers.yaml, in the working folder."""
    monkeypatch.chdir(tmp_path)
    assert run(*["cluster", "generate", "static-single", "--jobs", "6", "-o", "jobs.json"]).code == 0
    Path("workers.yaml").write_text(WORKERS)
    return "cluster simulate jobs.json workers.yaml --json"


def test_prices_of_the_moment_and_bills(run: Run, jobs: str) -> None:
    """Bills use the prices at the times of each lease.

    The policy of least cost uses spot workers first. The bills add up to the cost of the run.
    """
    words = f"{jobs} -p min_cost --prices {EXAMPLES} --from 2020-03-18 --bills bills.json --checkpoint-gb 2"
    found = run(*words.split())
    assert found.code == 0
    bills = json.loads(Path("bills.json").read_text())
    assert bills["format"] == "hocket-bills-1"
    assert bills["begin_s"] == 1584489600.0
    assert bills["cost_usd"] == pytest.approx(found.json["cost_usd"])
    assert bills["transfer_usd"] == 0  # the other type is nowhere in a market
    leases = [lease for job in bills["jobs"] for lease in job["leases"]]
    assert sum(lease["cost_usd"] for lease in leases) == pytest.approx(bills["cost_usd"])
    spot = {paid["usd_per_hour"] for lease in leases if lease["spot"] for paid in lease["paid"]}
    assert len(spot) > 1
    assert max(spot) < 3.06
    assert {paid["usd_per_hour"] for lease in leases if not lease["spot"] for paid in lease["paid"]} == {3.06}


def test_spot_workers_go_where_a_log_says_so(run: Run, jobs: str) -> None:
    """Spot workers leave when an availability log says so.

    Here they are available for the first hour only. Jobs continue on other workers, at a higher cost.
    """
    folder = Path("market")
    (folder / "aws" / "cost").mkdir(parents=True)
    (folder / "aws" / "cost" / "us-east-1").symlink_to(EXAMPLES / "aws" / "cost" / "us-east-1")
    (folder / "aws" / "availability").mkdir()
    log = folder / "aws" / "availability" / "one.out"
    log.write_text(
        "[2020-03-18T00:00:00.000Z] Created instance i-1 with 1 GPU(s) of type v100 in zone us-east-1d\n"
        "[2020-03-18T01:00:00.000Z] Instance i-1 not running in zone us-east-1d\n"
        "[2020-03-20T00:00:00.000Z] Instance with 1 GPU(s) of type v100 creation failed\n"
    )
    words = f"{jobs} -p min_cost --from 2020-03-18 --prices"
    always, gone = (run(*words.split(), place).json for place in (str(EXAMPLES), str(folder)))
    assert always["finished"] == gone["finished"] == 6
    assert gone["cost_usd"] > 1.2 * always["cost_usd"]


def test_what_is_not_known_of_prices_is_said(run: Run, jobs: str) -> None:
    """Notes name unknown prices.

    They name spot offers without a folder of prices, which cost nothing, and runs that continue after the last price.
    """
    notes = [run(*f"{jobs}{words}".split()).json["notes"] for words in (
        "", f" --prices {EXAMPLES} --from 2020-03-18", f" --prices {EXAMPLES} --from 2025-01-01"
    )]  # fmt: skip
    assert notes[0] == ["without --prices, workers of spot cost nothing and never leave"]
    assert notes[1] == []
    page = run(*f"{jobs} --report page.html".split())
    assert (page.code, "without --prices, workers of spot" in Path("page.html").read_text()) == (0, True)
    assert notes[2] == ["prices are known until 2020-03-23 16:09 UTC, and assumed to stay constant after that"]


def test_an_offer_that_nobody_sells_is_told_with_its_file(run: Run, jobs: str) -> None:
    """The error of an unknown offer names its file and its worker type."""
    Path("workers.yaml").write_text(WORKERS.replace("us-east-1d", "us-east-1x"))
    found = run(*jobs.replace(" --json", "").split(), "--prices", EXAMPLES)
    assert found.code == 2
    assert found.err.startswith("error: workers.yaml: worker type spot: offer: found 'aws/us-east-1x/p3.2xlarge'")


def test_a_run_begins_when_all_offers_are_on_sale(run: Run, jobs: str) -> None:
    """A run begins at the first time at which all offers are on sale.

    A given time without one of the offers is refused, and so are offers that are never on sale together.
    """
    prices = Path("market/azure/cost/us_east.csv")
    prices.parent.mkdir(parents=True)
    (prices.parent.parent / "instance_mapping.csv").write_text("Instance,GPU type,# GPUs\nA,V100,1\nB,V100,1\n")
    spot = "  - {{name: {0}, workers: 2, spot: true, accelerator: v100, offer: azure/us-east/{0}}}\n"
    Path("workers.yaml").write_text("workers:\n" + spot.format("A") + spot.format("B"))
    begin_s = 1577923200.0  # 2 January
    gaps = "1/3/2020,,2.0\n1/4/2020,1.0,\n1/5/2020,1.0,2.0\n"
    for first, day in (("1.0,2.0", 0), ("1.0,", 3)):
        prices.write_text(f"Date,A,B\n1/2/2020,{first}\n{gaps}")
        assert run(*f"{jobs} --prices market --bills bills.json".split()).code == 0
        assert json.loads(Path("bills.json").read_text())["begin_s"] == begin_s + day * 86400
    found = run(*f"{jobs} --prices market --from 2020-01-03".split())
    assert (found.code, found.json["error"]["place"]) == (2, "--from")
    assert found.json["error"]["expected"] == "a moment at which azure/us-east/A is on sale"
    prices.write_text("Date,A,B\n1/2/2020,1.0,\n1/3/2020,,2.0\n")
    found = run(*f"{jobs} --prices market".split())
    assert (found.code, found.json["error"]["place"]) == (2, "market")


def test_checkpoints_of_a_cloud_without_a_tariff_are_refused_before_anything_runs(run: Run, jobs: str) -> None:
    """Without checkpoints there is nothing to charge."""
    folder = Path("market/skypilot/verda")
    folder.mkdir(parents=True)
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region"
    (folder / "2020-03-01T00:00:00Z.csv").write_text(f"{head}\n1V100.6V,V100,1,0.14,0.05,FIN-01\n")
    Path("workers.yaml").write_text(WORKERS.replace("aws/us-east-1d/p3.2xlarge", "verda/FIN-01/1V100.6V"))
    words = f"{jobs} --prices market --bills bills.json --journal journal.log"
    found = run(*words.split(), "--checkpoint-gb", 5)
    assert (found.code, found.json["error"]["place"]) == (2, "--checkpoint-gb")
    assert not Path("journal.log").exists()
    assert run(*words.split()).code == 0


def test_estimates_are_learned(run: Run, jobs: str) -> None:
    """The run says how far they were off."""
    found = run(*f"{jobs} --space-sharing --estimate 2 --references 6".split())
    assert found.code == 0
    assert "before the first round" in found.json["notes"][0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--estimate 2", "found no space sharing; expected space sharing"),
        ("--from 2020-03-01", "--from"),
        (f"--prices {EXAMPLES} --from soon", "a day or a moment"),
        (f"--prices {EXAMPLES} --from 2019-01-01", "or later, when all offers have a price"),
        ("--prices nowhere", "a folder with aws/cost"),
        ("--bills nowhere/bills.json", "nowhere"),
        (
            "--checkpoint-gb 5",
            "--checkpoint-gb: found 5, without --bills; expected bills, which give the price of a transfer. Add --bills FILE.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, jobs: str, words: str, told: str) -> None:
    """In one line, before anything is simulated."""
    found = run(*jobs.split(), *words.split())
    assert found.code == 2
    assert told in found.err
