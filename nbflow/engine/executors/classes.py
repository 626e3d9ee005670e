"""Classes of the notebook over there, and the way back of what is of them.

cloudpickle sends such a class by value. Three things are missing for that: a nested class forgets what it is nested in, what it
makes of msgspec's structs and of enums with aliases cannot be read, and a class that comes back would write its copies of
methods, with globals of their own, into the notebook's class. So each class that goes has a name of its own, by which what
comes back finds the class that went.
"""

import enum
import inspect
import io
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import msgspec

from nbflow import ids
from nbflow.system import at_fork
from nbflow.values.classes import class_reference, find_class

Reduced = tuple[Any, ...]

_sent: "weakref.WeakValueDictionary[str, type]" = weakref.WeakValueDictionary()
_names: "weakref.WeakKeyDictionary[type, str]" = weakref.WeakKeyDictionary()
_there: "weakref.WeakValueDictionary[str, type]" = weakref.WeakValueDictionary()
_came: "weakref.WeakKeyDictionary[type, str]" = weakref.WeakKeyDictionary()

_STRUCT = type(msgspec.Struct)
_OF_STRUCTS = frozenset({
    "__annotate_func__", "__annotations_cache__", "__match_args__", "__module__", "__orig_bases__", "__qualname__", "__slots__",
    "__struct_config__", "__struct_defaults__", "__struct_encode_fields__", "__struct_fields__",
})  # fmt: skip
_SETTINGS = (
    "array_like", "cache_hash", "dict", "eq", "forbid_unknown_fields", "frozen", "gc", "omit_defaults", "order",
    "repr_omit_defaults", "weakref",
)  # fmt: skip


def _forget() -> None:
    """A forked child is no sender: what is of its parent's classes in it is filled anew like any other."""
    _sent.clear()
    _names.clear()


at_fork(after_in_child=_forget)


# -- there --------------------------------------------------------------------------------------------------------------


def by_value(cls: Any, reduced: Reduced) -> Reduced:
    """How a class is pickled that cloudpickle sends by value, as *reduced* says."""
    make, args, (attributes, slots), _, _, fill = reduced
    attributes = dict(attributes)
    rest: dict[str, dict[str, Any]] = {}
    if issubclass(cls, enum.Enum):
        members: dict[str, Any] = dict(cls.__members__)
        args = tuple(_values(members) if type(arg) is dict else arg for arg in args)
        attributes = {name: value for name, value in attributes.items() if name not in members}
        rest = {name: own for name, member in members.items() if (own := _own(member))}
    elif type(cls) is _STRUCT:
        make, args = _struct, _struct_parts(cls)
        attributes = {
            name: value
            for name, value in attributes.items()
            if name not in _OF_STRUCTS and type(value) is not types.MemberDescriptorType
        }
        attributes["__annotations__"] = _annotations(cls)
    else:
        attributes["__qualname__"] = cls.__qualname__
    name = _names.setdefault(cls, ids.new_uid())
    _sent[name] = cls
    return arrived, (name, make, args), (fill, (attributes, slots), rest), None, None, filled


