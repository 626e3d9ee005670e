"""The input transformer: a waiting `%%workflow` cell is awaited by the cell itself, so that the kernel's loop goes on.

A magic cannot give IPython something to await. So the call that IPython makes of `%%workflow …` gets an `await` in front,
and the magic is told by a hidden option. Only the cell itself can await: not `%%time`, `%%capture`, `%run` or anything else
that runs the text within a running cell, nor a shell with autoawait off; there the magic waits on its own.
"""

import ast
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbflow.errors import UsageError
from nbflow.jupyter.line import AWAITED, parse_cell_line

if TYPE_CHECKING:
    from nbflow.jupyter.magics import WorkflowMagics

_CALL = "get_ipython().run_cell_magic('workflow',"


def await_workflow_cells(shell: Any, magics: "WorkflowMagics") -> Callable[[list[str]], list[str]]:
    """Make the transformer for `shell.input_transformers_post`."""

    def transform(lines: list[str]) -> list[str]:
        if not lines or not lines[0].startswith(_CALL):
            return lines
        call = _magic_call("".join(lines))
        if call is None or not _cell_can_await(shell, magics):
            return lines
        line, body = call
        try:
            asked = parse_cell_line(line)
        except UsageError:  # the magic says so
            return lines
        if asked.define or asked.schedule is not None or asked.awaited or not (asked.wait or magics.headless):
            return lines
        return [f"await get_ipython().run_cell_magic('workflow', {line + ' ' + AWAITED!r}, {body!r})\n"]

    return transform


def _magic_call(text: str) -> tuple[str, str] | None:
    """Line and body of the one call that the text is, None where there is more or something else."""
    try:
        match ast.parse(text).body:
            case [
                ast.Expr(value=ast.Call(args=[ast.Constant(), ast.Constant(value=str(line)), ast.Constant(value=str(body))]))
            ]:
                return line, body
    except SyntaxError:
        pass
    return None


def _cell_can_await(shell: Any, magics: "WorkflowMagics") -> bool:
    if getattr(shell, "kernel", None) is None or not shell.autoawait:
        return False
    if shell.magics_manager.magics["cell"].get("workflow") is not magics.own_cell_magic:
        return False
    return _called_by_the_kernel()


def _called_by_the_kernel() -> bool:
    """Whether the kernel itself transforms a cell that it is about to run, rather than code of a running cell."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_name in ("run_code", "run_cell"):
            return False
        if frame.f_code.co_name == "do_execute":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
