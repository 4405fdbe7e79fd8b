"""Check: proof, before launch, that a program is legal.

The proof holds for any number of repetitions of the period. Each step is in a separate file, and runs only if the step
before found nothing:

1. structure.py: stages, stage boundaries, ties, rule and stride fit each other.
2. instruction_rules.py: every instruction is on a device and lane where it may be, and reads and writes exactly what
   order.py demands. So its device, microbatch and weight version are right.
3. exactly_once.py: every task is there exactly once, for any number of repetitions. So every microbatch has one forward
   and one backward on each stage, and every update applies exactly the gradients of its microbatches.
4. rendezvous.py: sends and receives mirror each other, and all ranks of a group have the same collectives.
5. untimed_run.py: prologue and period run to their end under rendezvous. In any interleaving, no value is read before
   it is written or after it is freed. The state after the period is the state before it, shifted, so the next
   repetition runs like this one. The epilogue runs from there and leaves exactly the newest weights and optimizer
   state.
6. footprint.py, if bytes are given: no interleaving needs more memory than a device has.

The check is stricter than order.py in two points. Each part must be able to end before the next begins. A value that is
read in one part and freed in a later one must be freed in the lane that read it.
"""

from collections.abc import Callable, Iterator, Mapping

from hocket.errors import ProgramError
from hocket.program.check.exactly_once import count_problems
from hocket.program.check.instruction_rules import PARTS, instruction_problems
from hocket.program.check.problem import Place, Problem, problem_at
from hocket.program.check.rendezvous import meeting_problems
from hocket.program.check.structure import structure_problems
from hocket.program.instruction import Value
from hocket.program.memory_bound.footprint import Sizes, memory_problems
from hocket.program.memory_bound.untimed_run import Live, Untimed
from hocket.program.program import Program
from hocket.program.text.diagram import draw

MAX_SHOWN = 20  # problems in the text of an error


def check(
    program: Program,
    *,
    value_bytes: Callable[[Value], float] | Sizes | None = None,
    capacity_bytes: Mapping[int, float] | None = None,
    host_bytes: Mapping[int, float] | None = None,
) -> tuple[Problem, ...]:
    """Return all problems of a program; empty if the program is legal.

    The proof runs in steps. Later steps run only if earlier steps found nothing.

    Arguments:
        value_bytes: bytes of a value; None skips the check of memory.
        capacity_bytes: bytes of memory of each device; None skips the check of device memory.
        host_bytes: for each device, bytes of host memory that its swapped values may use; None skips the check of host
            memory.
    """
    found = structure_problems(program) or instruction_problems(program) or count_problems(program)
    found = found or [problem for part in PARTS for problem in meeting_problems(program, part)]
    found = found or _run(program)
    if not found and value_bytes is not None and capacity_bytes is not None:
        found = memory_problems(program, value_bytes, capacity_bytes)
    if not found and value_bytes is not None and host_bytes is not None:
        found = memory_problems(program, value_bytes, host_bytes, host=True)
    return tuple(found)


def prove(
    program: Program,
    *,
    value_bytes: Callable[[Value], float] | Sizes | None = None,
    capacity_bytes: Mapping[int, float] | None = None,
    host_bytes: Mapping[int, float] | None = None,
) -> None:
    """Raise an error if a program is not legal.

    Arguments:
        value_bytes: bytes of a value; None skips the check of memory.
        capacity_bytes: bytes of memory of each device; None skips the check of device memory.
        host_bytes: for each device, bytes of host memory that its swapped values may use; None skips the check of host
            memory.

    Raises:
        ProgramError: the message lists the first problems, with a diagram that marks the first one that has a place.
    """
    refuse(program, check(program, value_bytes=value_bytes, capacity_bytes=capacity_bytes, host_bytes=host_bytes))


def refuse(program: Program, problems: tuple[Problem, ...]) -> None:
    """Raise an error if problems of a program were found.

    Raises:
        ProgramError: the message lists the first problems, with a diagram that marks the first one that has a place.
    """
    if problems:
        raise ProgramError(f"program {program.name}", report(program, problems), "a legal program")


