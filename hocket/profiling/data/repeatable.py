"""Repeatability check: equal samples at every read, in every process.

Rules of this file: a pipeline reads a sample twice, in two processes: for its inputs and for its targets. If the reads
differ, the labels belong to other inputs, and no other check detects this. Some samples are therefore read twice before
training.
"""

from collections.abc import Sequence
from typing import Any

from hocket.errors import InputError
from hocket.profiling.data.checksums import Sums, difference, sums_of
from hocket.profiling.data.iterable import IterableSamples
from hocket.profiling.job.job import Job
from hocket.util.units import show_count

Reads = dict[str, Any]
"""JSON record of one process: length of the data, checksums of samples read twice."""
_INDICES = 4  # samples that are read; the first ones for two epochs
_LATER = 2
_EXPECTED = "the same sample at every read, in every process"
_DRAWS = (
    "Draw random numbers in data[i] from the global generators of torch, numpy.random or random: Hocket seeds them for each sample "
    "(torch's on the CPU). A generator of your own must be seeded from these or from the index; numbers from the system, clocks, "
    "counters and tensors that data[i] changes in place differ at every read."
)
_ALONE = (
    "collate must give a sample the same row whatever samples are collated with it: pad to one fixed length, and draw random "
    "numbers in data[i]. "
)
_ANEW = "`__iter__` must begin anew at each call, with the same samples in every process. "
SEED = (
    "Every worker builds the dataset again from the job file: seed its construction there (torch.manual_seed, numpy.random.seed, "
    "random.seed) or load it from a file, and let nothing in it depend on the samples that were read before."
)


def check_repeatable(job: Job) -> None:
    """Read up to six samples twice, and compare the reads.

    Raises:
        InputError: a sample differs or cannot be read; the error names the sample.
    """
    check_reads(job, [reads_of(job)])


def reads_of(job: Job, backwards: bool = False) -> Reads:
    """Read some samples together, then again one by one.

    Arguments:
        job: the job with the data.
        backwards: read the last sample first. Data that depend on the order of reads then differ between two processes.
    """
    places = _places(job)
    if backwards:
        places.reverse()
    first = sums_of(job.batch([index for index, _ in places], [position for _, position in places]))
    if isinstance(job.data, IterableSamples):
        job.data.start_over()  # the samples that were just read are kept
    again = [sums_of(job.batch([index], [position]))[0] for index, position in places]
    if isinstance(job.data, IterableSamples) and job.data.has_state and job.data.trusted:
        _try_state(job, job.data)
    if backwards:
        first.reverse()
        again.reverse()
    return {"samples": job.samples, "first": first, "again": again}


def check_reads(job: Job, reads: Sequence[Reads]) -> None:
    """Compare the reads of all processes; every process raises an equal error.

    Arguments:
        job: the job with the data.
        reads: reads of each process, by rank.

    Raises:
        InputError: two reads of a sample differ, or the length of the data differs between processes. The error names
            the sample and the item, or the workers.
    """
    for rank, read in enumerate(reads):
        if read["samples"] != reads[0]["samples"]:
            found = f"{show_count(read['samples'], 'sample')} on worker {rank}"
            raise InputError("Job.data", found, f"{reads[0]['samples']}, as on worker 0", SEED)
    places = _places(job)
    for read in reads:
        for (index, _), first, again in zip(places, read["first"], read["again"], strict=True):
            if item := difference(first, again):
                step = _ANEW * job.iterates + _ALONE * (job.collate is not None) + _DRAWS
                raise InputError(f"Job.data[{index}]", f"other values of {item} at the second read", _EXPECTED, step)
    for k, (index, _) in enumerate(places):
        check_alike(index, {rank: read["first"][k] for rank, read in enumerate(reads)})


def check_alike(index: int, read: dict[int, Sums]) -> None:
    """Compare the reads of one sample by several workers.

    Arguments:
        index: index of the sample.
        read: checksums by rank.

    Raises:
        InputError: the reads differ; the error names the sample, the item and two workers.
    """
    first = min(read)
    for rank, sums in sorted(read.items()):
        if item := difference(read[first], sums):
            found = f"other values of {item} on worker {rank} than on worker {first}"
            raise InputError(f"Job.data[{index}]", found, _EXPECTED, SEED)


def _try_state(job: Job, stream: IterableSamples) -> None:
    """Restore a stream between its first samples; trust its state if it gives the same samples.

    The state of a dataset may leave something out, such as the samples in a shuffle buffer.
    """
    wanted = [sums_of(job.batch([place]))[0] for place in range(_INDICES)]
    stream.start_over()
    found = []
    for place in range(_INDICES):
        found.append(sums_of(job.batch([place]))[0])
        stream.restore(place + 1, stream.state_at(place + 1))
    stream.trusted = not any(map(difference, wanted, found))
    stream.restore(0, None)


def _places(job: Job) -> list[tuple[int, int]]:
    """Return index and position of the samples to read.

    The first samples occur again one epoch later, unless the length of an epoch is unknown.
    """
    indices = job.indices_at(0, min(_INDICES, job.samples))
    places = [(index, position) for position, index in enumerate(indices)]
    if job.iterates:
        return places
    return places + [(index, job.samples + position) for index, position in places[:_LATER]]
