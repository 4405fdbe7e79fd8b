"""Parser of the text form of a program.

It is strict and reads line by line. An error names the number of the line and what belongs there.

Rules of this file: it accepts exactly the output of `hocket.program.text.printer.print_program`, except for blanks and
empty lines. It does not check whether the program is legal: `hocket.program.check.check` does.
"""

import re
from dataclasses import dataclass, field
from typing import NoReturn

from hocket.errors import InputError, nearest
from hocket.program.instruction import SWAPS, UPDATE_KINDS, Instruction, Kind, Value, ValueKind
from hocket.program.program import SHARDS, Lane, Program, StageShape, freeze
from hocket.program.rule import Rule

MAX_TEXT = 512 * 2**20  # characters
MAX_LINE = 2**16  # characters
MAX_STAGES = 4096

_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_NUMBERS = rf"{_NUMBER}(?:,{_NUMBER})*"
_VALUE = re.compile(
    rf"(?:(?P<pair>act|grad)\.({_NUMBER})>({_NUMBER})#({_NUMBER})"
    rf"|(?P<version>w|opt|shard)\.({_NUMBER})v({_NUMBER})"
    rf"|(?P<norm>sq|norm)\.({_NUMBER})u({_NUMBER})"
    rf"|(?P<sum>sum|part|lent)\.({_NUMBER})u({_NUMBER})b({_NUMBER})"
    rf"|(?P<dw>dw)\.({_NUMBER})#({_NUMBER})b({_NUMBER})"
    rf"|(?P<full>full|mark|end)\.({_NUMBER})#({_NUMBER})\.({_NUMBER})"
    rf"|(?P<plain>in|stash)\.({_NUMBER})#({_NUMBER}))(?:~(?P<copy>[1-9][0-9]{{0,8}}))?"
)
_INSTRUCTION = re.compile(
    rf"(?P<kind>[a-z_]+)(?P<again> again)? (?P<stage>{_NUMBER}) (?P<counter>[#u])(?P<index>{_NUMBER})"
    rf"(?: (?P<way>[<>])(?P<peer>{_NUMBER}))?(?: @(?P<group>{_NUMBERS}))?"
)
_LANE = re.compile(r"[a-z_]+(?:\.[0-9]+|[<>@][0-9,/]+)?")
_KINDS = {str(kind): kind for kind in Kind}
_OPEN = SWAPS | {Kind.ALL_GATHER, Kind.DROP}  # kinds with values that decide the counter (# or u)
_COUNTERS = dict.fromkeys(Kind, "#") | dict.fromkeys(UPDATE_KINDS, "u")
_WAYS = {Kind.SEND: ">", Kind.RECEIVE: "<"}
_EXAMPLE = "a line such as 'forward 1 #3 : act.0>1#3 w.1v0 -> act.1>2#3 stash.1#3'"


@dataclass
class _Reader:
    """Lines of a text, one after the other, and the values read so far.

    Attributes:
        place: file name, for errors.
        at: index of the current line.
        values: values by their text.
    """

    place: str
    lines: list[str]
    at: int = -1
    values: dict[str, Value] = field(default_factory=dict)

    def next(self) -> str | None:
        """Return the next line that is not empty, with single blanks; None at the end."""
        while self.at + 1 < len(self.lines):
            self.at += 1
            line = self.lines[self.at]
            if len(line) > MAX_LINE:
                self.fail(f"{len(line)} characters", f"at most {MAX_LINE} in a line")
            words = line.split()
            if words:
                return " ".join(words)
        self.at = len(self.lines)
        return None

    def fail(self, found: str, expected: str, next_step: str = "") -> NoReturn:
        raise InputError(f"{self.place}, line {self.at + 1}", found, expected, next_step)

    def value(self, word: str) -> Value:
        known = self.values.get(word)
        if known is None:
            known = self.values[word] = self._new_value(word)
        return known

    def _new_value(self, word: str) -> Value:
        match = _VALUE.fullmatch(word)
        if not match:
            self.fail(repr(word), "a value such as act.0>1#3, stash.0#3, w.0v1, dw.0#3b0, sum.0u1b0 or opt.0v1")
        what, *numbers = [group for group in match.groups()[:-1] if group is not None]
        first, *rest = map(int, numbers)
        if match["pair"]:
            rest.reverse()
        return Value(ValueKind(what), first, *rest)._replace(copy=int(match["copy"] or 0))


