"""Places in Python source where a small mutation is possible, and the mutation as text. Standard library only.

A mutation changes one line: a sign, a comparison, an index by one, a dropped call, or a boolean. Annotations,
decorators, formatted strings, and code only for type checkers are left alone, because no test can see a change there.
"""

import ast
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

SIGNS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
WORDS: dict[type[ast.boolop], tuple[str, str]] = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
LEFT_ALONE = ("annotation", "returns", "decorator_list")


@dataclass(frozen=True)
class Mutation:
    """One mutation: bytes `start` to `end` of a file become `text`."""

    kind: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Source with the mutation."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """All mutations of a file, in the order of its text."""
    found = set(_Sites(source).of(ast.parse(source)))
    return sorted(found, key=lambda one: (one.start, one.end, one.kind, one.text))


class _Sites:
    """Finder of mutations in one source text."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.AST) -> Iterator[Mutation]:
        """Yield mutations of a node and of its children."""
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and _of_types(node.test)):
            return
        yield from self._own(node)
        for name, value in ast.iter_fields(node):
            if name not in LEFT_ALONE:
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        yield from self.of(part)

    def _own(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SIGNS:
                yield from self._between("sign", left, right, *SIGNS[type(op)])
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in SIGNS:
                before, after = SIGNS[type(op)]
                yield from self._between("sign", target, value, f"{before}=", f"{after}=")
            case ast.Compare(left=left, ops=ops, comparators=others):
                for compared, (one, other) in zip(ops, pairwise([left, *others]), strict=True):
                    yield from self._between("comparison", one, other, *COMPARISONS[type(compared)])
            case ast.BoolOp(op=word, values=values):
                for one, other in pairwise(values):
                    yield from self._between("boolean", one, other, *WORDS[type(word)])
            case ast.UnaryOp(op=ast.Not(), operand=operand) if _one_line(node):
                yield self._replaced("boolean", node, _text(self._source, *self._span(operand)))
            case ast.UnaryOp(op=ast.USub(), operand=operand) if _one_line(node):
                yield self._replaced("sign", node, _text(self._source, *self._span(operand)))
            case ast.Constant(value=bool() as value):
                yield self._replaced("boolean", node, str(not value))
            case ast.Subscript(slice=index):
                yield from self._indices(index)
            case ast.Call(func=ast.Name(id="range"), args=bounds):
                for bound in bounds:
                    yield from self._indices(bound)
            case ast.Expr(value=ast.Call() | ast.Await()) if _one_line(node):
                yield self._replaced("dropped call", node, "pass")

    def _indices(self, index: ast.expr) -> Iterator[Mutation]:
        """Yield increments by one of integers in an index or a bound."""
        for node in ast.walk(index):
            if isinstance(node, ast.Constant) and type(node.value) is int:
                yield self._replaced("index", node, str(node.value + 1))

    def _between(self, kind: str, one: ast.expr, other: ast.expr, before: str, after: str) -> Iterator[Mutation]:
        """Yield the replacement of an operator between two expressions, if the operator is on one line."""
        (_, start), (end, _) = self._span(one), self._span(other)
        offset = _operator(_text(self._source, start, end), before)
        if offset is not None:
            at = start + offset
            yield Mutation(kind, self._line(at), at, at + len(before.encode()), after)

    def _replaced(self, kind: str, node: ast.expr | ast.stmt, text: str) -> Mutation:
        start, end = self._span(node)
        return Mutation(kind, node.lineno, start, end, text)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        last = node.end_lineno or node.lineno
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[last - 1] + (node.end_col_offset or 0)

    def _line(self, at: int) -> int:
        return bisect_right(self._starts, at)


def _operator(gap: str, operator: str) -> int | None:
    """Byte offset of the operator in the text between two expressions, outside comments; None if it is not there."""
    at, words = 0, operator.split()
    while at < len(gap):
        if gap[at] == "#":
            at = gap.find("\n", at)
            if at < 0:
                return None
        elif gap.startswith(operator, at) and (len(words) < 2 or gap[at:].split()[:2] == words):
            return len(gap[:at].encode())
        at += 1
    return None


def _of_types(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def _text(source: bytes, start: int, end: int) -> str:
    return source[start:end].decode()


def _one_line(node: ast.AST) -> bool:
    return getattr(node, "lineno", 0) == getattr(node, "end_lineno", 0)
