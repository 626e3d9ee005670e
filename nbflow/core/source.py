"""What a cell's text says: which class is its workflow, and a hash of code that formatting does not change.

Pure: nothing is run or imported, names are followed as far as the text tells. The magic looks at the real classes later.
"""

import ast
import hashlib
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from nbflow.errors import UsageError, listed

ENTRYPOINT = "WorkflowEntrypoint"
IMPORT_LINE = f"from nbflow import {ENTRYPOINT}"

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Found:
    """A class in a cell.

    Attributes:
        class_name: its name.
        start_line: the first line of it, decorators too, from 1.
        end_line: the last.
        bases: its base classes as written.
        text: its source as written.
        workflow: it subclasses WorkflowEntrypoint, as far as the text tells.
        run: how it or a base defines `run`: "async", "plain", "unknown" (where the text does not tell), None for nowhere.
    """

    class_name: str
    start_line: int
    end_line: int
    bases: tuple[str, ...]
    text: str
    workflow: bool
    run: str | None


def find_workflow(cell_text: str, *, defined: Collection[str] | None = None, workflows: Collection[str] = ()) -> Found:
    """Find the one workflow class of a cell; of classes that build on each other the last counts.

    Args:
        cell_text: Python, as IPython's transformer gives it.
        defined: names that the cell may use beside its own; None when they are not known.
        workflows: those of them that are WorkflowEntrypoint or subclasses of it.

    Raises:
        UsageError: there is none, there are several, a name is missing, or its `run` is.
        SyntaxError: as Python says it.
    """
    tree = parse(cell_text)
    names = _Names(workflows)
    found = names.classes(tree, cell_text)
    _check_imports(tree)
    leaves = _leaves(found)
    if defined is not None and not names.everything:
        _check_defined(tuple(found.values()), names.bound | set(defined) | set(workflows))
    if not leaves:
        raise UsageError(_none_found(tuple(found.values())))
    if len(leaves) > 1:
        several = listed([each.class_name for each in leaves])
        msg = f"this cell defines {len(leaves)} workflows: {several}; a cell holds one, put each in a cell of its own"
        raise UsageError(msg)
    _check_run(leaves[0])
    return leaves[0]


def classes(tree: ast.Module, cell_text: str = "", workflows: Collection[str] = ()) -> tuple[Found, ...]:
    """Give the classes that a cell defines at its top level, in order; of one name the last definition counts."""
    return tuple(_Names(workflows).classes(tree, cell_text).values())


def parse(text: str) -> ast.Module:
    """Parse a cell or a piece of one, indented or not; warnings about it are the business of whoever runs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _tree(text)
        except IndentationError:
            block = _tree(f"if 1:\n{text}").body[0]
            assert isinstance(block, ast.If)
            return ast.Module(block.body, [])


def _tree(text: str) -> ast.Module:
    for _ in range(5):
        try:
            return ast.parse(text)
        except SystemError:  # CPython to 3.12.1, when another thread or a finaliser parses meanwhile (a traceback does)
            continue
    return ast.parse(text)


def code_hash(text: str) -> str:
    """Hash source so that docstrings, comments and formatting do not count (S56)."""
    try:
        return hash_of(parse(text))
    except (SyntaxError, ValueError, RecursionError):  # no Python, or none that can be read: every character counts
        return _digest(text)


def hash_of(tree: ast.AST) -> str:
    """Hash a syntax tree: 32 hex digits, the same on every Python version and in every process."""
    return _digest("\n".join(_tokens(tree)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _tokens(tree: ast.AST) -> Iterator[str]:
    """Walk a tree in order; not by recursion, which a long chain of operators would exhaust.

    What is empty is left out: later Pythons add fields, and all of them read one history.
    """
    stack: list[object] = [tree]
    while stack:
        match stack.pop():
            case str() as token:
                yield token
            case ast.AST() as node:
                fields: list[object] = [f"({type(node).__name__}"]
                for name, value in _fields(node):
                    fields += [f".{name}", value]
                stack += reversed([*fields, ")"])
            case list() as nodes:
                stack += reversed(["[", *nodes, "]"])
            case None:
                yield "None"  # inside lists it has a meaning: {**a} has the key None
            case value:
                yield _constant(value)


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.Constant):
            if name == "value":
                yield name, _constant(value)
        elif isinstance(value, list):
            parts = _joined(value) if isinstance(node, ast.JoinedStr) else value
            if kept := [each for each in parts if not _is_remark(each)]:
                yield name, kept
        elif isinstance(value, str):
            yield name, f"={value}"
        elif value is not None and name != "ctx":
            yield name, value


def _joined(nodes: list[object]) -> Iterator[object]:
    """The parts of an f-string with neighbouring texts as one: Pythons cut them differently."""
    texts: list[str] = []
    for node in [*nodes, None]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
            continue
        if any(texts):
            yield ast.Constant("".join(texts))
        texts.clear()
        if node is not None:
            yield node


def _is_remark(node: object) -> bool:
    """A string that stands alone: a docstring, or a comment in its clothes."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _constant(value: object) -> str:
    # Python refuses to write very long integers in decimal.
    return f"int:{value:x}" if type(value) is int else f"{type(value).__name__}:{value!r}"


