"""What is said where an executor cannot take a body."""

from nbflow.errors import UsageError, article
from nbflow.values.nodes import type_name


def shut_down(name: str, error: BaseException) -> UsageError:
    """It takes nothing more."""
    return UsageError(f"executor {name!r} takes no more work ({error}): assign another, engine.executors[{name!r}] = …")


def without_nbflow(name: str, error: BaseException) -> UsageError:
    """A worker cannot import the envelope."""
    return UsageError(
        f"a worker of executor {name!r} cannot import nbflow ({error}): install the same version of nbflow-workflows there"
    )


def not_taken(name: str, error: BaseException) -> BaseException:
    """For an executor that fails when it is given something: the error is its own, and says why."""
    if isinstance(error, UsageError) or not isinstance(error, Exception):
        return error
    return UsageError(f"executor {name!r} did not take the body: {type_name(type(error))}: {error}")


def no_future(name: str, given: object) -> UsageError:
    """For an executor whose `submit` does not do what executors do."""
    what = article(type_name(type(given)))
    return UsageError(
        f"executor {name!r}: its submit() gave {what}, not a Future as executors of concurrent.futures do; wrap it so that "
        f"it returns one"
    )
