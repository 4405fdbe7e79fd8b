"""Rules of single instructions: device, lane, and the values of order.py.

Rules of this file: each instruction is checked alone, and its first error is reported.
"""

from collections.abc import Iterable

from hocket.program.check.problem import Place, Problem, problem_at
from hocket.program.instruction import (
    COLLECTIVES,
    GATHER,
    LOAD,
    REDUCE,
    SWAP_LANES,
    SWAPS,
    Instruction,
    Kind,
    Value,
    ValueKind,
    computes,
    receive_lane,
    send_lane,
)
from hocket.program.order import (
    demanded,
    first_of_round,
    gather_values,
    heir_of,
    last_in_update,
    norm_group,
    norm_summed,
    norms,
    piece,
    reduce_group,
    scattered,
    stages_on,
    sum_of,
)
from hocket.program.program import Lanes, Program

PARTS = ("prologue", "period", "epilogue")
_ON_A_REPLICA = frozenset({Kind.LOAD, Kind.FORWARD, Kind.BACKWARD})
_TRANSFERS = frozenset({Kind.SEND, Kind.RECEIVE})
_OF_ANY_STAGE = _TRANSFERS | SWAPS | {Kind.DROP}  # any value on a device can be moved or dropped
_TRAINS = frozenset({Kind.BACKWARD, Kind.NORM, Kind.STEP, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})
_BORDER = frozenset({ValueKind.ACTIVATION, ValueKind.GRADIENT})

Wrong = tuple[str, str, str, str]  # an error of an instruction: code, found, expected, next step


def instruction_problems(program: Program) -> list[Problem]:
    """Problems of every instruction that is wrong by itself."""
    found = []
    for part in PARTS:
        lanes: Lanes = getattr(program, part)
        for (device, lane), instructions in lanes.items():
            for position, instruction in enumerate(instructions):
                wrong = _place(program, instruction, device, lane) or _values(program, instruction)
                if wrong:
                    code, what, expected, mend = wrong
                    place = Place(part, device, lane, position)
                    found.append(problem_at(place, instruction, code, what, expected, mend))
    return found


def transfer_ends(program: Program, value: Value) -> tuple[int, int] | None:
    """Sending and receiving device of an activation or gradient.

    Returns:
        None if the stages exchange no such message.
    """
    stages = program.stages
    if not (0 <= value.stage < len(stages) and value.part in stages[value.stage].targets):
        return None
    if value.index % piece(stages, value.stage, value.part):
        return None
    near, far = stages[value.stage].device(value.index), stages[value.part].device(value.index)
    if value.what is ValueKind.ACTIVATION:
        return near, far
    if value.what is ValueKind.GRADIENT and value.stage in stages[value.part].gradients:
        return far, near
    return None


def _place(program: Program, i: Instruction, device: int, lane: str) -> Wrong | None:
    """Error in the device, lane, kind, stage, index or group of an instruction.

    Returns:
        None if there is none.
    """
    if i.device != device or i.lane != lane:
        return "place", f"has device {i.device} and lane {i.lane}", "the device and lane of its place", ""
    kind = i.kind
    if kind in SWAPS and not program.swaps:
        return "kind", f"has kind {kind}", "no swaps in a program without swapping", ""
    if kind in _TRAINS and not program.rule.trains:
        return "kind", f"has kind {kind}", "forwards, without backwards and updates, in a program that evaluates", ""
    if not 0 <= i.stage < len(program.stages):
        return "values", f"has stage {i.stage}", f"a stage from 0 to {len(program.stages) - 1}", ""
    if i.index < 0:
        return "values", f"has index {i.index}", "an index >= 0", ""
    if (i.peer >= 0) != (kind in _TRANSFERS) or bool(i.group) != (kind in COLLECTIVES):
        return "place", f"has peer {i.peer} and group {list(i.group)}", "peers in transfers, groups in collectives", ""
    if i.again and kind is not Kind.FORWARD:
        return "values", "is marked as recomputation", "this mark for forwards only", ""
    if kind not in _OF_ANY_STAGE:
        shape = program.stages[i.stage]
        if device not in shape.devices:
            return "place", f"belongs to stage {i.stage}", f"one of the stage's devices {list(shape.devices)}", ""
        if kind in _ON_A_REPLICA and not program.rule.takes(i.stage, i.index):
            return "values", f"is for microbatch {i.index}", "a microbatch of its own wave", ""
        if kind in _ON_A_REPLICA and shape.device(i.index) != device:
            return "place", f"is for microbatch {i.index}", f"device {shape.device(i.index)}, which runs it", ""
        if kind in _ON_A_REPLICA and shape.first(i.index) != i.index:
            first = f"microbatch {shape.first(i.index)}, the first of a bundle of {shape.merged}"
            return "values", f"is for microbatch {i.index}", first, ""
        sums = norms(program.stages, program.rule) and i.stage == stages_on(program.stages, device)[0]
        if kind is Kind.NORM and not sums:
            return "values", f"has stage {i.stage}", "the first stage of its device, in a program with norms", ""
    return _lane(program, i)