class _Names:
    """Which names of a cell stand for workflow classes, statement by statement.

    Attributes:
        runs: how each known class has its `run`.
        bound: names that the cell binds; *everything* is set by a star import.
    """

    def __init__(self, workflows: Collection[str]) -> None:
        self.runs: dict[str, str | None] = {**dict.fromkeys(workflows, "unknown"), ENTRYPOINT: None}
        self.workflows = set(self.runs)
        self.bound: set[str] = set()
        self.everything = False
        self.found: dict[str, Found] = {}

    def classes(self, tree: ast.Module, text: str) -> dict[str, Found]:
        """Go through a module; the classes it leaves defined, by name."""
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for node in _statements(tree.body):
            match node:
                case ast.ImportFrom():
                    self._import_from(node)
                case ast.Import():
                    for alias in node.names:
                        self._bind(alias.asname or alias.name.partition(".")[0])
                case ast.ClassDef():
                    self._class(node, lines)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._bind(node.name)
                case _:
                    self._assign(node)
        return self.found

    def _import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if name == "*":
                self.everything = True
            elif alias.name == ENTRYPOINT:
                self._bind(name, workflow=True)
            else:  # a workflow of a module shows only in what the caller knows of the namespace
                self._bind(name, workflow=name in self.workflows, run="unknown")

    def _assign(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            alias = isinstance(node.value, ast.Name | ast.Attribute)
            workflow, run = (self._is_workflow(node.value), self._run(node.value)) if alias else (False, "unknown")
            self._bind(node.targets[0].id, workflow=workflow, run=run)
        self.bound |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}

    def _class(self, node: ast.ClassDef, lines: list[str]) -> None:
        workflow = any(self._is_workflow(base) for base in node.bases)
        run = _own_run(node) or next(filter(None, map(self._run, node.bases)), None)
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        end = node.end_lineno or node.lineno
        bases = tuple(_dotted(base) for base in node.bases)
        self._bind(node.name, workflow=workflow, run=run)
        self.found[node.name] = Found(node.name, start, end, bases, "\n".join(lines[start - 1 : end]), workflow, run)

    def _bind(self, name: str, *, workflow: bool = False, run: str | None = None) -> None:
        self.bound.add(name)
        self.found.pop(name, None)
        self.runs[name] = run
        if workflow:
            self.workflows.add(name)
        else:
            self.workflows.discard(name)

    def _is_workflow(self, base: ast.expr) -> bool:
        dotted = _dotted(base)
        return dotted in self.workflows or dotted.endswith(f".{ENTRYPOINT}")

    def _run(self, base: ast.expr) -> str | None:
        dotted = _dotted(base)
        known = dotted.endswith(f".{ENTRYPOINT}") or dotted == "object"
        return None if known else self.runs.get(dotted, "unknown")


