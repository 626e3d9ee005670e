"""What a step's body is told about its step (`ctx`), and how it gets it: by the name of its parameter."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from nbflow.core.config import as_mapping
from nbflow.core.model import StepKey, StepType
from nbflow.engine.logs.output import Output

if TYPE_CHECKING:
    from nbflow.engine.bodies import Body


class Fields(Mapping[str, Any]):
    """A few read-only fields, by attribute and by key."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __getattr__(self, name: str) -> Any:
        msg = f"{type(self).__name__} has no {name!r}; it has {', '.join(self.__dict__)}"
        raise AttributeError(msg)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


class StepName(Fields):
    """`ctx.step`: name and count."""


class StepContext(Fields):
    """The context of one attempt of a step (S12).

    Attributes:
        step: `.name` and `.count` (1-based).
        attempt: 1-based.
        config: the retries and timeout in force, in seconds; changing it changes nothing.
        instance_id, workflow_name: of the instance.
        key, index: of a map item, also to the handler that undoes it, else None.
        idempotency_key: 32 hex digits, the same for every attempt and replay of this step and for no other (S11).
    """

    __slots__ = ("_output",)

    def __init__(self, output: Output | None = None, /, **fields: Any) -> None:
        self._output = output
        super().__init__(**fields)

    def log(self, text: object) -> None:
        """Write a line to the step's log."""
        if self._output is not None:
            self._output.line(str(text))

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the body is: a bar in the step's row while it runs."""
        if self._output is not None:
            self._output.progress(done, total, note)


def idempotency_key(store: str, created_seq: int, generation: int, key: StepKey) -> str:
    """The text of `ctx.idempotency_key`: store, instance, number of restarts and step decide it."""
    parts = "\0".join([store, str(created_seq), str(generation), key.type, key.name, str(key.count), key.key or ""])
    return hashlib.blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def context_of(body: "Body") -> StepContext:
    """What a body, or its delay function, is told."""
    head, key = body.live.history.head, body.key
    return StepContext(
        body.output,
        step=StepName(name=key.name, count=key.count),
        attempt=body.attempt,
        config=as_mapping(body.config),
        instance_id=head.instance_id,
        workflow_name=head.workflow,
        key=key.key if key.type in (StepType.MAP, StepType.ROLLBACK) else None,
        index=body.index,
        idempotency_key=idempotency_key(body.engine.uid, head.created_seq, head.generation, key),
    )


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether *fn* is async: a coroutine function, a partial or method of one, an object with an async `__call__`."""
    if type(fn) is FunctionType and not fn.__dict__:  # the common case, without the marks that inspect looks for
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


def ctx_place(fn: Callable[..., Any]) -> int | str | None:
    """Where *fn* takes `ctx`: a position, "keyword", or None where it has no such parameter or no signature."""
    code = getattr(fn, "__code__", None)
    if code is not None and type(fn).__name__ == "function" and not fn.__dict__:  # the common case, without a Signature
        names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
        if "ctx" in names:
            return names.index("ctx")
        return "keyword" if "ctx" in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount] else None
    for place, parameter in enumerate(parameters_of(fn)):
        if parameter.name == "ctx" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            return "keyword" if parameter.kind is parameter.KEYWORD_ONLY else place
    return None


def parameters_of(fn: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """What a call of *fn* may still give, none where it has no signature; of a partial: what it leaves open or by keyword."""
    try:
        return tuple(inspect.signature(_bare(fn)).parameters.values())
    except (TypeError, ValueError):
        return ()


def _bare(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Partials without the `__wrapped__` of `functools.update_wrapper`, which names what they have bound already."""
    return functools.partial(_bare(fn.func), *fn.args, **fn.keywords) if isinstance(fn, functools.partial) else fn


def bind(fn: Callable[..., Any], args: tuple[Any, ...], context: Callable[[], StepContext]) -> Callable[[], Any]:
    """Give a call without arguments: *args* fill the parameters in order, `ctx` gets the context wherever it stands."""
    place = ctx_place(fn)
    if place is None:
        return functools.partial(fn, *args) if args else fn
    if place == "keyword":
        return functools.partial(fn, *args, ctx=context())
    assert isinstance(place, int)
    if place > len(args):  # what stands before it has defaults, or was bound by keyword
        parameters = parameters_of(fn)
        if parameters[place].kind is not inspect.Parameter.POSITIONAL_ONLY:
            return functools.partial(fn, *args, ctx=context())
        left = [one.default for one in parameters[len(args) : place]]
        if inspect.Parameter.empty in left:
            return functools.partial(fn, *args)  # Python says what is missing
        args = (*args, *left)
    return functools.partial(fn, *args[:place], context(), *args[place:])
