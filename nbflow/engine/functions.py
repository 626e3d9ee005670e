"""Decorated steps: functions whose parameters are the steps they depend on (API.md §1)."""

import asyncio
import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from nbflow.core import names
from nbflow.core.config import ResolvedConfig, resolve
from nbflow.engine.activation import RollbackHandler
from nbflow.engine.calls import StepCall
from nbflow.engine.context import parameters_of
from nbflow.errors import UsageError, article

if TYPE_CHECKING:
    from nbflow.engine.step import WorkflowStep


class Options(msgspec.Struct, frozen=True):
    """How a step runs, parsed."""

    config: ResolvedConfig
    on: str | None
    lazy: bool
    concurrent: bool
    rollback: RollbackHandler | None
    sensitive: bool = False


def handler_of(name: Any, rollback: Any, rollback_config: Any) -> RollbackHandler | None:
    """A rollback handler with its own retries and timeout (S47)."""
    if rollback is None:
        if rollback_config is not None:
            msg = f"step {name!r} has a rollback_config= without a rollback="
            raise UsageError(msg)
        return None
    if not callable(rollback):
        msg = f"rollback= of step {name!r} is {article(type(rollback).__name__)}, which is not callable; give the function"
        raise UsageError(msg)
    return rollback, resolve(f"rollback of {name}", config=rollback_config)


class Decorator:
    """What `step.do("load")` gives: it makes a step of the function that it decorates."""

    def __init__(self, step: "WorkflowStep", name: str | None, options: Options) -> None:
        self._step, self._name, self._options = step, name, options

    def __call__(self, fn: Callable[..., Any]) -> "StepFunction":
        """Decorate a function."""
        return StepFunction(self._step, self._name, self._options, fn)

    def __await__(self) -> Generator[Any, Any, Any]:
        """Say what is missing."""
        name = "name" if self._name is None else self._name
        msg = f"step {name!r} has nothing to run; write `await step.do({name!r}, fn)`, or `@step.do({name!r})` above a function"
        raise UsageError(msg)


class StepFunction:
    """A decorated step: calling it, without arguments, runs the step; its parameters are the steps it depends on."""

    def __init__(self, step: "WorkflowStep", name: str | None, options: Options, fn: Callable[..., Any]) -> None:
        self._step, self._options, self._fn = step, options, fn
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__wrapped__ = fn
        self.name = name if name is not None else self.__name__
        names.step_name(self.name)
        self._needs = self._dependencies()
        self._last: StepCall | asyncio.Future[Any] | None = None
        step._activation.functions[self.__name__] = self  # noqa: SLF001 - a decorated step is part of its activation

    def __call__(self) -> Any:
        """Run the step; await the result."""
        if self._needs:
            # A task, so that a dependant and the caller can both await it.
            self._last = asyncio.ensure_future(self._resolve_then_do())
        else:
            self._last = self._step._do(self.name, self._fn, (), self._options)  # noqa: SLF001
        return self._last

    def __await__(self) -> Generator[Any, Any, Any]:
        """Say that it is to be called."""
        own = self.__name__
        msg = (
            f"step {self.name!r} was not called; write `await {own}()`, or, undecorated, `await step.do({self.name!r}, {own})`"
        )
        if not own.isidentifier():
            msg = "step.do was given a function and no name; write `await step.do('name', fn)`"
        raise UsageError(msg)

    async def once(self) -> Any:
        """The result for a step that depends on this one: of its last call, or of one made now, at most once."""
        if self._last is None:
            self()
        last = self._last
        assert last is not None
        return await (last.value() if isinstance(last, StepCall) else asyncio.shield(last))

    def _dependencies(self) -> list[tuple[inspect.Parameter, "StepFunction"]]:
        functions = self._step._activation.functions  # noqa: SLF001
        needs = []
        for parameter in parameters_of(self._fn):
            if parameter.name == "ctx" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if parameter.default is not parameter.empty:
                continue
            if parameter.name not in functions:
                known = ", ".join(functions) or "none yet"
                msg = (
                    f"step {self.name!r}: its parameter {parameter.name!r} is not the name of an earlier decorated step "
                    f"({known}), not `ctx`, and has no default"
                )
                raise TypeError(msg)
            needs.append((parameter, functions[parameter.name]))
        return needs

    async def _resolve_then_do(self) -> Any:
        if self._options.concurrent:
            values = list(await asyncio.gather(*(dependency.once() for _, dependency in self._needs)))
        else:
            values = [await dependency.once() for _, dependency in self._needs]
        given = [(each, value) for (each, _), value in zip(self._needs, values, strict=True)]
        first = tuple(value for each, value in given if each.kind is each.POSITIONAL_ONLY)
        named = {each.name: value for each, value in given if each.kind is not each.POSITIONAL_ONLY}
        return await self._step._do(self.name, partial(self._fn, **named), first, self._options)  # noqa: SLF001