def parse_program(text: str, place: str = "program") -> Program:
    """Parse the text form of a program.

    Arguments:
        place: file name, for errors.

    Raises:
        InputError: names the line, what was found and what was expected.
    """
    if len(text) > MAX_TEXT:
        raise InputError(place, f"{len(text)} characters", f"at most {MAX_TEXT}")
    reader = _Reader(place, text.split("\n"))
    line = reader.next()
    if line != "hocket program 1":
        reader.fail(repr(line or "nothing"), "'hocket program 1'", "Other versions of the format are not supported.")
    name = _header(reader, "name")
    kind = _header(reader, "rule")
    stride = _number(reader, _header(reader, "stride"), least=1)
    admitted = _number(reader, _header(reader, "admitted"), least=0)
    stages: list[StageShape] = []
    updates: list[tuple[int, int]] = []
    line = reader.next()
    swaps, line = line == "swaps", reader.next() if line == "swaps" else line
    ahead = line.removeprefix("prefetch ") if line and line.startswith("prefetch ") else ""
    prefetch, line = (_number(reader, ahead, least=1), reader.next()) if ahead else (0, line)
    while line and line.startswith("stage "):
        if len(stages) == MAX_STAGES:
            reader.fail("one more stage", f"at most {MAX_STAGES} stages")
        stage, update = _stage(reader, line, len(stages))
        stages.append(stage)
        updates.append(update)
        line = reader.next()
    if not stages:
        reader.fail(repr(line or "the end"), "'stage 0: devices ...'")
    try:
        rule = Rule(kind, tuple(u for u, _ in updates), tuple(d for _, d in updates))
    except InputError as error:
        raise InputError(f"{place}, {error.place}", error.found, error.expected) from None
    prologue, period, epilogue = map(freeze, _parts(reader, line))
    return Program(name, tuple(stages), rule, stride, admitted, prologue, period, epilogue, swaps, prefetch)


def _header(reader: _Reader, key: str) -> str:
    line = reader.next() or "the end"
    word, _, rest = line.partition(" ")
    if word != key or not rest:
        reader.fail(repr(line), f"'{key} ...'")
    return rest


def _number(reader: _Reader, word: str, least: int = 0) -> int:
    if not re.fullmatch(_NUMBER, word) or int(word) < least:
        reader.fail(repr(word), f"a whole number >= {least} of at most 9 digits")
    return int(word)


def _numbers(reader: _Reader, word: str) -> tuple[int, ...]:
    if not re.fullmatch(_NUMBERS, word):
        reader.fail(repr(word), "whole numbers with commas between them, such as 0,1,2")
    return tuple(map(int, word.split(",")))


def _stage(reader: _Reader, line: str, number: int) -> tuple[StageShape, tuple[int, int]]:
    """Parse the line of a stage.

    Arguments:
        number: expected number of the stage.

    Returns:
        The stage, and (batch, delay) of the stage in the update rule.
    """
    head, colon, rest = line.partition(":")
    if not colon or head != f"stage {number}":
        reader.fail(repr(line), f"'stage {number}: devices ...'")
    seen: dict[str, str] = {}
    tied: list[tuple[int, tuple[int, ...]]] = []
    lists = ("devices", "sources", "targets", "gradients")
    flags = ("batch", "recompute", "clips", "clips_alone", "weighted", "scaled", "overlaps")
    known = (*lists, *flags, "tied", "buckets", "columns", "shard", "merged", "threads", "wave", "update", "delay")
    for entry in rest.split(";"):
        key, _, word = entry.strip().partition(" ")
        if key not in known:
            reader.fail(repr(key), f"one of {', '.join(known)}", nearest(key, known))
        if key in seen and key != "tied":
            reader.fail(f"{key!r} a second time", "each field once")
        if bool(word) == (key in flags):
            reader.fail(repr(entry.strip()), f"'{key}' alone" if word else f"'{key} ...'")
        if key == "tied":
            bucket, equals, stages = word.partition("=")
            if not equals:
                reader.fail(repr(entry.strip()), "'tied BUCKET=STAGES', such as 'tied 1=0,3'")
            tied.append((_number(reader, bucket), _numbers(reader, stages)))
        seen[key] = word
    for key in ("devices", "update"):
        if key not in seen:
            reader.fail(f"no {key!r}", f"'{key} ...' in every stage")
    if seen.get("shard", "none") not in SHARDS:
        reader.fail(repr(seen["shard"]), f"one of {', '.join(SHARDS)}", nearest(seen["shard"], SHARDS))
    devices, sources, targets, gradients = (_numbers(reader, seen[k]) if k in seen else () for k in lists)
    shape = StageShape(
        devices,
        sources,
        targets,
        gradients,
        buckets=_number(reader, seen.get("buckets", "1"), least=1),
        tied=tuple(tied),
        columns=_number(reader, seen.get("columns", "1"), least=1),
        shard=seen.get("shard", "none"),
        merged=_number(reader, seen.get("merged", "1"), least=1),
        threads=_numbers(reader, seen["threads"]) if "threads" in seen else (),
        wave=_number(reader, seen.get("wave", "0")),
        **{flag: flag in seen for flag in flags},
    )
    return shape, (_number(reader, seen["update"], least=1), _number(reader, seen.get("delay", "0")))


