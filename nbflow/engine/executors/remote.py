"""What runs over there, in a worker of an executor: bytes in, bytes out, whatever the body does.

The only function that an executor is given is `run`, of this installed module. It never raises, never returns an object
of the user's, and looks at who sent the request before it reads anything of it: the ways in which clusters hang are
all in what they pickle themselves. Requests and replies are pickles between processes; nothing of them is stored.
"""

import asyncio
import contextvars
import functools
import pickle
import sys
import threading
import types
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from nbflow import ids
from nbflow.engine.context import StepContext, StepName, bind
from nbflow.engine.executors import report
from nbflow.engine.executors.classes import packed_back
from nbflow.engine.outputs import with_values
from nbflow.errors import NotSerialisableError, UndecodableError
from nbflow.values import codec, elsewhere, failures
from nbflow.values.artifacts import ArtifactRef
from nbflow.values.nodes import type_name
from nbflow.values.staging import Staged, StagingFolder, sees

LARGEST_PART = 1 << 20  # bytes of one attribute of an error, with what it carries along

CALL = "__import__('nbflow.engine.executors.remote', fromlist=['run']).run(request)"
"""What executors evaluate. They look up `eval`, which every worker has: a worker without nbflow answers with an
ImportError, where one that failed to unpickle a function of ours would die of it, or leave us waiting."""


class Request(msgspec.Struct):
    """One attempt of a body, for a worker.

    Attributes:
        versions: of the sender; see `versions`.
        key: of the attempt.
        fn: the pickled function.
        args: its pickled arguments: (positional of partials, by keyword, positional of the step).
        context: the fields of `ctx`.
        folder: where the instance's artefacts are: root, relative path, mark, URL for results.
        wire: how output is sent while the body runs: ("dask", topic), ("pipe", ""), or None.
        as_is: the value goes back as it is: it is a secret that only the sender may write anywhere.
        process: host and number of the sender's process, whose streams are left alone.
    """

    versions: dict[str, str]
    key: str
    fn: bytes
    args: bytes
    context: dict[str, Any]
    folder: tuple[str, str, str, str | None]
    wire: tuple[str, str] | None
    as_is: bool
    process: tuple[str, int]


class Reply(msgspec.Struct):
    """How an attempt went.

    Attributes:
        kind: "value", "pickled", "error", "blind" (the arguments are references, and their files cannot be seen from
            there), "again" (it had begun on a worker that is lost, and was not run once more) or "unfit" (other versions).
        run: which execution of the attempt this was: a cluster may have run it twice.
        value: of "value".
        data: the pickled value of "pickled": its class is known to the sender only; of "error": what `left_over` made.
        staged: files that the value needs.
        error: of "error": what `failures.record_error` made of it.
        ours: the error was raised in code of the notebook (S22).
        text: of "unfit"; the lost worker of "again".
        alone: of "again": that worker ran one body at a time.
        output: what was printed and logged and is not sent yet.
    """

    kind: str
    run: str = ""
    value: codec.Encoded | None = None
    data: bytes = b""
    staged: list[Staged] = []
    error: dict[str, Any] = {}
    ours: bool = False
    text: str = ""
    alone: bool = False
    output: list[report.Item] = []


@functools.cache
def versions() -> dict[str, str]:
    """What must be the same on both sides: code travels as bytecode, by cloudpickle, to this module."""
    import cloudpickle

    try:
        installed = version("nbflow-workflows")
    except PackageNotFoundError:  # a copy of the source that is found by its path
        installed = "without a version"
    return {
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "nbflow": installed,
        "cloudpickle": ".".join(cloudpickle.__version__.split(".")[:2]),
    }


def differences(theirs: dict[str, str], ours: dict[str, str]) -> str:
    """What differs between a worker and this kernel, for an error; empty where they fit."""
    return ", ".join(
        f"{name} {theirs.get(name)} where this kernel has {ours[name]}" for name in ours if theirs.get(name) != ours[name]
    )


def run(request: bytes, send: Callable[[dict[str, Any]], None] | None = None) -> bytes:
    """Run one attempt.

    Args:
        request: a pickled `Request`.
        send: takes output while the body runs, where the worker has a pipe to the sender.
    """
    order: Request = pickle.loads(request)  # noqa: S301 - from the engine that uses this worker
    here = versions()
    if here != order.versions:
        return pickle.dumps(Reply("unfit", text=differences(here, order.versions)))
    if (lost := report.began_before(order.key, order.wire)) is not None:
        return pickle.dumps(Reply("again", text=lost[0], alone=lost[1] == 1))
    errand = Errand(order, report.Report(order.key, report.sender(order.wire, send)))
    with report.capturing(errand.report, order.process):
        reply = errand.reply()
    reply.run, reply.output = errand.report.run, errand.report.rest()
    try:
        return pickle.dumps(reply, protocol=5)
    except BaseException as error:  # noqa: BLE001 - no memory for the copy: that is an outcome, too
        return pickle.dumps(Reply("error", run=reply.run, error=failures.record_error(error)))


