"""Run the body of a `%%workflow` cell as an ordinary cell runs, and find the one workflow class in it.

The class is looked for in the text first (`core/source.py`), so that a cell that cannot be a workflow is refused before any
of it runs.
"""

import ast
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from nbflow.core.names import quoted
from nbflow.core.source import ENTRYPOINT, find_workflow
from nbflow.errors import UsageError


class CellSyntaxError(UsageError):
    """A syntax error in the cell, shown as IPython shows those of ordinary cells, without the frames of the magic."""

    def __init__(self, error: SyntaxError, lines: list[str]) -> None:
        super().__init__(str(error))
        self._lines = lines

    def _render_traceback_(self) -> list[str]:
        return self._lines


CellSyntaxError.__name__ = "SyntaxError"  # what clients show and compare is the name of the class


@dataclass(frozen=True, slots=True)
class ParsedCell:
    """A cell that compiles and defines one workflow class.

    Attributes:
        source: the text that was compiled: positions in it are those of the code objects.
        filename: its name in IPython's compile cache, by which tracebacks and `inspect` find it.
    """

    source: str
    filename: str
    tree: ast.Module
    class_name: str


def parse_cell(shell: Any, cell: str) -> ParsedCell:
    """Compile the cell and find its workflow class; nothing runs."""
    try:
        # The first line is where the magic stands: tracebacks then count lines as the user does. It is added after the
        # transformation, which strips leading blank lines.
        source = "\n" * (1 + _leading_blank_lines(cell)) + shell.transform_cell(cell)
        filename = shell.compile.cache(source, _cell_number(shell), raw_code="\n" + cell)
        tree = shell.compile.ast_parse(source, filename=filename)
        compile(source, filename, "exec", flags=shell.compile.flags, dont_inherit=True)  # what only the compiler refuses
    except (SyntaxError, ValueError, OverflowError) as error:
        wrong = error if isinstance(error, SyntaxError) else SyntaxError(str(error))
        raise CellSyntaxError(wrong, shell.SyntaxTB.structured_traceback(type(wrong), wrong, [])) from None
    found = find_workflow(source, defined=set(shell.user_ns), workflows=_workflows(tree, shell.user_ns))
    return ParsedCell(source, filename, tree, found.class_name)


def run_cell(shell: Any, cell: ParsedCell) -> type:
    """Run the cell in the user's namespace and give the class it defined.

    An exception of the user's code leaves as it is, and is shown as in any other cell: with the user's frames alone.
    """
    code = shell.compile(shell.transform_ast(cell.tree), cell.filename, "exec")
    try:
        exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102 - this is what a cell is for
    except BaseException as error:
        _show_user_frames(shell, error, cell.filename)
        raise
    cls = shell.user_ns.get(cell.class_name)
    if not _is_workflow(cls):
        message = f"{cell.class_name!r} is {quoted(cls)} after the cell has run, which is no subclass of {ENTRYPOINT}"
        raise UsageError(message)
    return cls  # type: ignore[no-any-return]


def _cell_number(shell: Any) -> int:
    """The number of the running cell, as its prompt shows it."""
    running = shell.displayhook.exec_result  # None within shell.run_cell: then the count is all there is
    number = getattr(running, "execution_count", None)
    return shell.execution_count if number is None else number  # type: ignore[no-any-return]


def _leading_blank_lines(cell: str) -> int:
    count = 0
    for line in cell.splitlines():
        if line.strip():
            break
        count += 1
    return count


def _is_workflow(value: object) -> bool:
    from nbflow.engine.entrypoint import WorkflowEntrypoint

    return isinstance(value, type) and issubclass(value, WorkflowEntrypoint)


def _workflows(tree: ast.Module, namespace: dict[str, Any]) -> set[str]:
    """Names, dotted ones of this cell's base classes too, that are workflow classes already."""
    known = {name for name, value in list(namespace.items()) if _is_workflow(value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            known |= {ast.unparse(base) for base in node.bases if _is_workflow(_value_of(base, namespace))}
    return known


def _value_of(node: ast.expr, namespace: dict[str, Any]) -> object:
    """What a dotted name means now; nothing but plain attributes is read."""
    match node:
        case ast.Name(id=name):
            return namespace.get(name)
        case ast.Attribute(value=value, attr=attr):
            return getattr(_value_of(value, namespace), "__dict__", {}).get(attr)
    return None


def _show_user_frames(shell: Any, error: BaseException, filename: str) -> None:
    """Leave out the frames of the magic where IPython shows this error; a debugger still finds all of them."""
    if isinstance(error, SyntaxError) or hasattr(error, "_render_traceback_"):
        return
    first = _first_frame_of(error.__traceback__, filename) or error.__traceback__

    def render() -> list[str]:
        return shell.InteractiveTB.structured_traceback(type(error), error, first, tb_offset=0)  # type: ignore[no-any-return]

    try:
        error._render_traceback_ = render  # type: ignore[attr-defined]
    except AttributeError:  # a class with slots: shown with all frames
        pass


def _first_frame_of(traceback: TracebackType | None, filename: str) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename != filename:
        traceback = traceback.tb_next
    return traceback
