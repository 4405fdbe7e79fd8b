"""Text form of a program, with one instruction on each line.

Programs in this form can be read, compared and passed on.

Rules of this file: `print_program` writes the form that hocket/program/text/parser.py reads, and no other file knows
it. Values and instructions are written by their own `__str__` and `name`.

    hocket program 1
    name flush straight 2
    rule sync
    stride 4
    admitted 0
    stage 0: devices 0; targets 1; batch; update 4
    stage 1: devices 1; sources 0; gradients 0; buckets 2; tied 1=0,1; recompute; update 4; delay 1

    period

    device 0 compute
      load 0 #0 : -> in.0#0
      forward 0 #0 : in.0#0 w.0v0 -> act.0>1#0 stash.0#0

    device 0 send>1
      send 0 #0 >1 : act.0>1#0 -> ~ act.0>1#0

The line of an instruction has

- its kind, stage and index (`#` counts microbatches, `u` updates),
- its peer (`>` to, `<` from) or group (`@`),
- after the colon the values that it reads, after `->` those it writes, after `~` those it frees.

A program that swaps has a line `swaps` before the stages; `w.0v1~2` is copy 2 of `w.0v1`. A program that loads ahead
has a line such as `prefetch 2` there; `mark.0#3.0` is its permit to load microbatch 3.
"""

from collections.abc import Iterator

from hocket.errors import InputError
from hocket.program.instruction import Instruction, Kind
from hocket.program.program import Lanes, Program, StageShape
from hocket.program.text.parser import parse_program

__all__ = ["FORMAT", "instruction_line", "parse_program", "print_program"]

FORMAT = "hocket program 1"
PARTS = ("prologue", "period", "epilogue")


def print_program(program: Program) -> str:
    """Print a program as text; `parse_program` is the inverse.

    Raises:
        InputError: the device or lane of an instruction differs from its place, or the name has no text form.
    """
    return "\n".join(_lines(program)) + "\n"


def instruction_line(instruction: Instruction) -> str:
    """Line of an instruction, without the device and lane of its lane's heading."""
    i = instruction
    words = [str(i.kind)]
    if i.again:
        words.append("again")
    words += [str(i.stage), f"{'u' if i.counts_updates else '#'}{i.index}"]
    if i.peer >= 0:
        words.append(f"{'<' if i.kind is Kind.RECEIVE else '>'}{i.peer}")
    if i.group:
        words.append("@" + ",".join(map(str, i.group)))
    words += [":", *map(str, i.reads), "->", *map(str, i.writes)]
    if i.frees:
        words += ["~", *map(str, i.frees)]
    return " ".join(words)


def _lines(program: Program) -> Iterator[str]:
    if program.name != " ".join(program.name.split()) or not program.name.isprintable() or not program.name:
        raise InputError("name", repr(program.name), "printable words, separated by one space")
    yield FORMAT
    yield f"name {program.name}"
    yield f"rule {program.rule.kind}"
    yield f"stride {program.stride}"
    yield f"admitted {program.admitted}"
    if program.swaps:
        yield "swaps"
    if program.prefetch:
        yield f"prefetch {program.prefetch}"
    for s, stage in enumerate(program.stages):
        yield _stage_line(s, stage, program.rule.batch[s], program.rule.delay[s])
    for part in PARTS:
        lanes: Lanes = getattr(program, part)
        if lanes:
            yield ""
            yield part
        for device, lane in program.lanes:
            if (device, lane) in lanes:
                yield ""
                yield f"device {device} {lane}"
                for position, instruction in enumerate(lanes[device, lane]):
                    if (instruction.device, instruction.lane) != (device, lane):
                        raise InputError(
                            f"{part}, device {device}, {lane}, instruction {position}",
                            f"{instruction.name} with device {instruction.device}, {instruction.lane}",
                            "the device and lane of its place",
                        )
                    yield "  " + instruction_line(instruction)


def _stage_line(s: int, stage: StageShape, update: int, delay: int) -> str:
    fields = [f"devices {_numbers(stage.devices)}"]
    for name in ("sources", "targets", "gradients"):
        if getattr(stage, name):
            fields.append(f"{name} {_numbers(getattr(stage, name))}")
    if stage.batch:
        fields.append("batch")
    if stage.buckets != 1:
        fields.append(f"buckets {stage.buckets}")
    fields += [f"tied {bucket}={_numbers(tied)}" for bucket, tied in stage.tied]
    if stage.recompute:
        fields.append("recompute")
    if stage.columns != 1:
        fields.append(f"columns {stage.columns}")
    if stage.clips:
        fields.append("clips")
    if stage.clips_alone:
        fields.append("clips_alone")
    if stage.weighted:
        fields.append("weighted")
    if stage.scaled:
        fields.append("scaled")
    if stage.shard != "none":
        fields.append(f"shard {stage.shard}")
    if stage.merged != 1:
        fields.append(f"merged {stage.merged}")
    if stage.threads:
        fields.append(f"threads {_numbers(stage.threads)}")
    if stage.wave:
        fields.append(f"wave {stage.wave}")
    if stage.overlaps:
        fields.append("overlaps")
    fields.append(f"update {update}")
    if delay:
        fields.append(f"delay {delay}")
    return f"stage {s}: " + "; ".join(fields)


def _numbers(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