def report(program: Program, problems: tuple[Problem, ...]) -> str:
    """Text about problems for people.

    The text lists the first problems. A diagram marks the first one that has a place; without one, there is no
    diagram.
    """
    lines = [f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"]
    lines += [f"  {problem}" for problem in problems[:MAX_SHOWN]]
    if len(problems) > MAX_SHOWN:
        lines.append(f"  and {len(problems) - MAX_SHOWN} more")
    shown = next((problem for problem in problems if problem.place), None)
    if shown is not None:
        lines += ["", draw(program, mark=shown.place)]
    return "\n".join(lines)


def _run(program: Program) -> list[Problem]:
    """Run the program once without time, and compare states between its parts.

    The state after a period must be the state before it, shifted by one period. The state after the epilogue must be
    the newest weights and optimizer state.
    """
    run = Untimed.start(program)
    if not run.run("prologue") or run.problems:
        return run.problems
    once, end = run.fork(), run.fork()
    if not once.run("period") or once.problems:
        return once.problems
    found = list(_unlike(run, once))
    if found:
        return found
    if not end.run("epilogue") or end.problems:
        return end.problems
    return list(_left_over(end))


def _unlike(start: Untimed, end: Untimed) -> Iterator[Problem]:
    """Yield differences between the states before and after a period.

    The state before is shifted by one period.

    Arguments:
        start, end: the run before the period, and after it.
    """
    program = start.program
    for device in program.devices:
        before = {program.moved(value, 1): live for value, live in start.live[device].items()}
        after = end.live[device]
        leaked = after.keys() - before.keys()
        for value in sorted(leaked):
            yield _leak(end, device, value, after[value], "one more value is left after each repetition of the period")
        for value in sorted(before.keys() - after.keys()):
            if program.moved(value, -1) in leaked:
                continue  # reported above: the same value of the period before was never freed
            yield _lost(start, end, device, value, before[value])
        for value in sorted(before.keys() & after.keys()):
            lanes = sorted(after[value].readers.keys() - before[value].readers.keys())
            stays = program.moved(value, 1) == value  # weights of an evaluation, which no later part frees
            if lanes and not stays:
                place = _place_in(end, after[value].readers[lanes[0]], lanes[0])
                yield problem_at(
                    place,
                    place.instruction(program),
                    "race",
                    f"reads {value} without freeing it, but this lane did not read it before the period",
                    "a value that outlives the period to be read by the same lanes in each repetition",
                )


def _left_over(end: Untimed) -> Iterator[Problem]:
    """Yield differences between the final state and the required one.

    Only the newest weights and optimizer state may, and must, be left.
    """
    program = end.program
    for device in program.devices:
        final, live = set(program.final(device, 0)), end.live[device]
        for value in sorted(live.keys() - final):
            yield _leak(end, device, value, live[value], "it still exists at the end")
        for value in sorted(final - live.keys()):
            yield _freed(end, device, value, "the newest weights and optimizer state to exist at the end")


def _leak(run: Untimed, device: int, value: Value, live: Live, why: str) -> Problem:
    """Problem of a value that is never freed, at its last reader, else at its writer.

    Arguments:
        run: a run in which the value is left.
        live: writer and readers of the value.
        why: reason why the value had to be freed, for the message.
    """
    program = run.program
    readers = [(event, lane) for lane, event in live.readers.items()]
    if readers:
        place = _place_in(run, *max(readers))
        mend = f"Free it in {place.instruction(program).name}."
    else:
        places = [place for place in run.events[live.event] if place.device == device]
        if not places:
            message = f"device {device} has {value} from the start, and no instruction frees it: {why}."
            return Problem("leak", message, device=device)
        place, mend = places[0], "Free it at its last reader."
    found = f"is the last to use {value}{run.written_by(live, device)}, which no instruction frees: {why}"
    return problem_at(place, place.instruction(program), "leak", found, "its last reader to free it", mend)


def _lost(start: Untimed, end: Untimed, device: int, value: Value, live: Live) -> Problem:
    """Problem of a value that exists before a period, and not for the next one.

    Arguments:
        start, end: the run before the period, and after it.
        value: name that the value should have after the period.
        live: writer and readers of the value before the period.
    """
    program = start.program
    if (device, value) in end.gone:
        return _freed(end, device, value, "it to exist for the next repetition of the period")
    like = program.moved(value, -1)
    return _leak(
        start, device, like, live, f"after a repetition of the period, the corresponding {value} does not exist"
    )


def _freed(run: Untimed, device: int, value: Value, expected: str) -> Problem:
    if (device, value) not in run.gone:
        return Problem(
            "unwritten", f"device {device}: no instruction writes {value}; expected {expected}.", device=device
        )
    places = run.events[run.gone[device, value]]
    place = next(place for place in places if place.device == device)
    return problem_at(
        place, place.instruction(run.program), "freed", f"frees {value}", expected, "Do not free it there."
    )


def _place_in(run: Untimed, event: int, lane: tuple[int, str]) -> Place:
    return next(place for place in run.events[event] if (place.device, place.lane) == lane)
