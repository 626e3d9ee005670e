"""Between the codec and the entries: what of an encoded value goes into an entry's body, and where encoding may run."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from nbflow.core.history import StepRecord
from nbflow.core.model import StepType
from nbflow.errors import NotSerialisableError, UndecodableError
from nbflow.values import codec, failures, sealing, staging
from nbflow.values.artifacts import ArtifactFolder, ArtifactRef, UnwrittenError

_SCALARS = frozenset({type(None), bool, int, float})
_FEW, _SHORT = 64, 4096


class Delivered(msgspec.Struct, frozen=True):
    """A result that was encoded where its body ran; *staged* are its files, not published yet."""

    encoded: codec.Encoded
    staged: list[staging.Staged]

    def published(self, files: ArtifactFolder) -> codec.Encoded:
        """The encoded value, its files in their places."""
        staging.publish(self.staged, files)
        return self.encoded


def is_light(value: object) -> bool:
    """Whether encoding takes microseconds: done on the loop; anything else in a thread, where a table may take seconds."""
    cls = type(value)
    if cls in _SCALARS:
        return True
    if cls is str:
        return len(value) < 10 * _SHORT  # type: ignore[arg-type]
    if cls is dict:
        return len(value) <= _FEW and all(_is_atom(item) for item in value.values())  # type: ignore[arg-type, attr-defined]
    if cls is list or cls is tuple:
        return len(value) <= _FEW and all(_is_atom(item) for item in value)  # type: ignore[arg-type, attr-defined]
    return cls is Delivered and not value.staged  # type: ignore[attr-defined]


def _is_atom(value: object) -> bool:
    cls = type(value)
    return cls in _SCALARS or (cls is str and len(value) < _SHORT)  # type: ignore[arg-type]


REDACTED = "[REDACTED]"


def body_of(encoded: codec.Encoded, *, sensitive: bool = False) -> dict[str, Any]:
    """What an entry's body says of its value; of a sensitive one nothing."""
    if sensitive:
        return {"preview": {"kind": "text", "text": REDACTED, "line": REDACTED}, "output_type": REDACTED}
    body: dict[str, Any] = {"preview": encoded.preview, "output_type": encoded.type}
    if encoded.json is not None:
        body["json"] = encoded.json
    if encoded.uri is not None:
        body["uri"] = encoded.uri
    return body


def encode_result(value: object, files: ArtifactFolder, *, sensitive: bool) -> codec.Encoded:
    """Encode what a body gave; what is sensitive is sealed where the environment has a key."""
    if type(value) is Delivered:
        return value.published(files)
    if not (sensitive and sealing.wanted()):
        return codec.encode(value, files)
    whole = codec.encode(value, None, with_preview=False)
    return codec.Encoded(sealing.sealed(whole.data, files), whole.type, None, None, {})


def encode_value(value: object, step: str, files: ArtifactFolder, *, sensitive: bool) -> tuple[bool, Any]:
    """Encode what a body gave, or say why its attempt has failed.

    Raises:
        UnwrittenError: the disk refuses it now: the body has ended well, and its value waits.
    """
    try:
        return True, encode_result(value, files, sensitive=sensitive)
    except UnwrittenError:
        raise
    except NotSerialisableError as error:
        failed = NotSerialisableError(f"step {step!r} returned what cannot be stored: {error}")
        return False, failed.with_traceback(error.__traceback__)
    except BaseException as error:  # noqa: BLE001 - a failing __getattr__: the attempt failed
        return False, error


def withheld(record: dict[str, Any]) -> dict[str, Any]:
    """An error as it may be shown where its step is sensitive: its class only, by which `run` can tell it."""
    known = {name: record[name] for name in ("module", "qualname") if name in record}
    return {"type": record.get("type", ""), "message": REDACTED, "traceback": ""} | known


def tells_of(error: BaseException | None, secrets: list[BaseException]) -> bool:
    """Whether an error is one of *secrets*, or was raised from or in a group with one."""
    seen: set[int] = set()
    ahead = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in seen:
            continue
        if any(one is secret for secret in secrets):
            return True
        seen.add(id(one))
        ahead += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            ahead += one.exceptions
    return False


def record_bytes(record: dict[str, Any], files: ArtifactFolder) -> bytes:
    """The whole record of a sensitive error, as the entry's value: for `run`, not for displays."""
    data = b"e" + msgspec.json.encode(record)
    if not sealing.wanted():
        return data
    try:
        return sealing.sealed(data, files)
    except UnwrittenError:  # a long one stands in the history itself then
        return sealing.sealed(data, None)


def failure_of(step: StepRecord, files: ArtifactFolder, original: BaseException | None) -> tuple[bool, BaseException]:
    """The error of a failed step as `run` gets it; False and why where it is sealed and the key is not here (S17)."""
    data, record = step.value or b"", step.error or {}
    try:
        if data[:1] == b"x":
            data = sealing.unsealed(data, files)
    except UndecodableError as needs:
        return False, needs
    if data[:1] == b"e":
        try:
            record = msgspec.json.decode(data[1:], type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as damage:
            return False, UndecodableError(f"the error of {str(step.key)!r} cannot be read: {damage}", needs="its record")
    # What a child failed with names the instance: the step here did not try anything.
    name = "" if step.key.type is StepType.CHILD else str(step.key)
    error = failures.decode_error(record, step=name, attempts=step.attempt)
    if original is not None and error is not original and not _made_by_python(original):
        error.__cause__ = original
    return True, error


def _made_by_python(error: BaseException) -> bool:
    """Whether it stands for a StopIteration that left a coroutine: its copy has that as its cause, as on replay."""
    return type(error) is RuntimeError and isinstance(error.__cause__, (StopIteration, StopAsyncIteration))


def is_artifact(data: bytes) -> bool:
    """Whether reading the value means reading a file: done in a thread."""
    return data[:1] == b"a" or data[:2] == b"x{"


def reference(data: bytes, body: dict[str, Any], files: ArtifactFolder) -> ArtifactRef:
    """The reference that a lazy step gives instead of its value."""
    encoded = codec.Encoded(data, body.get("output_type", ""), None, body.get("uri"), body.get("preview") or {})
    return codec.reference(encoded, files)


def with_values(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A body and its arguments, those of partials too, as it gets them: references loaded."""
    if type(fn) is partial and has_references(fn, ()):
        inner, before = with_values(fn.func, fn.args)
        fn = partial(inner, *before, **dict(zip(fn.keywords, _loaded(fn.keywords.values()), strict=True)))
    return fn, _loaded(args)


def _loaded(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value.load() if type(value) is ArtifactRef else value for value in values)


def has_references(fn: Callable[..., Any], args: Iterable[Any]) -> bool:
    """Whether any argument, of partials too, is a reference."""
    if args and any(type(arg) is ArtifactRef for arg in args):
        return True
    return type(fn) is partial and (has_references(fn.func, fn.args) or has_references(fn.func, fn.keywords.values()))


def encode_output(output: object, files: ArtifactFolder) -> codec.Encoded | BaseException:
    """Encode what `run` gave; an error where that cannot be stored, raised where the disk refuses it only now."""
    try:
        return codec.encode(output, files)
    except UnwrittenError:
        raise
    except NotSerialisableError as error:
        return NotSerialisableError(f"`run` returned what cannot be stored: {error}")
    except BaseException as error:  # noqa: BLE001 - whatever keeps the output from being stored fails the instance
        return error