class RemoteContext(StepContext):
    """`ctx` of a body over there."""

    __slots__ = ("_outlet",)
    _outlet: report.Report

    def log(self, text: object) -> None:
        """Write a line to the step's log."""
        self._outlet.write("log", f"{text}\n")

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the body is."""
        self._outlet.progress(done, total, note)


class Errand:
    """One request being served."""

    def __init__(self, order: Request, outlet: report.Report) -> None:
        self.order, self.report = order, outlet

    def reply(self) -> Reply:
        """Do it; whatever is raised is a reply (S30)."""
        try:
            return self._value()
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a body are its failure
            record = failures.record_error(error)
            return Reply("error", error=record, ours=elsewhere.raised_in_notebook(error), data=_left_over(error, record))

    def _value(self) -> Reply:
        order = self.order
        fn, (before, keywords, args) = _unpacked(order.fn, "body"), _unpacked(order.args, "arguments")
        root, relative, mark, url = order.folder
        references = [arg for arg in (*before, *keywords.values(), *args) if type(arg) is ArtifactRef]
        if any(arg.files is not None and not sees(str(arg.files.root), mark) for arg in references):
            return Reply("blind")
        if before or keywords:
            fn = functools.partial(fn, *before, **keywords)
        fn, args = with_values(fn, args)
        report.wire_bars()  # what the body needs is loaded now
        value = result(bind(fn, args, self._context))
        if order.as_is:
            return self._sent_back(value, NotSerialisableError(f"a {type_name(type(value))} that cannot be pickled"))
        folder = StagingFolder(root, relative, mark, url, ids.new_uid())
        try:
            return Reply("value", value=codec.encode(value, folder), staged=folder.staged)
        except NotSerialisableError as error:
            return self._sent_back(value, error)

    def _sent_back(self, value: Any, refusal: NotSerialisableError) -> Reply:
        """A value whose class is the notebook's own goes back as it is: only the sender can tell whether it is storable."""
        try:
            return Reply("pickled", data=packed_back(value))
        except Exception:  # noqa: BLE001 - a lock, a connection: then the refusal stands
            name = self.order.context["name"]
            msg = f"step {name!r} returned what cannot be stored: {refusal}"
            raise NotSerialisableError(msg).with_traceback(refusal.__traceback__) from None

    def _context(self) -> StepContext:
        fields = dict(self.order.context)
        step = StepName(name=fields.pop("name"), count=fields.pop("count"))
        context = RemoteContext(step=step, **fields)
        context._outlet = self.report  # noqa: SLF001 - not one of its fields
        return context


def _left_over(error: BaseException, record: failures.Record) -> bytes:
    try:
        found = elsewhere.left_over(error, record, functools.partial(packed_back, limit=LARGEST_PART))
    except Exception:  # noqa: BLE001 - an error that raises when it is looked at
        return b""
    return pickle.dumps(found) if found else b""


def _unpacked(data: bytes, what: str) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 - as above
    except ImportError as error:
        error.add_note(f"the step's {what} needs a module that this worker does not have: install it there")
        raise
    except UndecodableError:
        raise
    except Exception as error:
        error.add_note(f"raised while the step's {what} was unpickled in the worker")
        raise


def result(call: Callable[[], Any]) -> Any:
    """Call a body; a coroutine that it gives runs on a loop of its own."""
    value = call()
    if type(value) is not types.CoroutineType:
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(value))
    return _in_thread(lambda: asyncio.run(_awaited(value)))


async def _awaited(value: Any) -> Any:
    return await value


def _in_thread(call: Callable[[], Any]) -> Any:
    """For executors that call us on a running loop: no second one can run in that thread."""
    context, outcome = contextvars.copy_context(), list[Any]()

    def work() -> None:
        try:
            outcome.extend((True, context.run(call)))
        except BaseException as error:  # noqa: BLE001 - raised again where it belongs
            outcome.extend((False, error))

    thread = threading.Thread(target=work, name="nbflow-body", daemon=True)
    thread.start()
    thread.join()
    if outcome[0]:
        return outcome[1]
    raise outcome[1]