def _parts(reader: _Reader, line: str | None) -> list[dict[Lane, list[Instruction]]]:
    """Parse prologue, period and epilogue, each of which is optional.

    Arguments:
        line: first line of the parts; None at the end of the text.

    Returns:
        Instructions of the three parts by (device, lane).
    """
    names = ["prologue", "period", "epilogue"]
    parts: list[dict[Lane, list[Instruction]]] = [{}, {}, {}]
    part = -1
    device, lane = -1, ""
    into: list[Instruction] | None = None
    while line is not None:
        if line in names:
            if names.index(line) <= part:
                reader.fail(repr(line), "prologue, period and epilogue in this order, each at most once")
            part, into = names.index(line), None
        elif line.startswith("device "):
            if part < 0:
                reader.fail(repr(line), "'prologue', 'period' or 'epilogue'")
            words = line.split(" ")
            if len(words) != 3 or not _LANE.fullmatch(words[2]):
                reader.fail(repr(line), "'device NUMBER LANE', such as 'device 0 compute' or 'device 0 send>1'")
            device, lane = _number(reader, words[1]), words[2]
            if (device, lane) in parts[part]:
                reader.fail(f"{line!r} a second time in the {names[part]}", "each lane once in a part")
            into = parts[part][device, lane] = []
        elif into is None:
            expected = "'device NUMBER LANE'" if part >= 0 else "'prologue', 'period' or 'epilogue'"
            reader.fail(repr(line), expected, nearest(line, names))
        else:
            into.append(_instruction(reader, line, device, lane))
        line = reader.next()
    return parts


def _instruction(reader: _Reader, line: str, device: int, lane: str) -> Instruction:
    head, colon, values = line.partition(" :")
    match = _INSTRUCTION.fullmatch(head)
    before, arrow, after = values.partition("->")
    if not colon or not match or not arrow or "->" in after:
        reader.fail(repr(line), _EXAMPLE)
    kind = _KINDS.get(match["kind"])
    if kind is None:
        reader.fail(repr(match["kind"]), f"one of {', '.join(_KINDS)}", nearest(match["kind"], _KINDS))
    if kind not in _OPEN and match["counter"] != _COUNTERS[kind]:
        reader.fail(repr(head), f"'{_COUNTERS[kind]}' before the index of a {kind}")
    if match["way"] and match["way"] != _WAYS.get(kind):
        reader.fail(repr(head), "'>PEER' in a send, '<PEER' in a receive, no peer elsewhere")
    words = after.split()
    behind = words.index("~") if "~" in words else len(words)
    writes, frees = words[:behind], words[behind + 1 :]
    if behind < len(words) and not frees:
        reader.fail(repr(line), "a value after '~', or no '~'")
    found = Instruction(
        kind,
        int(match["stage"]),
        int(match["index"]),
        device,
        lane,
        tuple(map(reader.value, before.split())),
        tuple(map(reader.value, writes)),
        tuple(map(reader.value, frees)),
        peer=int(match["peer"]) if match["peer"] else -1,
        group=tuple(map(int, match["group"].split(","))) if match["group"] else (),
        again=bool(match["again"]),
    )
    if found.counts_updates != (match["counter"] == "u"):
        reader.fail(
            repr(head),
            f"'{'u' if found.counts_updates else '#'}' before the index of a {kind} of "
            f"{(found.writes or found.reads or ('nothing',))[0]}",
        )
    return found
