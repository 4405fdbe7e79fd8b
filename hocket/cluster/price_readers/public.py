"""A folder laid out as the published data of chapter 6 are (stanford-futuredata/training_on_a_dime, logs/).

aws/cost/REGION/*.json    aws/availability/*.out    azure/cost/*.csv    azure/instance_mapping.csv
gcp/spin_up_and_shut_down/*.out                     gcp/availability/*.out
"""

from pathlib import Path

from hocket.cluster.price_readers import aws, azure, gcp, log
from hocket.cluster.prices.availability import Availability
from hocket.cluster.prices.market import Market
from hocket.errors import InputError

EXAMPLES = Path(__file__).resolve().parent.parent / "prices" / "examples"


def read_market(folder: str | Path) -> Market:
    """All offers of the three clouds, as far as the folder has them.

    Raises:
        InputError: a folder without any prices, or a mistake in one of its files.
    """
    top = Path(folder)
    offers = [
        *aws.read(sorted(top.glob("aws/cost/*/*.json"))),
        *gcp.read(sorted(top.glob("gcp/spin_up_and_shut_down/*.out"))),
    ]
    regions = sorted(top.glob("azure/cost/*.csv"))
    if regions:
        offers += azure.read(regions, azure.read_instances(top / "azure" / "instance_mapping.csv"))
    if not offers:
        found = "no prices" if top.is_dir() else "a file" if top.exists() else "no folder"
        raise InputError(str(folder), found, "a folder with aws/cost, azure/cost or gcp/spin_up_and_shut_down")
    return Market.of(offers)


def read_availability(folder: str | Path) -> tuple[tuple[str, tuple[Availability, ...]], ...]:
    """Of each log its name and what it says; empty where the folder has none.

    Raises:
        InputError: a mistake in one of its files.
    """
    logs = [
        (cloud, path) for cloud in ("aws", "gcp") for path in sorted(Path(folder).glob(f"{cloud}/availability/*.out"))
    ]
    return tuple((f"{cloud}/{path.name}", log.read(path, cloud)) for cloud, path in logs)
