"""The house's rules, read off its imports (DESIGN.md: rooms, sizes)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbflow

ROOT = Path(nbflow.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in sorted(ROOT.rglob("*.py"))
}

# What each room may import, itself always. The package's own module hands names out lazily and may know all.
BASE = {"errors", "clock", "ids", "system"}
MAY_IMPORT = {
    "errors": set(),
    "clock": set(),
    "ids": set(),
    "windows": set(),
    "system": {"windows"},
    "core": BASE,
    "values": BASE | {"core"},
    "store": BASE | {"core"},
    "engine": BASE | {"core", "values", "store"},
    "jupyter": BASE | {"core", "values", "store", "engine"},
    "cli": BASE | {"core", "values", "store", "engine", "demo", "printing"},
    "printing": BASE | {"core"},
    "demo": BASE | {"core", "values", "store", "engine"},
    "testing": BASE | {"core", "values", "store", "engine"},
    "pytest_plugin": {"engine", "testing"},
}

MAX_MODULE, MAX_FUNCTION = 400, 50
# Longer ones, each with its reason.
LONG_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

trees = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
modules = pytest.mark.parametrize("module", sorted(MODULES))


def room_of(module: str) -> str:
    return module.partition(".")[0]


def imports(module: str) -> Iterator[tuple[str, int]]:
    """Every module that *module* imports, inside functions and for type checking too, with the line."""
    package = ["nbflow", *module.split(".")] if MODULES[module].name == "__init__.py" else ["nbflow", *module.split(".")[:-1]]
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                source = ".".join(
                    [*[part for part in package if part][: len(package) - node.level + 1], *filter(None, [source])]
                )
            for alias in node.names:
                yield (
                    (
                        f"{source}.{alias.name}"
                        if source == "nbflow" or f"{source}.{alias.name}".removeprefix("nbflow.") in MODULES
                        else source
                    ),
                    node.lineno,
                )


def violations(module: str, forbidden) -> list[str]:
    return [f"{module}:{line} imports {name}" for name, line in imports(module) if forbidden(name)]


def of(*tops: str):
    return lambda name: name.partition(".")[0] in tops


@modules
def test_imports_point_down_only(module):
    if module == "":
        return
    if module == "__main__":
        allowed = set(MAY_IMPORT)
    else:
        assert room_of(module) in MAY_IMPORT, f"{module} is in no room of the house"
        allowed = MAY_IMPORT[room_of(module)] | {room_of(module)}

    def forbidden(name: str) -> bool:
        return name.partition(".")[0] == "nbflow" and room_of(name.removeprefix("nbflow").lstrip(".")) not in allowed

    assert violations(module, forbidden) == []


@modules
def test_only_the_store_imports_duckdb(module):
    if room_of(module) != "store":
        assert violations(module, of("duckdb", "_duckdb")) == []


@modules
def test_only_clock_reads_the_time(module):
    if module in ("clock", "ids"):  # ids are sortable by the moment they were made
        return
    assert violations(module, of("time")) == []
    readers = [
        f"{module}:{node.lineno} calls {ast.unparse(node.func)}"
        for node in ast.walk(trees[module])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            (node.func.attr in ("now", "utcnow") and ast.unparse(node.func.value).rpartition(".")[2] == "datetime")
            or (node.func.attr == "today" and ast.unparse(node.func.value).rpartition(".")[2] in ("date", "datetime"))
        )
    ]
    assert readers == []


@modules
def test_only_ids_reads_randomness(module):
    if module == "ids":
        return

    def forbidden(name: str) -> bool:
        return of("random", "secrets")(name) or name == "numpy.random"

    assert violations(module, forbidden) == []
    made = [
        f"{module}:{node.lineno} calls {ast.unparse(node.func)}"
        for node in ast.walk(trees[module])
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("uuid1", "uuid4", "uuid6", "uuid7", "urandom", "getrandom")
    ]
    assert made == []


@modules
def test_the_core_is_pure(module):
    if room_of(module) == "core":
        shell = (
            "asyncio",
            "threading",
            "concurrent",
            "multiprocessing",
            "os",
            "io",
            "pathlib",
            "socket",
            "subprocess",
            "logging",
            "shutil",
            "tempfile",
        )
        assert violations(module, of(*shell)) == []


@modules
def test_below_jupyter_nothing_knows_a_screen(module):
    if room_of(module) in ("core", "values", "store", "errors", "clock", "ids"):
        assert violations(module, of("IPython", "ipykernel", "ipywidgets", "anywidget", "traitlets", "comm")) == []


@modules
def test_heavy_libraries_are_imported_inside_functions(module):
    heavy = of("numpy", "pandas", "polars", "pyarrow", "matplotlib", "PIL", "pydantic", "distributed", "cloudpickle")
    eager = {node.lineno for statement in trees[module].body for node in eagerly(statement)}
    assert [f"{module}:{line} imports {name}" for name, line in imports(module) if heavy(name) and line in eager] == []


def eagerly(node: ast.AST) -> Iterator[ast.stmt]:
    """Imports that run when the module is imported: not those in functions, not those for type checking only."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from eagerly(child)


@modules
def test_modules_are_short(module):
    lines = len(MODULES[module].read_text().splitlines())
    assert (lines > MAX_MODULE) == (module in LONG_MODULES), f"{module} has {lines} lines"


@modules
def test_functions_are_short(module):
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert (lines > MAX_FUNCTION) == (f"{module}.{node.name}" in LONG_FUNCTIONS), (
                f"{module}.{node.name} has {lines} lines"
            )


@modules
def test_names_say_what_a_thing_is(module):
    vague = {"manager", "helper", "helpers", "util", "utils", "handler", "handlers"}
    words = set(module.replace(".", "_").split("_"))
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.ClassDef):
            words |= {word.lower() for word in split_words(node.name)}
    assert words & vague - ({"handler", "handlers"} if "rollback" in module else set()) == set()


def split_words(name: str) -> list[str]:
    return "".join(f" {letter}" if letter.isupper() else letter for letter in name.replace("_", " ")).split()


IMPORT_WITHOUT_SCREEN = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {screens!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
import nbflow
for name in {names!r}:
    getattr(nbflow, name)
loaded = [name for name in sys.modules if name.partition(".")[0] in {screens!r} + {heavy!r}]
print(sorted(loaded))
"""


def loaded_by(names: list[str], blocked: tuple[str, ...], heavy: tuple[str, ...] = ()) -> str:
    program = IMPORT_WITHOUT_SCREEN.format(screens=blocked, heavy=heavy, names=names)
    ran = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


SCREENS = ("IPython", "ipykernel", "ipywidgets", "anywidget", "traitlets")


def test_nbflow_imports_without_any_screen():
    assert loaded_by([], SCREENS) == "[]"


def test_every_public_name_that_is_no_screen_is_there_without_one():
    assert loaded_by(sorted(nbflow.__all__), SCREENS) == "[]"


def test_importing_nbflow_is_light():
    assert loaded_by([], (), ("numpy", "pandas", "polars", "pyarrow", "matplotlib", "pydantic", "duckdb", "IPython")) == "[]"
