"""`self.env`: registered workflows by name with Cloudflare's async verbs, and whatever the user put there (API.md §5)."""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbflow.engine.engine import Engine


class Env:
    """Bindings of one activation, by attribute and by key."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        engine = self._engine
        if name in engine.env:
            return engine.env[name]
        workflow = engine.registry.find(name)
        if workflow is None:
            known = ", ".join(sorted({*engine.env, *engine.registry.all()})) or "nothing yet"
            msg = f"env has no {name!r}; it has {known}"
            raise AttributeError(msg)
        return Bridge(engine, workflow)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(name) from error


class Bridge:
    """A workflow or instance whose verbs are awaited on the workflow loop and plain calls elsewhere.

    The verbs block for some milliseconds of disk, so on the loop they run in a thread of ours. As Cloudflare's `createBatch`,
    that of an env gives only what it has created, unless `existing=` says otherwise (S3).
    """

    def __init__(self, engine: "Engine", target: Any) -> None:
        self._engine, self._target = engine, target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name == "create_batch":
            found = partial(found, existing="skip")
        return partial(self._call, found) if callable(found) else found

    def __repr__(self) -> str:
        return repr(self._target)

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait for the end of an instance, as `await inst` does."""
        if not hasattr(self._target, "__await__"):
            msg = f"{self._target!r} cannot be awaited; await one of its verbs, such as create()"
            raise TypeError(msg)
        awaited: Generator[Any, Any, Any] = self._target.__await__()
        return awaited

    def _call(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = partial(verb, *args, **kwargs)
        if not self._engine.thread.here:
            return self._wrapped(call())
        return self._awaited(call)

    async def _awaited(self, call: Callable[[], Any]) -> Any:
        import contextvars

        future: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        self._engine.threads.submit(
            contextvars.copy_context(), call, lambda outcome: None if future.done() else future.set_result(outcome)
        )
        succeeded, value = await future
        if not succeeded:
            raise value
        return self._wrapped(value)

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list) and type(value).__module__.startswith("nbflow."):
            return [self._wrapped(one) for one in value]
        return Bridge(self._engine, value) if type(value).__module__.startswith("nbflow.engine.instance") else value
