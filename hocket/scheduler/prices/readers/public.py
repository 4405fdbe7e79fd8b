"""Folder with the layout of published price and availability data.

The data of chapter 6 of Narayanan's dissertation are stanford-futuredata/training_on_a_dime, logs/:

    aws/cost/REGION/*.json    aws/availability/*.out    azure/cost/*.csv    azure/instance_mapping.csv
    gcp/spin_up_and_shut_down/*.out                     gcp/availability/*.out

Optional additions are versions of SkyPilot's catalogues by cloud, each named by its time, and a copy of
skypilot-org/spot-traces:

    skypilot/CLOUD/2023-05-01T00:00:00Z.csv             spot-traces/availability/1-node/CLOUD-DAY/*.json
"""

from pathlib import Path

from hocket.errors import InputError
from hocket.scheduler.prices.availability import Availability
from hocket.scheduler.prices.market import Market
from hocket.scheduler.prices.readers import aws, azure, catalogue, gcp, log, spot_trace
from hocket.scheduler.prices.readers._fields import moment

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def read_market(folder: str | Path) -> Market:
    """All offers found in the folder.

    Raises:
        InputError: a folder without prices, or an invalid file.
    """
    top = Path(folder)
    offers = [
        *aws.read(sorted(top.glob("aws/cost/*/*.json"))),
        *gcp.read(sorted(top.glob("gcp/spin_up_and_shut_down/*.out"))),
    ]
    regions = sorted(top.glob("azure/cost/*.csv"))
    if regions:
        offers += azure.read(regions, azure.read_instances(top / "azure" / "instance_mapping.csv"))
    for cloud in sorted(top.glob("skypilot/*/")):
        versions = [(path, moment(path.stem, f"{path}: name")) for path in sorted(cloud.glob("*.csv"))]
        offers += catalogue.read(versions, cloud.name)
    if not offers:
        found = "no prices" if top.is_dir() else "a file" if top.exists() else "no folder"
        raise InputError(
            str(folder), found, "a folder with aws/cost, azure/cost, gcp/spin_up_and_shut_down or skypilot"
        )
    return Market.of(offers)


def read_availability(folder: str | Path) -> tuple[tuple[str, tuple[Availability, ...]], ...]:
    """Name and availabilities of each log and spot trace; empty without such files.

    Raises:
        InputError: an invalid file.
    """
    logs = [
        (cloud, path) for cloud in ("aws", "gcp") for path in sorted(Path(folder).glob(f"{cloud}/availability/*.out"))
    ]
    traces = sorted(Path(folder).glob("spot-traces/availability/1-node/*/*.json"))
    return (
        *((f"{cloud}/{path.name}", log.read(path, cloud)) for cloud, path in logs),
        *((f"{path.parent.name}/{path.name}", (spot_trace.read(path),)) for path in traces),
    )