def _lane(program: Program, i: Instruction) -> Wrong | None:
    match i.kind:
        case Kind.SEND:
            expected = send_lane(i.peer)
        case Kind.RECEIVE:
            expected = receive_lane(i.peer)
        case Kind.ALL_REDUCE | Kind.REDUCE_SCATTER | Kind.ALL_GATHER:
            prefix = GATHER if i.kind is Kind.ALL_GATHER else REDUCE
            if i.lane.startswith(f"{prefix}@"):
                return None
            expected = f"{prefix}@..."
        case Kind.SWAP_IN | Kind.SWAP_OUT if i.lane == SWAP_LANES[i.kind]:
            return None
        case Kind.DROP if computes(i.lane):
            return None
        case Kind.LOAD if program.prefetch:
            expected = LOAD
        case _:
            expected = program.stages[i.stage].lane
    return None if i.lane == expected else ("lane", "is in the wrong lane", f"lane {expected}", "Move it there.")


def _values(program: Program, i: Instruction) -> Wrong | None:
    """Error in the values that an instruction reads, writes or frees.

    Returns:
        None if there is none.
    """
    wrong = _copies(program, i) if program.swaps else None
    if wrong:
        return wrong
    match i.kind:
        case Kind.SWAP_IN | Kind.SWAP_OUT:
            wrong = _swap(program, i)
        case Kind.SEND | Kind.RECEIVE:
            wrong = _transfer(program, i)
        case Kind.ALL_REDUCE | Kind.REDUCE_SCATTER:
            wrong = _reduction(program, i)
        case Kind.ALL_GATHER:
            wrong = _gather(program, i)
        case Kind.DROP:
            wrong = _differ(program, i, i.frees, ()) if i.frees else ("values", "frees nothing", "a value to free", "")
        case _:
            needed = demanded(program, i)
            wrong = None if needed == (i.reads, i.writes) or needed is None else _differ(program, i, *needed)
    if wrong or not i.frees:
        return wrong
    if any(value not in i.reads for value in i.frees) or len(set(i.frees)) != len(i.frees):
        odd = next(v for v in i.frees if v not in i.reads or i.frees.count(v) > 1)
        return "frees", f"frees {odd}, which it does not read, or frees twice", "values that it reads, each once", ""
    return None


def _copies(program: Program, i: Instruction) -> Wrong | None:
    """Error in the places of the values of an instruction: on the device or the host.

    Only swaps, drops and transfers may name host copies. All other instructions work on the device.

    Returns:
        None if there is no error.
    """
    if i.kind in _OF_ANY_STAGE:
        return None
    odd = next((v for v in i.reads if v.on_host), None)
    if odd is not None:
        return "values", f"reads {odd}, which is on the host", "a copy on the device", "Swap it in first."
    odd = next((v for v in i.writes if v.copy), None)
    if odd is not None:
        return "values", f"writes {odd}", f"{odd.plain}, because only swaps write other copies", ""
    return None


def _swap(program: Program, i: Instruction) -> Wrong | None:
    """Error in a swap; None if there is none.

    A swap turns one copy into a later copy on the other side. It may reuse the buffer of an older copy.
    """
    inwards = i.kind is Kind.SWAP_IN
    reads, writes = ([v for v in row if v.what is not ValueKind.MARK] for row in (i.reads, i.writes))
    if not reads or len(writes) != 1:
        return "values", f"reads {_list(i.reads)} and writes {_list(i.writes)}", "one copy, written from another", ""
    source, made, *rest = reads[0], writes[0], *reads[1:]
    if (source.stage, source.index) != (i.stage, i.index):
        return "values", f"moves {source}", f"a value of stage {i.stage} with index {i.index}", ""
    sides = "from host to device" if inwards else "from device to host"
    if source.plain != made.plain or source.on_host != inwards or made.on_host == inwards or made.copy <= source.copy:
        return "values", f"copies {source} to {made}", f"a later copy of the same value, {sides}", ""
    if rest and (inwards or len(rest) > 1 or not rest[0].on_host or heir_of(i, made) != rest[0]):
        return "values", f"also reads {_list(rest)}", "nothing else, or an older host copy to overwrite and free", ""
    ends = transfer_ends(program, source) if source.what in _BORDER else None
    if not inwards and made.copy == 1 and ends is not None and ends[0] != i.device:
        return "values", f"writes {made}", f"{source.plain}~3 or later, because ~1 is received on the host", ""
    return None


def _transfer(program: Program, i: Instruction) -> Wrong | None:
    sends = i.kind is Kind.SEND
    carried = i.reads if sends else i.writes
    rest = i.writes if sends else i.reads
    if len(carried) != 1 or rest:
        return "values", f"reads {_list(i.reads)} and writes {_list(i.writes)}", "one value to send or receive", ""
    value = carried[0]
    if value.copy > program.swaps:
        return "values", f"carries {value}", f"{value.plain} or its first copy on the host", ""
    ends = transfer_ends(program, value)
    if (value.stage, value.index) != (i.stage, i.index) or ends is None:
        return "values", f"carries {value}", f"an activation or gradient of stage {i.stage}, microbatch {i.index}", ""
    maker, taker = ends
    if (i.device, i.peer) != ((maker, taker) if sends else (taker, maker)):
        return "place", f"has peer {i.peer}", f"a transfer of {value} from device {maker} to device {taker}", ""
    if maker == taker:
        return "place", f"carries {value}", f"no transfer: device {maker} writes and reads it", "Remove it."
    return None


