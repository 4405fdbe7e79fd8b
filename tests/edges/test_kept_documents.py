"""What readers say of files that are valid but for one word or line, equal to what is kept in documents/.

After a change that is meant, write the files again with --update-golden, and read the difference.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.profiling.readers import deeppool, pipedream
from hocket.scheduler.prices.readers import aws, azure, catalogue, gcp, log, spot_trace
from hocket.scheduler.prices.readers import throughputs as price_throughputs
from hocket.scheduler.readers import read_throughputs, read_workload
from hocket.scheduler.readers.gavel_snapshot import read as read_snapshot
from hocket.scheduler.readers.workers_yaml import read as read_workers
from tests.edges.odd import corrupted, news
from tests.kept import check, tried

FIGURES = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}.0"
# Name of the file, how it is read, odd words for each token, and the valid text.
FILES: dict[str, tuple[str, Callable[[Path], Any], int, str]] = {
    "jobs/workload": ("jobs.json", read_workload, 2, """{
"format": "hocket-workload-1",
"jobs": [
{"id": "a", "job_type": "A3C", "steps": 100.0, "arrived_s": 0.0, "weight": 2.0},
{"id": "b", "job_type": "LM (batch size 20)", "scale_factor": 2, "steps": 5e4, "arrived_s": 7.5, "slo_s": 900.0, "entity": "team"}
]}
"""),
    "jobs/list": ("jobs.json", read_workload, 2, """[
{"id": 1, "arrival_s": 5.0, "job_type": "A3C", "scale_factor": 1, "total_steps": 100.0, "duration_v100_s": 60.0, "SLO": 1.5},
{"id": "b", "arrival_s": 2.5, "job_type": "LM (batch size 20)", "scale_factor": 2, "total_steps": 5e4, "priority_weight": 2.0}
]
"""),
    "jobs/trace": ("two.trace", read_workload, 2, "A3C\tpython3 main.py\trl\t--max-steps\t0\t1200\t1\t1\t-1.000000\t5.5\n"
        "LM (batch size 20)\tpython3 main.py\tlm\t--steps\t0\t500\t2\t3\t2.0\t1.5\n"),
    "jobs/philly": ("philly.csv", read_workload, 3, "timestamp,duration,num_gpus,user\n2017-10-09 07:01:55,3600,1,a\n"
        "2017-10-09 06:00:00-08:00,0,2,b\n2017-10-10 07:01:55,120.5,9,c\n"),
    "jobs/sia": ("sia.csv", read_workload, 3, "name,time,application,num_replicas\ncifar10-1,0,cifar10,1\nbert-2,60.5,bert,3\n"
        "imagenet-3,90,imagenet,16\n"),
    "jobs/throughputs": ("throughputs.json", read_throughputs, 2, """{
"format": "hocket-throughputs-1",
"places": [["v100", true], ["k80", true], ["v100", false]],
"kinds": [["gpt", 1], ["bert", 2], ["lm", 1]],
"alone": [[3.0, 1.0, 2.5], [8.0, 0.0, 7.0], [5.0, 2.0, 4.0]],
"pairs": [[0, 2, 0, 1.5, 2.5], [0, 0, 1, 0.6, 0.6]]
}
"""),
    "jobs/workers": ("workers.yaml", read_workers, 3, """workers:
