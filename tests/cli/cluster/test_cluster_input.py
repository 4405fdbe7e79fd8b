"""Invalid input of the cluster commands gives one error and exit code 2.

The error names file, line and field. No file is written partly.
"""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.scheduler.journal.core_setup import Setup
from hocket.scheduler.journal.journal import Journal
from hocket.scheduler.model.worker_types import Placement, WorkerType
from tests.cli.conftest import Result, Run

TRACE = "ResNet-18 (batch size 32)\tpython3 main.py\timage\t--num_steps\t1\t{steps}\t1\t1.0\t-1.0\t{arrived}\n"
SIMULATE = "simulate {} workers.yaml --report page.html --journal journal.log"


def ask(run: Run, words: str) -> Result:
    """One of the cluster's commands."""
    return run("cluster", *words.split())


def refused(run: Run, words: str, *told: str) -> None:
    """Require that a command is refused with exit code 2 and one error line.

    The line contains all given parts. Standard output is empty, and the folder is unchanged.
    """
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    found = ask(run, words)
    assert (found.code, found.out) == (2, ""), found.err
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    for part in told:
        assert part in found.err
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


def edit(name: str, *changes: tuple[str, str]) -> Callable[[], None]:
    """A file of the folder with texts replaced, each once."""

    def change() -> None:
        text = Path(name).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        Path(name).write_text(text)

    return change


def own_table() -> None:
    """A throughput table without pairs and spread places, and a workload of its jobs."""
    table = {"places": [["v100", True], ["k80", True]], "kinds": [["A3C", 1]], "alone": [[2.0, 1.0]]}
    Path("table.json").write_text(json.dumps({"format": "hocket-throughputs-1", **table}))
    jobs = [{"id": "0", "job_type": "A3C", "steps": 100.0}]
    Path("own.json").write_text(json.dumps({"format": "hocket-workload-1", "jobs": jobs}))


def write(name: str, text: str) -> Callable[[], None]:
    """Another file."""

    def change() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)

    return change


def job(k: int, field: str, value: object) -> Callable[[], None]:
    """The k-th job of jobs.json with another value."""

    def change() -> None:
        whole = json.loads(Path("jobs.json").read_text())
        whole["jobs"][k][field] = value
        jobs = ",\n".join(json.dumps(one) for one in whole.pop("jobs"))
        Path("jobs.json").write_text(f'{json.dumps(whole)[:-1]}, "jobs": [\n{jobs}\n]}}\n')

    return change


