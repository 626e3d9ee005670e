"""Durable workflows for notebooks: kill the kernel at any moment, run the cell again, and the pipeline goes on.

Public names are loaded at first use, so that `import nbflow` costs nothing and needs neither IPython nor a widget.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbflow import testing
    from nbflow.core.model import ErrorInfo, InstanceStatus, Status, Waiting
    from nbflow.engine.current import current_engine, cursor, sql, workflow
    from nbflow.engine.engine import Engine
    from nbflow.engine.entrypoint import WorkflowEntrypoint
    from nbflow.engine.executors.named import dask_executor, process_executor
    from nbflow.engine.instance import WorkflowInstance
    from nbflow.engine.instances import Instances
    from nbflow.engine.registry import Workflow
    from nbflow.errors import (
        AlreadyExistsError,
        EventTimeoutError,
        InstanceFailedError,
        InvalidStatusError,
        NbflowError,
        NonRetryableError,
        NotFoundError,
        NotSerialisableError,
        RetryAfter,
        StepError,
        StepInterruptedError,
        StepTimeoutError,
        StoreCorruptError,
        StoreError,
        StoreLockedError,
        StoreVersionError,
        UsageError,
        WaitTimeoutError,
    )
    from nbflow.store.views import StepView
    from nbflow.values.artifacts import ArtifactRef
    from nbflow.values.codec import register_codec
    from nbflow.values.image import Image

_HOMES = {
    "nbflow.core.model": ("ErrorInfo", "InstanceStatus", "Status", "Waiting"),
    "nbflow.engine.current": ("current_engine", "cursor", "sql", "workflow"),
    "nbflow.engine.engine": ("Engine",),
    "nbflow.engine.executors.named": ("dask_executor", "process_executor"),
    "nbflow.engine.entrypoint": ("WorkflowEntrypoint",),
    "nbflow.engine.instance": ("WorkflowInstance",),
    "nbflow.engine.instances": ("Instances",),
    "nbflow.engine.registry": ("Workflow",),
    "nbflow.errors": (
        "AlreadyExistsError",
        "EventTimeoutError",
        "InstanceFailedError",
        "InvalidStatusError",
        "NbflowError",
        "NonRetryableError",
        "NotFoundError",
        "NotSerialisableError",
        "RetryAfter",
        "StepError",
        "StepInterruptedError",
        "StepTimeoutError",
        "StoreCorruptError",
        "StoreError",
        "StoreLockedError",
        "StoreVersionError",
        "UsageError",
        "WaitTimeoutError",
    ),
    "nbflow.store.views": ("StepView",),
    "nbflow.values.artifacts": ("ArtifactRef",),
    "nbflow.values.codec": ("register_codec",),
    "nbflow.values.image": ("Image",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AlreadyExistsError",
    "ArtifactRef",
    "Engine",
    "ErrorInfo",
    "EventTimeoutError",
    "Image",
    "InstanceFailedError",
    "InstanceStatus",
    "Instances",
    "InvalidStatusError",
    "NbflowError",
    "NonRetryableError",
    "NotFoundError",
    "NotSerialisableError",
    "RetryAfter",
    "Status",
    "StepError",
    "StepInterruptedError",
    "StepTimeoutError",
    "StepView",
    "StoreCorruptError",
    "StoreError",
    "StoreLockedError",
    "StoreVersionError",
    "UsageError",
    "WaitTimeoutError",
    "Waiting",
    "Workflow",
    "WorkflowEntrypoint",
    "WorkflowInstance",
    "current_engine",
    "cursor",
    "dask_executor",
    "process_executor",
    "register_codec",
    "sql",
    "testing",
    "workflow",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("nbflow-workflows")
    if name == "testing":
        return import_module("nbflow.testing")
    home = _HOME_OF.get(name)
    if home is None:
        msg = f"module 'nbflow' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(ip: Any) -> None:
    """Register the magics and displays (`%load_ext nbflow`)."""
    from nbflow.jupyter.extension import load_ipython_extension as load

    load(ip)


def unload_ipython_extension(ip: Any) -> None:
    """Close the engine and leave the shell as it was (`%unload_ext nbflow`)."""
    from nbflow.jupyter.extension import unload_ipython_extension as unload

    unload(ip)