def _gather(program: Program, i: Instruction) -> Wrong | None:
    group = tuple(sorted(program.stages[i.stage].devices))
    if not program.stages[i.stage].sharded:
        return "kind", f"has kind {i.kind}", f"no gather for stage {i.stage}, which is not sharded", "Remove it."
    if i.group != group:
        return "place", f"has group {list(i.group)}", f"group {list(group)}, all with a shard of these weights", ""
    part = i.writes[0].part if i.writes else -1
    if i.index != first_of_round(program.stages, i.stage, i.index) and program.stages[i.stage].gathers:
        return "values", f"is for microbatch {i.index}", "the first microbatch of a round of the replicas", ""
    if program.stages[i.stage].gathers and part not in (0, 1):
        return "values", f"writes {_list(i.writes)}", f"whole weights of stage {i.stage} for forwards or backwards", ""
    needed = gather_values(program.stages, program.rule, i.stage, i.index, part)
    return None if needed == (i.reads, i.writes) else _differ(program, i, *needed)


def _reduction(program: Program, i: Instruction) -> Wrong | None:
    sums_squares = bool(i.writes) and i.writes[0].what is ValueKind.NORM
    if norms(program.stages, program.rule) and i.kind is Kind.ALL_REDUCE and sums_squares:
        return _norm(program, i)
    bucket = i.writes[0].part if i.writes else -1
    shape = program.stages[i.stage]
    if not 0 <= bucket < shape.buckets:
        return "values", f"writes {_list(i.writes)}", f"a sum of one of {shape.buckets} buckets of stage {i.stage}", ""
    kind = Kind.REDUCE_SCATTER if scattered(program.stages, i.stage, bucket) else Kind.ALL_REDUCE
    if i.kind is not kind:
        return (
            "kind",
            f"has kind {i.kind}",
            f"kind {kind}: stage {i.stage} has shard {program.stages[i.stage].shard}",
            "",
        )
    group = reduce_group(program.stages, i.stage, bucket)
    if i.group != group:
        return "place", f"has group {list(i.group)}", f"group {list(group)}, all devices with these weights", ""
    last = last_in_update(program.stages, program.rule, i.stage, i.index, i.device)
    if last is None:
        return "values", f"is for update {i.index}", f"an update with a microbatch on device {i.device}", ""
    reads = (Value(ValueKind.ACCUMULATOR, i.stage, last, bucket),)
    writes = (Value(sum_of(program.stages, i.stage, bucket), i.stage, i.index, bucket),)
    return None if (i.reads, i.writes) == (reads, writes) else _differ(program, i, reads, writes)


def _norm(program: Program, i: Instruction) -> Wrong | None:
    """Error in an all-reduce of squared gradients; None if there is none."""
    group, first = norm_group(program.stages), stages_on(program.stages, i.device)[0]
    if i.group != group:
        return "place", f"has group {list(i.group)}", f"group {list(group)}, all devices", ""
    if i.stage != first:
        return "values", f"has stage {i.stage}", f"stage {first}, the first of device {i.device}", ""
    if not norm_summed(program.stages):
        return "values", f"writes {_list(i.writes)}", "no sum, because there is only one device", "Remove it."
    return _differ(
        program, i, (Value(ValueKind.SQUARES, i.stage, i.index),), (Value(ValueKind.NORM, i.stage, i.index),)
    )


def _differ(program: Program, i: Instruction, reads: tuple[Value, ...], writes: tuple[Value, ...]) -> Wrong | None:
    """Error if an instruction reads or writes other values than the required ones.

    The order of values does not matter.

    Arguments:
        reads, writes: required values.

    Returns:
        None if the values agree.
    """
    strip = program.swaps and i.kind is not Kind.DROP
    for verb, names, should in (("read", i.reads, reads), ("write", i.writes, writes)):
        has = tuple(v.plain for v in names if v.what is not ValueKind.MARK) if strip else names
        if len(has) == len(should) and set(has) == set(should):
            continue
        odd, missing = [v for v in has if v not in should], [v for v in should if v not in has]
        if not odd and not missing:
            return "values", f"{verb}s a value twice in {_list(has)}", "each value once", ""
        if [v.what for v in odd] == [v.what for v in missing] == [ValueKind.WEIGHTS] and i.kind is not Kind.STEP:
            rule = program.rule
            why = (
                f"{missing[0]} by rule {rule.kind!r} with update {rule.batch[i.stage]} and delay {rule.delay[i.stage]}"
            )
            return "version", f"{verb}s {odd[0]}", f"{why}", f"Let it {verb} {missing[0]}."
        what = [f"{verb}s {_list(odd)}"] if odd else []
        what += [f"does not {verb} {_list(missing)}"] if missing else []
        return "values", " and ".join(what), f"it to {verb} exactly {_list(should)}", ""
    return None


def _list(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values)) or "nothing"
