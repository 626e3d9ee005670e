"""Whose code it is: cells, scripts and modules beside the notebook are the user's, what is installed is not (S56)."""

import os
import site
import sys
import sysconfig
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType

_INSTALLED = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in {
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),  # nbflow itself
    }
)
# Where installers put packages, whichever Python's they are: a .pth file or PYTHONPATH may lead to those of another one.
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def owns_function(function: FunctionType) -> bool:
    """Whether a function was written in a cell, a script or a module that is not installed."""
    return _owns_code(function.__code__, _module_name(function.__globals__))


def owns_class(cls: type) -> bool:
    """The same of a class."""
    name = type.__dict__["__dict__"].__get__(cls).get("__module__")
    return type(name) is str and owns_module(name)


@lru_cache(1024)
def _owns_file(file: str) -> bool:
    real = os.path.realpath(file)
    return not real.startswith(_INSTALLED) and not any(packages in real for packages in _PACKAGES)


def owns_module(name: str) -> bool:
    """The same of a module by name: `__main__`, or one whose file is not installed."""
    if name == "__main__":
        return True
    if name.partition(".")[0] in sys.stdlib_module_names:
        return False
    module = sys.modules.get(name)
    if type(module) is not ModuleType:
        return False
    file = vars(module).get("__file__")
    return type(file) is not str or _owns_file(file)


def _owns_code(code: CodeType, module: str) -> bool:
    file = code.co_filename
    # "<string>", "<stdin>", cells of other shells: then the module says it.
    return owns_module(module) if file.startswith("<") else _owns_file(file)


def _module_name(namespace: dict[str, object]) -> str:
    name = namespace.get("__name__")
    return name if type(name) is str else ""