- {name: v100, workers: 8, per_server: 4, price_usd_per_hour: 2.48, spot: true, offer: aws/us-east-1a/p3.2xlarge}
- {name: k80, workers: 3, accelerator: k80}
"""),
    "jobs/snapshot": ("snapshot.json", read_snapshot, 1, """{
"worker_types": ["v100", "k80"],
"cluster": {"v100": 2, "k80": 3},
"instance_costs": {"v100": 2.48, "k80": 0.45},
"entity_weights": {"team": 2.0, "other": 1.0},
"entity_policies_fair": {"team": "fairness", "other": "fairness"},
"entity_policies_mixed": {"team": "fifo", "other": "fairness"},
"jobs": [
{"id": 1, "job_type": "A3C", "total_steps": 1000.0, "num_steps_remaining": 400.0, "scale_factor": 1, "priority_weight": 2.0,
"time_since_start_s": 90.0, "SLO_s": 30000.0, "entity": "team", "throughput": {"v100": 3.0, "k80": 1.0}},
{"id": 2, "job_type": "LM", "total_steps": 10.0, "num_steps_remaining": 10.0, "entity": "other", "throughput": {"v100": 1.0, "k80": 0.0}}
]}
"""),
    "prices/aws": ("prices.json", lambda path: aws.read([path]), 2, """{"SpotPriceHistory": [
{"AvailabilityZone": "us-east-1a", "InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX", "SpotPrice": "0.918",
"Timestamp": "2020-02-20T23:21:08.000Z"},
{"AvailabilityZone": "us-east-1b", "InstanceType": "p2.8xlarge", "ProductDescription": "Linux/UNIX", "SpotPrice": "2.5",
"Timestamp": "2020-02-21T23:21:08.000Z"}
]}
"""),
    "prices/azure": ("us_east.csv", lambda path: azure.read([path], {"NC6": ("k80", 1.0), "NC24": ("k80", 4.0)}), 3,
        "Date,NC6,NC24\n2/24/2020,$0.09,$0.4\n2/26/2020,,$0.36\n2/25/2020,$0.11,0.5\n"),
    "prices/instances": ("instance_mapping.csv", azure.read_instances, 3, "Instance,GPU type,# GPUs\nNC6,K80,1\nNC24,nvidia-tesla-v100,4\n"),
    "prices/catalogue": ("versions.csv", lambda path: catalogue.read([(path, 5.0)], "aws"), 3,
        "InstanceType,AcceleratorName,AcceleratorCount,Region,AvailabilityZone,Price,SpotPrice\n"
        "p3.2xlarge,V100,1,us-east-1,us-east-1a,3.06,0.918\n,K80,0.5,us-west-2,us-west-2b,0.9,\nm5.large,,,us-east-1,,0.1,\n"),
    "prices/gcp": ("2020-02-26T170353Z.out", lambda path: gcp.read([path]), 3,
        "Zone: us-west1-a, GPU type: nvidia-tesla-v100, Number of GPUs: 1, Price per hour: $0.74\n"
        "Zone: us-west1-b, GPU type: nvidia-tesla-k80, Number of GPUs: 4, Price per hour: $0.54\n"),
    "prices/log": ("instances.out", lambda path: log.read(path, "aws"), 1,
        "[2020-02-20T00:00:00Z] Created instance a with 1 GPU(s) of type v100 in zone us-east-1a\n"
        "[2020-02-20T00:05:00Z] Instance a running in zone us-east-1a\n"
        "[2020-02-20T00:06:00Z] Created instance b with 8 GPU(s) of type v100 in zone us-east-1b\n"
        "[2020-02-20T01:00:00Z] Instance a not running in zone us-east-1a\n"
        "[2020-02-20T01:01:00Z] Instance with 1 GPU(s) of type v100 creation failed\n"
        "[2020-02-20T01:02:00Z] Created instance c with 1 GPU(s) of type v100 in zone us-east-1a\n"
        "[2020-02-20T02:00:00Z] Instance c creation failed\n"
        "[2020-02-20T03:00:00Z] Instance d not running in zone us-east-1c\n"
        "[2020-02-20T04:00:00Z] Successfully deleted instance b\n"),
    "prices/spot": ("aws-10-26-2022/us-west-2a_v100_1.json", spot_trace.read, 4,
        '{"metadata": {"gap_seconds": 600}, "data": [1, 0, 0, 2, 1, 0, 3]}\n'),
    "prices/price_throughputs": ("throughputs.json", price_throughputs.read, 3,
        '{"v100": {"ResNet-50": {"null": 17.4, "A3C": [1.0]}, "A3C": {"null": 3}},\n"k80": {"A3C": {"null": 0}, "ResNet-50": {"null": 2}}}\n'),
    "profiles/deeppool": ("x.prof", deeppool.read, 1,
        '  conv2d{"in_channels":3,"kernel_size":3,"out_channels":4,"padding":1,"stride":2}[4][3,4,4]  3.0  1000 3000\n'
        '  linear{"bias":true,"in_features":16,"out_features":10}[4]16  1.0 500 500\n SUM 4.0\n'
        '  conv2d{"in_channels":3,"kernel_size":3,"out_channels":4,"padding":1,"stride":2}[2][3,4,4]  2.0  1000 1000\n'
        '  linear{"bias":true,"in_features":16,"out_features":10}[2]16  0.5 250 250\n SUM 2.5\n'),
    "profiles/blocks": ("y.txt", deeppool.read, 1,
        ' prep{"dim":8,"img_dim":32,"in_channels":3,"patch_dim":16}[2][3,32,32] 0.5\n'
        ' TransBlockA{"dim":8,"dim_head":null,"heads":2}[2][5,8] 0.7\n TransBlockB{"dim":8,"dim_linear_block":32}[2][5,8] 0.3\n'
        ' prepOut{"dim":8}[2][5,8] 0.1\n'
        ' ResnetBottleneck{"base_width":64,"downsampleParams":{},"groups":1,"inplanes":64,"planes":16,"stride":2}[2][64,8,8] 2.5\n'
        ' maxPool2d{"kernel_size":2,"padding":0,"stride":2}[2][64,4,4] 0.1\n adAvgPool2d{"output_height":1,"output_width":1}[2][64,2,2] 0.1\n'
        ' flatten{}[2][64,1,1] 0.01\n SUM 4.2\n'),
    "profiles/pipedream": ("model.graph.txt", pipedream.read, 1, "\n".join(
        (
            f"node1 -- Input0 -- {FIGURES.format(0, 0, 120.0, 0)}",
            f"node2 -- Conv2d(3, 4, kernel_size=(3, 3)) -- {FIGURES.format(1.5, 3.0, 400.0, 432)}",
            f"node3 -- Linear(in_features=100, out_features=10, bias=True) -- {FIGURES.format(0.5, 1.0, 80.0, 4040)}",
            f"node4 -- Add(a, b) -- {FIGURES.format(0.1, 0.2, '[80.0; 40.0]', 0)}",
            "\tnode1 -- node2", "\tnode2 -- node3", "\tnode3 -- node4", "\tnode2 -- node4", "",
        )
    )),
}  # fmt: skip


def shown(found: Any) -> str:
    """What a reader found, as text; arrays as lists of their numbers."""
    fields = getattr(found, "__dict__", {}).items()
    if any(isinstance(value, np.ndarray) for _, value in fields):
        return str({key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in fields})
    return str(found)


@pytest.mark.parametrize("name", FILES)
def test_refusals(name: str, tmp_path: Path, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each corrupted file: what differs from what the valid one gives, or what is said."""
    file, read, each, text = FILES[name]
    monkeypatch.chdir(tmp_path)
    path = Path(file)
    path.parent.mkdir(exist_ok=True)

    def told(content: str) -> str:
        path.write_text(content)
        return tried(lambda: shown(read(path)))

    valid = told(text)
    lines = [valid]
    for what, content in corrupted(text, random.Random(name.rpartition("/")[2]), each):
        found = told(content)
        lines.append(f"{what}: {found if found.startswith('refused') else news(valid, found)}".replace("\n", " "))
    assert not valid.startswith("refused")
    check(Path(__file__).parent / "documents" / f"{name}.txt", "\n".join(lines) + "\n", update_golden)