def _dotted(base: ast.expr) -> str:
    """A base class as written, without the parameters of a generic one."""
    while isinstance(base, ast.Subscript):
        base = base.value
    return ast.unparse(base)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module that may define its names: into `if`, `try`, `with` and loops, not into scopes."""
    for node in body:
        yield node
        if isinstance(node, _SCOPES):
            continue
        for _, value in ast.iter_fields(node):
            for inner in value if isinstance(value, list) else ():
                if isinstance(inner, ast.stmt):
                    yield from _statements([inner])
                elif isinstance(inner, ast.ExceptHandler | ast.match_case):
                    yield from _statements(inner.body)


def _own_run(node: ast.ClassDef) -> str | None:
    found = None
    for inner in _statements(node.body):
        match inner:
            case ast.AsyncFunctionDef(name="run"):
                found = "async"
            case ast.FunctionDef(name="run"):
                found = "unknown" if inner.decorator_list else "plain"
            case ast.Assign() | ast.AnnAssign() | ast.ImportFrom() if _binds_run(inner):
                found = "unknown"
            case _:
                pass
    return found


def _binds_run(node: ast.Assign | ast.AnnAssign | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any((alias.asname or alias.name) == "run" for alias in node.names)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if node.value else []
    return any(isinstance(each, ast.Name) and each.id == "run" for target in targets for each in ast.walk(target))


def _leaves(found: dict[str, Found]) -> tuple[Found, ...]:
    """The workflow classes that no other workflow class of the cell builds on."""
    workflows = [each for each in found.values() if each.workflow]
    built_on = {base for each in workflows for base in each.bases if base != each.class_name}
    return tuple(each for each in workflows if each.class_name not in built_on)


def _check_imports(tree: ast.Module) -> None:
    for node in _statements(tree.body):
        if not isinstance(node, ast.ImportFrom) or node.module not in ("workers", "cloudflare.workers"):
            continue
        if any(alias.name == ENTRYPOINT for alias in node.names):
            msg = f"line {node.lineno} imports from {node.module!r}, which is Cloudflare's; write instead: {IMPORT_LINE}"
            raise UsageError(msg)


def _check_defined(found: tuple[Found, ...], names: set[str]) -> None:
    for each in found:
        for base in each.bases:
            root, _, last = base.rpartition(".")
            if last == ENTRYPOINT and (name := root.partition(".")[0] or last) not in names and name.isidentifier():
                imports = {"": IMPORT_LINE, "nbflow": "import nbflow"}
                line = imports.get(root, f"import nbflow as {name}")
                msg = f"class {each.class_name!r} subclasses {base}, but {name!r} is not defined; add the line: {line}"
                raise UsageError(msg)


def _none_found(found: tuple[Found, ...]) -> str:
    rule = f"a workflow is a class that subclasses {ENTRYPOINT}"
    example = f"write `class NAME({ENTRYPOINT}):` with `async def run(self, event, step):`, after the line: {IMPORT_LINE}"
    likely = [each for each in found if each.run in ("async", "plain")]
    if len(likely) == 1:
        name = likely[0].class_name
        return f"class {name!r} has a run method but {rule}; write `class {name}({ENTRYPOINT}):`, after the line: {IMPORT_LINE}"
    if found:
        return f"this cell defines no workflow, only {listed([each.class_name for each in found])}: {rule}; {example}"
    return f"this cell defines no class: {rule}; {example}"


def _check_run(workflow: Found) -> None:
    signature = "`async def run(self, event, step):`"
    if workflow.run is None:
        msg = f"class {workflow.class_name!r} has no run method; a workflow's steps are in {signature}"
        raise UsageError(msg)
    if workflow.run == "plain":
        msg = f"class {workflow.class_name!r} has a plain `def run`, which cannot await steps; write {signature}"
        raise UsageError(msg)
