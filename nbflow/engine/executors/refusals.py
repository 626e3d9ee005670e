"""What is said where an executor cannot take a body."""

from nbflow.errors import UsageError


def shut_down(name: str, error: BaseException) -> UsageError:
    """It takes nothing more."""
    return UsageError(f"executor {name!r} takes no more work ({error}): assign another, engine.executors[{name!r}] = …")


def without_nbflow(name: str, error: BaseException) -> UsageError:
    """A worker cannot import the envelope."""
    return UsageError(
        f"a worker of executor {name!r} cannot import nbflow ({error}): install the same version of nbflow-workflows there"
    )
