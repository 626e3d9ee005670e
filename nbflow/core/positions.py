"""Find the piece of a text that a code object was compiled from, and what that piece names (S56).

Pure. The first line of a code object leads to the functions that begin there; the positions of its instructions tell those
apart that share a line.
"""

import ast
import copy
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from nbflow.core.source import hash_of, parse

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Chains = dict[str, set[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Place:
    """A function or class in a text.

    Attributes:
        hash: of its syntax tree, without docstrings, comments and formatting.
        text: as written, dedented.
        chains: names that it reads, each with the attributes asked of it: `a.b.c` is `{"a": {("b", "c")}}`.
        inside: the class it is a method of.
    """

    hash: str
    text: str
    chains: Chains
    inside: "Place | None" = None
    name: str = ""


class Index:
    """The functions of one text, by the line they begin in."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._by_line: dict[int, list[tuple[Function, ast.ClassDef | None]]] = {}
        self._places: dict[int, Place] = {}
        for node, owner in _functions(parse(text)):
            self._by_line.setdefault(_first_line(node), []).append((node, owner))

    def find(self, code: CodeType) -> Place | None:
        """The function that *code* is the code of; None where the text is not the one it was compiled from."""
        fitting = [pair for pair in self._by_line.get(code.co_firstlineno, ()) if _fits(pair[0], code)]
        if not fitting:
            return None
        spans = _spans(code)
        if not spans and len(fitting) > 1:
            fitting = [pair for pair in fitting if _gives_the_same(pair[0], code)] or fitting
        # The innermost of those that hold most of the instructions: an outer lambda holds those of an inner one too.
        node, owner = max(fitting, key=lambda pair: (_held(pair[0], spans), *_smallness(pair[0])))
        return self._place(node, None if owner is None else self._place(owner, None))

    def _place(self, node: Function | ast.ClassDef, inside: Place | None) -> Place:
        place = self._places.get(id(node))
        if place is None:
            counted = _without_step_decorators(node)
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            place = self._places[id(node)] = Place(hash_of(counted)[:16], self._text(node), _chains(counted), inside, name)
        return place

    def _text(self, node: Function | ast.ClassDef) -> str:
        first, last = _first_line(node), node.end_lineno or node.lineno
        lines = "".join(self._lines[first - 1 : last])
        if isinstance(node, ast.Lambda):
            return ast.get_source_segment("".join(self._lines), node) or lines
        return textwrap.dedent(lines).rstrip("\n")


def _functions(node: ast.AST, owner: ast.ClassDef | None = None) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Every function with the class that it is directly a member of; not by recursion, as `hash_of`."""
    stack: list[tuple[ast.AST, ast.ClassDef | None]] = [(node, owner)]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, Function):
            yield node, owner
            owner = None
        elif isinstance(node, ast.ClassDef):
            owner = node
        stack += [(child, owner) for child in ast.iter_child_nodes(node)]


def _first_line(node: Function | ast.ClassDef) -> int:
    if isinstance(node, ast.Lambda):
        return node.lineno
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _fits(node: Function, code: CodeType) -> bool:
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return name == code.co_name and _mangled(names) == _mangled(code.co_varnames[: len(names)])


def _mangled(names: "list[str] | tuple[str, ...]") -> list[str]:
    """Names without what a class puts before private ones."""
    return [name.rpartition("__")[2] if "__" in name and not name.endswith("__") else name for name in names]


def _spans(code: CodeType) -> list[tuple[int, int, int, int]]:
    spans = []
    for line, end_line, column, end_column in code.co_positions():
        if line is None or end_line is None or column is None or end_column is None:
            continue
        if (line, column) != (end_line, end_column):  # the first instructions stand for no text
            spans.append((line, column, end_line, end_column))
    return spans


def _gives_the_same(node: Function, code: CodeType) -> bool:
    """Whether a lambda gives the constant that *code* does: Python 3.12 says no place of those that give nothing else."""
    if not isinstance(node, ast.Lambda):
        return False
    made = compile(ast.Expression(node), "<lambda>", "eval").co_consts
    return any(repr(each.co_consts) == repr(code.co_consts) for each in made if isinstance(each, CodeType))


def _held(node: Function, spans: list[tuple[int, int, int, int]]) -> int:
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    start = (body[0].lineno, body[0].col_offset)
    end = (body[-1].end_lineno or 0, body[-1].end_col_offset or 0)
    return sum(start <= (line, column) and (end_line, end_column) <= end for line, column, end_line, end_column in spans)


def _smallness(node: Function) -> tuple[int, int]:
    return (node.lineno - (node.end_lineno or 0), node.col_offset - (node.end_col_offset or 0))


def _without_step_decorators(node: Function | ast.ClassDef) -> ast.AST:
    """`@step.do("load", retries=3)` says how a step runs, not what it does."""
    if isinstance(node, ast.Lambda | ast.ClassDef):
        return node
    kept = [each for each in node.decorator_list if not _is_step_decorator(each)]
    if len(kept) == len(node.decorator_list):
        return node
    stripped = copy.copy(node)
    stripped.decorator_list = kept
    return stripped


def _is_step_decorator(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "do"


def _chains(node: ast.AST) -> Chains:
    chains: Chains = {}
    for each in ast.walk(node):
        names: list[str] = []
        while isinstance(each, ast.Attribute):
            names.append(each.attr)
            each = each.value  # noqa: PLW2901 - down the chain
        if isinstance(each, ast.Name):
            chains.setdefault(each.id, set()).add(tuple(reversed(names)))
    return chains