def throughputs(value: str) -> Callable[[], None]:
    """Gavel's table, one value a line, the third of them given."""
    text = '{"v100": {\n "(\'A3C\', 1)": {\n  "null": %s}},\n "k80": {"(\'A3C\', 1)": {"null": 1.0}}}'
    return write("table.json", text % value)


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        # a trace with a negative duration
        (write("t.trace", TRACE.format(steps=9, arrived=0) + TRACE.format(steps=-9, arrived=1)), SIMULATE.format("t.trace"), ["t.trace, line 2, steps", "found '-9'", "> 0"]),
        (write("t.trace", TRACE.format(steps=9, arrived=-3)), SIMULATE.format("t.trace"), ["t.trace, line 1, arrived_s", "found '-3'"]),
        (job(4, "steps", -1.0), SIMULATE.format("jobs.json"), ["jobs.json, line 6: jobs.4: job 4: steps", "found -1.0", "> 0"]),
        (write("p.csv", "timestamp,duration,num_gpus\n2017-10-09 07:01:55,-66,1\n"), SIMULATE.format("p.csv"), ["p.csv, line 2, duration", "'-66'"]),
        (job(11, "arrived_s", 1e300), SIMULATE.format("jobs.json"), ["jobs.json, line 13: jobs.11: job 11: arrived_s", "found 1e+300"]),
        (job(4, "steps", 1e17), SIMULATE.format("jobs.json"), ["jobs.json: job 4: steps", "found 1e+17, which take", "years"]),
        (edit("snapshot.json", ('"v100": 2.0,', '"v100": 0.0,')), "solve snapshot.json -p min_cost", ["snapshot.json: worker type v100: price_usd_per_hour: found 0.0"]),
        (edit("workers.yaml", ("price_usd_per_hour: 2", "price_usd_per_hour: 0")), "simulate jobs.json workers.yaml -p min_cost", ["workers.yaml: worker type v100: price_usd_per_hour: found 0.0"]),
        # what a kind of workload has no use for, and a kind that is none
        (lambda: None, "generate static-single --rate 9 -o o.json", ["--rate: found 9; expected none for static-single", "all jobs arrive at time 0"]),
        (lambda: None, "generate continous-single -o o.json", ["KIND: found 'continous-single'", "Did you mean 'continuous-single'?"]),
        (lambda: None, "sweep workers.yaml -p fifo --rates 2 --kind continuous-multipel", ["--kind: found 'continuous-multipel'", "Did you mean 'continuous-multiple'?"]),
        # a table that leaves out what is to be drawn
        (throughputs("1"), "generate static-multiple --jobs 3 -o o.json --throughputs table.json", ["--throughputs: found a table without any job type that runs on 2 workers", "1, 2, 4, 8 workers"]),
        # files in each other's place, and names that others have for things
        (lambda: None, "simulate snapshot.json workers.yaml", ["snapshot.json: found keys", "Use `hocket cluster solve` for a snapshot."]),
        (lambda: None, "simulate workers.yaml jobs.json", ["jobs.json: found a file of format", "Give the jobs file first, then the workers file."]),
        (lambda: None, "simulate workers.yaml workers.yaml", ["workers.yaml: found the name", "Give the jobs file first, then the workers file."]),
        (write("w.json", "{}"), "simulate w.json workers.yaml", ["w.json: found no keys", "docs/reference/scheduler-files.md"]),
        (edit("workers.yaml", ("v100", "h100")), "simulate jobs.json workers.yaml", ["worker type h100: found no throughputs for this type", "--throughputs"]),
        (lambda: None, "solve snapshot.json -p LAS", ["--policy: found 'LAS'", "Use max_min_fairness."]),
        (lambda: None, "compare jobs.json workers.yaml -p themis:agnostic", ["--policy: found 'themis'", "Use finish_time_fairness."]),
        (lambda: None, "solve snapshot.json -p FIFO", ["--policy: found 'FIFO'", "Did you mean 'fifo'?"]),
        # what is no number
        (job(4, "steps", True), SIMULATE.format("jobs.json"), ["jobs.json, line 6: jobs.4: steps", "found True", "expected a number"]),
        (job(4, "steps", "12"), SIMULATE.format("jobs.json"), ["jobs.json, line 6: jobs.4: steps", "found '12'", "expected a number"]),
        (edit("workers.yaml", ("workers: 4", "workers: true")), SIMULATE.format("jobs.json"), ["workers.yaml, line 2: workers.0.workers", "found True", "a whole number"]),
        # numbers beyond reason, in whatever file
        (job(4, "steps", 1e300), SIMULATE.format("jobs.json"), ["jobs.json, line 6: jobs.4: job 4: steps", "found 1e+300", "1e+18"]),
        (job(4, "steps", 1e-320), SIMULATE.format("jobs.json"), ["jobs.json, line 6: jobs.4: job 4: steps", "found 1e-320"]),
        (edit("workers.yaml", ("price_usd_per_hour: 2", "price_usd_per_hour: 1e308")), SIMULATE.format("jobs.json"), ["workers.yaml, line 2: workers.0: worker type v100: price_usd_per_hour", "found 1e+308"]),
        (edit("workers.yaml", ("price_usd_per_hour: 2", "price_usd_per_hour: 1e-308")), SIMULATE.format("jobs.json"), ["workers.yaml, line 2: workers.0: worker type v100: price_usd_per_hour", "found 1e-308"]),
        (job(4, "weight", 1e308), SIMULATE.format("jobs.json"), ["jobs.json, line 6: jobs.4: job 4: weight", "found 1e+308"]),
        (write("t.trace", TRACE.format(steps=9, arrived=0) + TRACE.format(steps=9, arrived="1e300")), SIMULATE.format("t.trace"), ["t.trace, line 2: job 1: arrived_s", "found 1e+300"]),
        (write("t.trace", TRACE.format(steps="1e-320", arrived=0)), SIMULATE.format("t.trace"), ["t.trace, line 1: job 0: steps", "found 1e-320"]),
        (write("t.trace", TRACE.format(steps="1e300", arrived=0).replace("-1.0", "1e10")), SIMULATE.format("t.trace"), ["t.trace, line 1: job 0: s"]),
        (write("s.csv", "name,time,application,num_replicas\na,1e300,bert,1\n"), SIMULATE.format("s.csv"), ["s.csv, line 2: job a: arrived_s"]),
        (write("p.csv", "timestamp,duration,num_gpus\n2017-10-09 07:01:55,1e308,1\n"), SIMULATE.format("p.csv"), ["p.csv, line 2: job 2: steps"]),
        (write("p.csv", "timestamp,duration,num_gpus\n2017-10-09 07:01:55,1,1\n9999-10-09 07:01:55,1,1\n"), SIMULATE.format("p.csv"), ["p.csv, line 3: job 3: arrived_s"]),
        (throughputs("1e308"), SIMULATE.format("jobs.json") + " --throughputs table.json", ["table.json, line 3: v100: ('A3C', 1): null", "found 1e+308"]),
        (throughputs("1e-310"), SIMULATE.format("jobs.json") + " --throughputs table.json", ["table.json, line 3: v100: ('A3C', 1): null", "found 1e-310"]),
        (write("table.json", "{}"), SIMULATE.format("jobs.json") + " --throughputs table.json", ["table.json: throughputs: kinds: found none"]),
        (write("f/azure/cost/us_east.csv", "Date\n1/2/1970\n"), "prices f", ["instance_mapping.csv: found no such file"]),
        (lambda: None, "prices --at 9999-12-31T23:59-12:00", ["--at: found '9999-12-31T23:59-12:00'"]),
        (lambda: None, "prices --at 0001-01-01T00:00+12:00", ["--at: found '0001-01-01T00:00+12:00'", "such as 2020-03-01"]),
        # other documents
        (write("j.json", '{"format": "hocket-plan-1"}'), SIMULATE.format("j.json"), ["j.json: found what seems to be a plan", "expected a workload"]),
        (write("s.csv", "name,time,application,num_replicas,time\na,1,bert,1,2\n"), SIMULATE.format("s.csv"), ["s.csv, line 1: found two columns time"]),
        (edit("snapshot.json", ('"worker_types": [', '"worker_types": ["v100", ')), "solve snapshot.json", ["snapshot.json, line ", "worker_types: found 'v100' twice"]),
        # an unknown job type
        (job(2, "job_type", "ResNet-18 (batch size 33)"), SIMULATE.format("jobs.json"), ["jobs.json, line 4: jobs.2: job_type", "Did you mean 'ResNet-18 (batch size 32)'?"]),
        (write("t.trace", TRACE.format(steps=9, arrived=0).replace("32", "33")), SIMULATE.format("t.trace"), ["t.trace, line 1: job_type", "Did you mean"]),
        (write("s.csv", "name,time,application,num_replicas\na,0,berd,1\n"), SIMULATE.format("s.csv"), ["s.csv, line 2, application", "Did you mean 'bert'?"]),
        (lambda: None, "solve snapshot.json --space-sharing --throughputs table.json", ["table.json", "no such file"]),
        (edit("snapshot.json", ('"A3C"', '"A4C"')), "solve snapshot.json --space-sharing", ["snapshot.json, line 17: jobs.0: job_type", "'A4C'"]),
        # a scale factor that nobody measured
        (job(2, "scale_factor", 3), SIMULATE.format("jobs.json"), ["jobs.json, line 4: jobs.2: scale_factor", "found 3"]),
        # a duplicate id
        (job(7, "id", "3"), SIMULATE.format("jobs.json"), ["jobs.json, line 9: jobs.7.id", "'3', a second job of this id"]),
        (write("s.csv", "name,time,application,num_replicas\na,0,bert,1\nb,0,bert,1\na,9,bert,1\n"), SIMULATE.format("s.csv"), ["s.csv, line 4, name", "'a', a second job"]),
        (edit("snapshot.json", ('"id": 1', '"id": 0')), "solve snapshot.json", ["snapshot.json, line 26: jobs.1.id", "'0', a second job"]),
        (edit("workers.yaml", ("k80", "v100")), SIMULATE.format("jobs.json"), ["workers.yaml, line 3: workers.1.name: found 'v100', a second type with this name"]),
        # NaN throughputs
        (throughputs("NaN"), SIMULATE.format("jobs.json") + " --throughputs table.json", ["table.json, line 3: v100: ('A3C', 1).null", "NaN is not a number"]),
        (throughputs("-1"), SIMULATE.format("jobs.json") + " --throughputs table.json", ["table.json, line 3: v100: ('A3C', 1): null", "found -1"]),
        (throughputs("1e999"), "generate static-single --jobs 3 -o o.json --throughputs table.json", ["table.json, line 3: v100: ('A3C', 1): null", "found inf"]),
        (edit("snapshot.json", ('"v100": 3.0', '"v100": NaN')), "solve snapshot.json", ["snapshot.json, line 31: jobs.1.throughput.v100", "NaN is not a number"]),
        (edit("snapshot.json", ('"v100": 3.0', '"v100": -3.0')), "solve snapshot.json", ["snapshot.json, line 31: jobs.1: throughput: v100", "-3.0"]),
        (write("t.trace", TRACE.format(steps="nan", arrived=0)), SIMULATE.format("t.trace"), ["t.trace, line 1, steps", "'nan'"]),
        # a policy that does not exist
        (lambda: None, SIMULATE.format("jobs.json") + " -p fofi", ["--policy: found 'fofi'", "Did you mean 'fifo'?"]),
        (lambda: None, "compare jobs.json workers.yaml -p fifo -p fofi:agnostic --report page.html", ["--policy: found 'fofi'", "Did you mean"]),
        (lambda: None, "compare jobs.json workers.yaml -p fifo:blind", ["--policy: found 'fifo:blind'", "NAME:agnostic"]),
        (lambda: None, "compare jobs.json workers.yaml -p fifo -p fifo", ["--policy", "'fifo' twice"]),
        (lambda: None, "solve snapshot.json -p _lp", ["--policy: found '_lp'"]),
        # workers
        (edit("workers.yaml", ("price_usd_per_hour: 2", "price_usd_per_hour: .nan")), SIMULATE.format("jobs.json"), ["workers.yaml, line 2: workers.0", "price_usd_per_hour", "nan"]),
        (edit("workers.yaml", ("workers: 4", "workers: many")), SIMULATE.format("jobs.json"), ["workers.yaml, line 2: workers.0.workers", "'many'"]),
        (edit("workers.yaml", ("k80", "k81")), SIMULATE.format("jobs.json"), ["workers.yaml: worker type k81", "no throughputs", "table: v100, p100, k80"]),
        (edit("workers.yaml", ("workers: 4", "workers: 100000000000")), SIMULATE.format("jobs.json"), ["workers.yaml, line 2: workers.0", "workers: found 100000000000", "at most 1000000"]),
        (lambda: None, "simulate jobs.json jobs.json", ["jobs.json: found a file of format 'hocket-workload-1'", "workers"]),
        (lambda: None, "simulate workers.yaml jobs.json", ["jobs.json: found a file of format 'hocket-workload-1'"]),
        (lambda: None, "simulate jobs.json /dev/null", ["/dev/null: found an empty file"]),
        (lambda: None, "simulate jobs.json /dev/zero", ["/dev/zero: found more than"]),
        (lambda: None, "simulate /dev/zero workers.yaml", ["/dev/zero: found the name 'zero'"]),
        (lambda: None, "simulate . workers.yaml", [".: found a folder"]),
        (lambda: None, "simulate job.json workers.yaml", ["job.json: found no such file", "Did you mean 'jobs.json'?"]),
        (lambda: None, "solve jobs.json", ["jobs.json: found a file of format 'hocket-workload-1'", "a snapshot", "hocket cluster simulate"]),
        # columns that are missing, and other formats
        (write("s.csv", "name,time,app,num_replicas\na,0,bert,1\n"), SIMULATE.format("s.csv"), ["s.csv, line 1", "expected a header with timestamp,duration,num_gpus or name,time,application,num_replicas"]),
        (write("p.csv", "timestamp,duration\n2017-10-09 07:01:55,66\n"), SIMULATE.format("p.csv"), ["p.csv, line 1", "expected a header with"]),
        (write("p.csv", "timestamp,duration,num_gpus\n2017-10-09 07:01:55,66\n"), SIMULATE.format("p.csv"), ["p.csv, line 2", "found 2 fields; expected 3"]),
        (write("t.trace", "a\tb\n"), SIMULATE.format("t.trace"), ["t.trace, line 1", "10 tab-separated fields"]),
        (write("j.json", '{"format": "hocket-workload-1",\n"jobs": [{"id": "1"\n'), SIMULATE.format("j.json"), ["j.json, line 3", "an end inside the document", "cut off"]),
        (edit("jobs.json", ('"steps"', '"stops"')), SIMULATE.format("jobs.json"), ["jobs.json, line 2: jobs.0: stops", "Did you mean 'steps'?"]),
        (job(11, "arrived_s", 0.0), SIMULATE.format("jobs.json"), ["jobs.json, line 13: jobs.11.arrived_s", "in order of arrival"]),
        (write("f/aws/cost/us/a.json", '{"SpotPriceHistory": [\n{"AvailabilityZone": "us-east-1a"}]}'), "prices f", ["f/aws/cost/us/a.json, line 2: SpotPriceHistory.0.InstanceType"]),
        (write("f/aws/cost/us/a.json", "x"), "prices f", ["f/aws/cost/us/a.json, line 1", "a JSON document"]),
        (write("f/gcp/spin_up_and_shut_down/2020-02-26T170353Z.out", "Zone: us-west1-b, GPU type: v100\n"), "prices f", ["2020-02-26T170353Z.out, line 1", "expected Zone: Z, GPU type"]),
        (write("f/azure/cost/us_east.csv", "Day,NC6\n"), "prices f", ["instance_mapping.csv: found no such file"]),
        (lambda: None, "prices jobs.json", ["jobs.json: found a file; expected a folder with aws/cost"]),
        (write("s.csv", "name,time,application,num_replicas\n"), SIMULATE.format("s.csv"), ["s.csv: found no jobs"]),
        (write("j.json", '{"format": "hocket-workload-1", "jobs": []}'), SIMULATE.format("j.json"), ["j.json: found no jobs"]),
        # options
        (lambda: None, "generate continuous-single --rate nan -o o.json", ["--rate: found nan", "jobs an hour"]),
        (lambda: None, "generate continuous-single --rate 1e-320 -o o.json", ["--rate"]),
        (lambda: None, "generate continuous-single --jobs 99999999999 -o o.json", ["--jobs: found 99999999999", "to 1000000"]),
        (lambda: None, "generate continuous-single --jobs 5 -o no/o.json", ["no/o.json: found no folder", "Make "]),
        (lambda: None, SIMULATE.format("jobs.json") + " --round 1e308", ["--round: found 1e+308", "seconds"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --round nan", ["--round: found nan"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --overhead-s 360", ["--overhead-s", "a sum below round_s"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --first 12", ["--first: found 12", "which is 12"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --first 3 --last 2", ["--last: found 2", "more than --first"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --seed -1", ["--seed: found -1"]),
        (lambda: None, SIMULATE.format("jobs.json") + " -p makespan_budget", ["--budget-usd: found nothing", "dollars"]),
        (lambda: None, SIMULATE.format("jobs.json") + " -p makespan_budget --budget-usd 1", ["--budget-usd: found 1.00", "or more"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --budget-usd 1", ["--budget-usd: found 1", "makespan_budget"]),
        (lambda: None, "simulate jobs.json workers.yaml --report jobs.json", ["--report: found jobs.json", "a different file"]),
        (lambda: None, "simulate jobs.json workers.yaml --report snapshot.json", ["snapshot.json: found a file that is not a report"]),
        (lambda: None, "generate static-single -o snapshot.json", ["snapshot.json: found a file that is not a workload"]),
        (lambda: None, "compare jobs.json workers.yaml -p fifo --report ./workers.yaml", ["--report: found workers.yaml", "a different file"]),
        (lambda: None, "simulate jobs.json workers.yaml --report page.html --bills page.html", ["--bills: found page.html", "Another option reads or writes"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --estimate 5", ["--estimate: found no space sharing; expected space sharing"]),
        # options that would change nothing
        (lambda: None, SIMULATE.format("jobs.json") + " -p fifo:agnostic --space-sharing", ["--space-sharing: found fifo:agnostic, which never lets jobs share", "NAME:space-sharing"]),
        (lambda: None, "compare jobs.json workers.yaml -p fifo -p allox:space-sharing", ["--policy: found allox, which never lets jobs share"]),
        (lambda: None, "sweep workers.yaml -p fifo:space-sharing:agnostic --rates 2", ["--policy: found fifo:agnostic, which never"]),
        (lambda: None, "solve snapshot.json -p isolated --space-sharing", ["--space-sharing: found isolated, which never"]),
        (lambda: None, "solve snapshot.json --agnostic --space-sharing", ["--space-sharing: found max_min_fairness:agnostic, which never"]),
        (own_table, SIMULATE.format("own.json") + " --throughputs table.json --space-sharing", ["--space-sharing: found a throughput table without pairs"]),
        (own_table, "compare own.json workers.yaml --throughputs table.json -p fifo -p fifo:space-sharing", ["--space-sharing: found a throughput table without pairs"]),
        (own_table, SIMULATE.format("own.json") + " --throughputs table.json --spread", ["--spread: found a throughput table without spread places"]),
        (own_table, "solve snapshot.json --throughputs table.json --space-sharing", ["--space-sharing: found a throughput table without pairs"]),
        (lambda: None, "solve snapshot.json --throughputs table.json", ["--throughputs: found table.json, without space sharing"]),
        (lambda: None, "solve snapshot.json -p hierarchical --mixed", ["snapshot.json: entity_policies_mixed: found nothing"]),
        (edit("snapshot.json", ('"jobs"', '"entity_policies_mixed": {"a": "fifo"}, "jobs"')), "solve snapshot.json --mixed", ["--mixed: found --policy max_min_fairness, which ignores entities"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --bills bills.json --checkpoint-gb 5", ["--checkpoint-gb: found 5, and no worker type", "Add --prices"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --space-sharing --references 5", ["--references: found 5, without --estimate"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --last 13", ["--last: found 13, of 12 jobs"]),
        (lambda: None, SIMULATE.format("jobs.json") + " --jobs 5 --last 6", ["--last: found 6, of 5 jobs"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2,x", ["--rates: found 'x'", "separated by commas"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2,,3", ["--rates: found ''", "separated by commas"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2,0", ["--rates: found 0.0", "jobs an hour"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2,-1", ["--rates: found -1.0", "jobs an hour"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates nan", ["--rates: found nan"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates inf", ["--rates: found inf"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2,3,2", ["--rates: found '2' twice", "each rate once"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 1" + ",1" * 60, ["--rates: found 61 rates", "at most 50"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2,3 --seeds 0", ["--seeds: found 0"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2,3 --seeds 101", ["--seeds: found 101"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 1,2,3,4,5,6 --seeds 100 -p isolated", ["--rates: found 1200 runs", "at most 1000 runs"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --seed 9223372036854775807 --seeds 2", ["--seed: found 9223372036854775808"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --kind static-single", ["--kind: found 'static-single'", "continuous-single or continuous-multiple"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 -p fofi", ["--policy: found 'fofi'", "Did you mean 'fifo'?"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 -p fifo:blind", ["--policy: found 'fifo:blind'", "NAME:agnostic"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 -p fifo", ["--policy: found 'fifo' twice"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --first 5 --last 5", ["--last: found 5", "more than --first"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --last 9 --jobs 8", ["--jobs: found 8", "--last, which is 9"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --last 1000001", ["--last: found 1000001", "at most 1000000"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --jobs 0", ["--jobs: found 0"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --jobs 5 --first 5", ["--first: found 5", "which is 5"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --budget-usd 5", ["--budget-usd: found 5"]),
        (lambda: None, "sweep workers.yaml -p fifo --report page.html --rates 2 --estimate 3", ["--estimate: found no space sharing; expected space sharing"]),
        (edit("workers.yaml", ("k80", "k81")), "sweep workers.yaml -p fifo --rates 2", ["workers.yaml: worker type k81", "table: v100, p100, k80"]),
        (lambda: None, "sweep jobs.json -p fifo --rates 2", ["jobs.json: found a file of format 'hocket-workload-1'"]),
        (lambda: None, "sweep workers.yaml -p fifo --rates 2 --report workers.yaml", ["--report: found workers.yaml", "a different file"]),
        (lambda: None, "sweep workers.yaml -p fifo --rates 2 --jobs 2 --report no/x.html", ["no/x.html: found no folder"]),
        (lambda: None, "sweep workers.yaml -p fifo --rates 2 --throughputs /dev/null", ["/dev/null"]),
        (lambda: None, "simulate jobs.json workers.yaml --jobs 2 --report /proc/x.html", ["/proc/x.html"]),
        (lambda: None, "simulate jobs.json workers.yaml --jobs 2 --journal /proc/x", ["/proc/x"]),
        (lambda: None, "simulate jobs.json workers.yaml --jobs 2 --report /dev/full", ["/dev/full: found No space left on device"]),
    ],
)  # fmt: skip
@pytest.mark.thinned(most=60)
def test_bad_input_is_one_error(
    run: Run, shared: Path, change: Callable[[], None], words: str, told: list[str]
) -> None:
    """With file, line and field, what was found and what was expected."""
    change()
    refused(run, words, *told)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("big.json", "simulate big.json workers.yaml"),
        ("big.trace", "simulate big.trace workers.yaml"),
        ("big.csv", "compare big.csv workers.yaml -p fifo"),
        ("big.yaml", "simulate jobs.json big.yaml"),
        ("big.json", "simulate jobs.json workers.yaml --throughputs big.json"),
        ("big.json", "solve big.json"),
        ("big.log", "replay big.log"),
        ("f/aws/cost/us/big.json", "prices f"),
    ],
)
def test_a_file_of_a_gibibyte_is_refused_without_reading_it(run: Run, shared: Path, name: str, words: str) -> None:
    """A file of 1 GiB is refused without reading it; a journal, which may be so large, at its first line.

    This holds for every argument. Little memory is allocated.
    """
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).touch()
    os.truncate(name, 2**30)
    ask(run, "policies")  # what is imported only once
    tracemalloc.start()
    try:
        refused(run, words, name, "no journal record" if name == "big.log" else "at most")
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


@pytest.fixture
def journal(run: Run, shared: Path) -> Path:
    """Write the journal of a simulation."""
    assert ask(run, "simulate jobs.json workers.yaml --jobs 3 --round 3600 --journal journal.log").code == 0
    return Path("journal.log")


def test_a_journal_that_is_cut_off(run: Run, journal: Path) -> None:
    """A truncated journal is refused or replayed without its last record.

    If the first record is truncated, the file is no journal. A later truncated record is omitted, and its line is
    named.
    """
    content = journal.read_bytes()
    first = content.index(b"\n") + 1
    for size in (0, 5, first - 1):
        journal.write_bytes(content[:size])
        refused(run, "replay journal.log", "journal.log: found no journal record", "hocket-journal-1")
    journal.write_bytes(content[: first + 50])
    found = ask(run, "replay journal.log")
    assert (found.code, found.err) == (0, "")
    assert "journal.log, line 2: the record is cut off after 50 bytes" in found.out


def test_a_journal_of_a_policy_that_is_not_there(run: Run, shared: Path) -> None:
    """A journal with an unknown policy is refused, with the file's name."""
    setup = Setup((WorkerType("v100", 1),), (Placement(0),), "first_come_first_served")
    Journal.create("journal.log", setup, lambda _: pytest.fail("it was asked")).close()
    refused(run, "replay journal.log", "journal.log, line 1: setup.policy: found 'first_come_first_served'", "allox")


def test_a_journal_that_was_changed(run: Run, journal: Path) -> None:
    """The line of the first wrong record is named, and how much of the file is whole."""
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:4], lines[4].replace(b'"now_s":', b'"now_s": '), *lines[5:]]))
    refused(run, "replay journal.log", "journal.log, line 5: found a record that was changed", "the first ")
    journal.write_bytes(b"".join([*lines[:4], *lines[5:]]))
    refused(run, "replay journal.log", "journal.log, line 5: ")


@pytest.mark.parametrize("name", ["jobs.json", "workers.yaml", "/dev/null", ".", "nothing"])
def test_what_is_no_journal(run: Run, shared: Path, name: str) -> None:
    """Other files, folders, and nothing at all."""
    refused(run, f"replay {name}", name)


def test_errors_are_json_too(run: Run, shared: Path) -> None:
    """For who asked for it: place, found, expected, next step."""
    job(4, "steps", -1.0)()
    found = ask(run, "simulate jobs.json workers.yaml --json")
    assert found.code == 2
    error = found.json["error"]
    assert (error["place"], error["found"]) == ("jobs.json, line 6: jobs.4: job 4: steps", "-1.0")
    found = ask(run, "simulate jobs.json workers.yaml --last 0 --json")
    assert found.code == 2
    assert found.json["error"]["message"].startswith("--last: found 0; expected >= 1")