def arrived(name: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """The class of that name in this worker, still to be filled; where the worker is a thread of the sender, its own."""
    if (cls := _sent.get(name)) is not None:
        return cls
    cls = _there.get(name)
    if cls is None:
        cls = _there[name] = make(*args)
        _came[cls] = name
    return cls


def filled(cls: Any, state: tuple[Callable[..., Any], tuple[Any, ...], dict[str, dict[str, Any]]]) -> None:
    """Give it what the sender's class has now."""
    if cls in _names:
        return
    fill, attributes, rest = state
    fill(cls, attributes)
    for name, own in rest.items():
        vars(cls.__members__[name]).update(own)


def _values(members: dict[str, Any]) -> dict[str, Any]:
    return {name: member.value for name, member in members.items()}


def _own(member: Any) -> dict[str, Any]:
    """What a member holds that `__init__` or `__new__` of its class gave it: nobody calls those over there."""
    held = getattr(member, "__dict__", {})
    return {name: value for name, value in held.items() if not (name.startswith("_") and name.endswith("_"))}


# -- structs of msgspec -------------------------------------------------------------------------------------------------


def _annotations(cls: Any) -> dict[str, Any]:
    """What its fields are of, names looked up here where they mean something."""
    own = inspect.get_annotations(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that is not defined (yet): whoever decodes is told
        return own
    return {name: hints.get(name, of) for name, of in own.items()}


def _struct_parts(cls: Any) -> tuple[Any, ...]:
    """What `_struct` makes the same struct of: msgspec must know its fields then; methods and types come later."""
    own = inspect.get_annotations(cls)
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    fields: dict[str, dict[str, Any]] = {}
    for place, (name, encoded) in enumerate(zip(names, cls.__struct_encode_fields__, strict=True), len(defaults) - len(names)):
        if name not in own:
            continue
        field = fields[name] = {} if encoded == name else {"name": encoded}
        default: Any = defaults[place] if place >= 0 else msgspec.NODEFAULT
        if type(default).__name__ == "Factory" and type(default).__module__.startswith("msgspec"):
            field["default_factory"] = default.factory
        elif default is not msgspec.NODEFAULT:
            field["default"] = default
    config = cls.__struct_config__
    settings = {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}
    if config.tag is not None:
        settings |= {"tag": config.tag, "tag_field": config.tag_field}
    if fields and not set(fields) & set(cls.__match_args__):
        settings["kw_only"] = True
    namespace: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = _post_init
    return cls.__name__, vars(cls).get("__orig_bases__", cls.__bases__), namespace, fields, settings


def _struct(
    name: str, bases: tuple[Any, ...], namespace: dict[str, Any], fields: dict[str, dict[str, Any]], settings: dict[str, Any]
) -> type:
    of = dict.fromkeys(fields, Any)
    settled = {name: msgspec.field(**field) for name, field in fields.items() if field}
    return types.new_class(name, bases, settings, lambda body: body.update(namespace, __annotations__=of, **settled))


def _post_init(struct: Any) -> None:
    """msgspec looks for it when the class is made; the true one comes with the methods."""
    own = (vars(part).get("__post_init__", _post_init) for part in type(struct).__mro__)
    next(each for each in own if each is not _post_init)(struct)


# -- and back -----------------------------------------------------------------------------------------------------------


class TooLarge(Exception):  # noqa: N818 - a signal
    """More bytes than were allowed."""


class Sink(io.RawIOBase):
    """Takes at most that many bytes.

    Raises:
        TooLarge: there are more.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._parts, self._size = limit, list[bytes](), 0

    def write(self, data: Any) -> int:
        """Take some."""
        size = memoryview(data).nbytes
        self._size += size
        if self._size > self._limit:
            raise TooLarge
        self._parts.append(bytes(data))
        return size

    def getvalue(self) -> bytes:
        """What was written."""
        return b"".join(self._parts)


def packed_back(value: Any, limit: int | None = None) -> bytes:
    """Pickle what goes back to the sender: of the classes that came from there only their names."""
    import cloudpickle

    class ReturnPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and (name := _came.get(obj) or _names.get(obj)) is not None:
                return sent, (name, class_reference(obj))
            return super().reducer_override(obj)

    sink: Any = io.BytesIO() if limit is None else Sink(limit)
    ReturnPickler(sink, protocol=5).dump(value)
    result: bytes = sink.getvalue()
    return result


def sent(name: str, reference: str) -> type:
    """The class that went to a worker under that name."""
    cls = _sent.get(name) or find_class(reference)
    if cls is None:
        msg = f"class {reference.partition(':')[2]!r}, which a worker sends back, is no longer defined here"
        raise LookupError(msg)
    return cls
